"""bench/random_model.py: a folder that the program reads, far beyond what a preset is trained at."""

import os
import subprocess
import sys
from pathlib import Path

GSA = str(Path(os.environ["GSA_PROGRAM"]).resolve())
SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "random_model.py"


def test_a_random_model_generates(tmp_path):
    folder = tmp_path / "model"
    subprocess.run([sys.executable, SCRIPT, "tiny", folder, "--program", GSA], check=True, timeout=300)
    text = tmp_path / "text.txt"
    text.write_text("the keeper of the lamp\n" * 10)
    command = [GSA, "generate", folder, "--prompt-file", text, "--extend", 5, "--max-tokens", 4, "--ignore-eos"]
    done = subprocess.run(list(map(str, command)), capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = subprocess.run([GSA, "inspect", str(folder), "--length", str(1 << 20), "--extend", "5"], capture_output=True)
    assert told.returncode == 0, told.stderr

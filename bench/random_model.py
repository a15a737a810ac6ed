#!/usr/bin/env python3
"""Makes a model folder of a preset's sizes with random weights, to measure with where no trained one is at hand.

    bench/random_model.py paper-1.7b FOLDER [--program build/release/bin/gsa]

bfloat16, the preset's vocabulary, of which the tokenizer (of bytes) knows the first 258, and 256K positions: `gsa
generate FOLDER --extend 8` goes to two million. The library beside the program and the Python package of this tree make
it."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def random_model(preset, folder, program):
    program, folder = Path(program).resolve(), Path(folder)
    os.environ.setdefault("GSA_LIBRARY", str(program.parent.parent / "libgsa.so"))
    sys.path.insert(0, str(ROOT / "python"))
    import torch  # noqa: PLC0415, the library must be known first
    import gated_sparse_attention as gsa  # noqa: PLC0415

    config = gsa.ModelConfig.preset(preset)
    config.bos_id, config.eos_ids, config.max_positions = 256, [257], 1 << 18
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    model = gsa.GatedSparseForCausalLM(config)
    for buffer in model.buffers():
        buffer.fill_(0.02)  # running means of a model that has seen something
    folder.mkdir(parents=True, exist_ok=True)
    gsa.save_model(model, folder)
    with tempfile.TemporaryDirectory() as scratch:
        word, tokens = Path(scratch, "word.txt"), Path(scratch, "tokens")
        word.write_text("lamp")
        subprocess.run([program, "tokenize", word, "--output", tokens], check=True, capture_output=True)
        (folder / "tokenizer_config.json").write_bytes((tokens / "tokenizer_config.json").read_bytes())
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", help="of gsa inspect")
    parser.add_argument("folder", help="where the model goes")
    parser.add_argument("--program", default=ROOT / "build/release/bin/gsa", help="the program gsa")
    arguments = parser.parse_args()
    print(random_model(arguments.preset, arguments.folder, arguments.program))


if __name__ == "__main__":
    main()

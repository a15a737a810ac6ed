"""Runs the program `gsa` in folders of a test's own."""

import os
import pty
import subprocess
from pathlib import Path

import pytest


def pytest_configure():
    program = os.environ.get("GSA_PROGRAM")
    if not program or not Path(program).is_file():
        raise pytest.UsageError(
            f"GSA_PROGRAM: expected the path of the program gsa, got {program!r} (`make test` sets it; "
            "by hand: GSA_PROGRAM=build/release/bin/gsa python -m pytest tests/program)"
        )


class Program:
    """The program in a folder. Two threads at most: tests run side by side."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.path = str(Path(os.environ["GSA_PROGRAM"]).resolve())

    def start(self, *arguments, **options):
        return subprocess.Popen(
            [self.path, *map(str, arguments)],
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"},
            **options,
        )

    def run(self, *arguments, status=0, text=None):
        """Output of both streams; the exit status must be the one given."""
        process = self.start(*arguments, stdin=subprocess.PIPE)
        output, _ = process.communicate(text, timeout=600)
        assert process.returncode == status, f"status {process.returncode}: {output}"
        return output

    def run_unread(self, *arguments):
        """As `gsa ... | head` does, where nobody reads any more; exit status and standard error."""
        reader, writer = os.pipe()
        os.close(reader)
        process = subprocess.run(
            [self.path, *map(str, arguments)], cwd=self.folder, text=True, stdout=writer, stderr=subprocess.PIPE,
            check=False, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        os.close(writer)
        return process.returncode, process.stderr

    def run_on_a_terminal(self, *arguments, **variables):
        """What a terminal gets of a run that succeeds, as bytes."""
        parent, child = pty.openpty()
        process = subprocess.Popen(
            [self.path, *map(str, arguments)], cwd=self.folder, stdin=child, stdout=child, stderr=child,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "LC_ALL": "C.UTF-8", **variables},
        )  # fmt: skip
        os.close(child)
        shown = b""
        while True:
            try:
                part = os.read(parent, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(parent)
        assert process.wait(timeout=60) == 0, shown
        return shown


@pytest.fixture
def gsa(tmp_path):
    return Program(tmp_path)


@pytest.fixture(scope="session")
def program_in():
    """The program in a folder that a fixture of wider scope has made: program_in(folder)."""
    return Program


@pytest.fixture
def words(tmp_path):
    """A text file of documents between blank lines."""
    file = tmp_path / "words.txt"
    lines = [
        f"the keeper of lamp {i} walks {i * 7 % 13} steps\nand back to the harbour\n" for i in range(200)
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@pytest.fixture
def data(gsa, words):
    """A dataset `data` of these words, in the folder of `gsa`."""
    gsa.run("tokenize", words, "--split", "blank-lines", "--output", "data")

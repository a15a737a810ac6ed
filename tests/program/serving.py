"""A tiny model, and `gsa serve` running it, for the tests of the server and of its clients."""

import contextlib
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from serve_metrics import metrics_of, settled  # noqa: E402

GSA = str(Path(os.environ["GSA_PROGRAM"]).resolve())
WORDS = "keeper lamp harbour rope tide gull stone bell net boat light door wind sand rain key".split()


def run(folder, *arguments):
    done = subprocess.run([GSA, *map(str, arguments)], cwd=folder, text=True, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train_tiny(folder):
    """A model folder of bytes, trained for some steps on made-up sentences."""
    rng = random.Random(5)
    lines = [f"the {' and the '.join(rng.sample(WORDS, 3))} are number {i % 97}.\n" for i in range(6000)]
    (folder / "text.txt").write_text("".join(lines), encoding="utf-8")
    run(folder, "tokenize", "text.txt", "--output", "data")
    options = {
        "data.train": "data", "data.length": 256, "batch.tokens": 1024, "output.folder": "run", "phases.dense": 60,
        "phases.warmup": 5, "phases.sparse": 15, "model.k_base": 16, "model.k_min": 8, "model.k_max": 32,
    }  # fmt: skip
    run(folder, "train", *[f"--set={key}={value}" for key, value in options.items()])
    return (folder / "run" / "latest").resolve()


class Server:
    """gsa serve on a port of its own; ends with the `with` block."""

    def __init__(self, model, *arguments, threads=1, port=0):
        self.process = subprocess.Popen(
            [GSA, "serve", str(model), "--port", str(port), *map(str, arguments)], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": str(threads), "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        line = self.process.stdout.readline()
        match = re.fullmatch(r"listening on http://(\S+):(\d+)\n", line)
        assert match, line + self.process.stderr.read()
        self.host, self.port = match[1], int(match[2])
        self.url = f"http://{self.host}:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def connect(self):
        return contextlib.closing(http.client.HTTPConnection(self.host, self.port, timeout=300))

    def ask(self, path, body=None, status=200, headers=None):
        """The answer's JSON, or its text where it is none."""
        with self.connect() as connection:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body),
                               {"Content-Type": "application/json", **(headers or {})})  # fmt: skip
            response = connection.getresponse()
            text = response.read().decode()
            assert response.status == status, f"{response.status}: {text}"
            json_type = response.headers["Content-Type"].startswith("application/json")
            return json.loads(text) if json_type else text

    def complete(self, prompt, **options):
        options = {"temperature": 0, "max_tokens": 20, **options}
        return self.ask("/v1/completions", {"prompt": prompt, **options})

    def text(self, prompt, **options):
        return self.complete(prompt, **options)["choices"][0]["text"]

    def events(self, path, body):
        """The data of a stream's events, [DONE] included."""
        with self.connect() as connection:
            connection.request("POST", path, json.dumps({**body, "stream": True}))
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            lines = response.read().decode().split("\n\n")
        assert lines.pop() == ""
        assert all(line.startswith("data: ") for line in lines)
        return [line[6:] for line in lines]

    def metrics(self):
        return metrics_of(self.ask("/metrics"))

    def settled(self):
        return settled(self.metrics, 60)

    def end(self, sent=signal.SIGTERM, timeout=60):
        """Exit status and standard error."""
        self.process.send_signal(sent)
        _, errors = self.process.communicate(timeout=timeout)
        return self.process.returncode, errors

"""gsa beside other work, with little memory, and on plain terminals."""

import os
import subprocess


def openmp_settings(gsa, **variables):
    """What torch's OpenMP runtime itself says it has read."""
    environment = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [gsa.path, "--version"], env={**environment, "OMP_DISPLAY_ENV": "verbose", **variables},
        text=True, capture_output=True, timeout=60,
    )
    assert done.returncode == 0 and done.stderr.count("DISPLAY ENVIRONMENT BEGIN") == 1, done.stderr
    return done.stderr


# Unbounded spinning takes the core from the thread that is waited for.
def test_waiting_threads_spin_briefly(gsa):
    assert "GOMP_SPINCOUNT = '1000'" in openmp_settings(gsa)


def test_a_wait_policy_of_the_users_stands(gsa):
    assert "GOMP_SPINCOUNT = '77'" in openmp_settings(gsa, GOMP_SPINCOUNT="77")
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in openmp_settings(gsa, OMP_WAIT_POLICY="active")


def test_more_threads_than_cores_are_not_started(gsa, words):
    gsa.run("tokenize", words, "--split", "blank-lines", "--output", "data")
    settings = {"data.train": "data", "output.folder": "run", "data.length": 32, "batch.tokens": 64, "spans.dense": 1,
                "threads": 4096, "device": "cpu"}
    cores = len(os.sched_getaffinity(0))
    note = f"of 4096 threads asked for, {cores} {'is' if cores == 1 else 'are'} used"
    output = gsa.run("train", *(f"--set={key}={value}" for key, value in settings.items()))
    assert f"note    {note}" in output
    assert f"note: {note}" in gsa.run("eval", "run/latest", "--data", "data", "--threads", 4096)
    assert f"note: {note}" in gsa.run("generate", "run/latest", "--prompt", "the", "-n", 1, "--threads", 4096)
    for command in (["eval", "run/latest"], ["generate", "run/latest"], ["demo"]):
        for value in (0, 4097, 100000):
            output = gsa.run(*command, "--threads", value, status=2)
            assert f"--threads: expected a whole number in 1 .. 4096, got '{value}'" in output

"""What `gsa serve` says at /metrics, read: for bench/serve.py and for the tests of the server."""

import re
import time


def metrics_of(page):
    """By name, the sum over labels."""
    found = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, value = re.fullmatch(r"([a-z0-9_]+)(?:\{.*\})? (\S+)", line).groups()
            found[name] = found.get(name, 0) + float(value)
    return found


def settled(metrics, seconds):
    """What metrics() gives when no text runs or waits any more."""
    end = time.monotonic() + seconds
    while True:
        found = metrics()
        if found["gsa_num_requests_running"] + found["gsa_num_requests_waiting"] == 0:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"texts still run after {seconds} s")
        time.sleep(0.05)

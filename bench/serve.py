#!/usr/bin/env python3
"""Loads `gsa serve` from the loopback address and checks what it answers.

    bench/serve.py MODEL --program build/release/bin/gsa [--json FILE]
    bench/serve.py random:paper-1.7b --parts decode --device cuda --context 131072 --program ...
                   a preset's sizes with random weights (bench/random_model.py)

    load      500 requests from 8 clients and 64 from 64, every second one with a prompt of its own: errors, texts
              against those of gsa generate, a third of them sampled, by the same seeds; resident memory over time, once
              the prefix cache has come to its limit
    batching  tokens/s of 16 clients over those of one, the same requests
    hang-ups  1,000 clients that leave at random moments: pages that are still held
    prefix    16 requests that share 8K tokens: tokens that were read
    gap       --writers texts are written while a prompt of --long tokens is read: times between their tokens, of
              which 99 in 100 keep within --max-gap, and what the prompt takes
    decode    tokens/s of --clients texts behind --context tokens while all of them write, over those of gsa generate
              for the same batch without its first steps; on a CPU with half of the cores for each, and without a bar:
              the clients, in Python, take as much time as the steps of a tiny model

Exit status 1 where one of them fails its bar."""

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from random_model import random_model
from serve_metrics import metrics_of, settled

FIRST_STEPS = 8  # of gsa generate, that its rate leaves out
SEEDS, TEMPERATURE = 4, 0.9  # of sampled texts
WORDS = "keeper lamp harbour rope tide gull stone bell net boat light door wind sand rain key".split()


class Server:
    def __init__(self, arguments, *options):
        command = [arguments.program, "serve", arguments.model, "--port", "0", "--extend", str(arguments.extend),
                   "--device", arguments.device, *map(str, options)]  # fmt: skip
        if arguments.threads:
            command += ["--threads", str(arguments.threads)]
        self.process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        line = self.process.stdout.readline()
        match = re.fullmatch(r"listening on http://(\S+):(\d+)\n", line)
        if not match:
            sys.exit(f"gsa serve did not start: {' '.join(command)}")
        self.host, self.port = match[1], int(match[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=60)
        self.process.kill()

    def ask(self, path, body=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=1800)
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {text}")
        return json.loads(text) if response.headers["Content-Type"].startswith("application/json") else text

    def complete(self, prompt, **options):
        return self.ask("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 20, **options})

    def metrics(self):
        return metrics_of(self.ask("/metrics"))

    def settled(self):
        return settled(self.metrics, 1800)

    def resident(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


def prompt_of(index):
    rng = random.Random(index)
    return f"the {rng.choice(WORDS)} and the {rng.choice(WORDS)} {rng.randrange(1000)} {' '.join(rng.sample(WORDS, 6))}"


def generated(arguments, prompts, tokens, *sampling):
    """Texts of gsa generate, greedy ones unless `sampling` says otherwise, in batches of 64 prompts."""
    texts = []
    for begin in range(0, len(prompts), 64):
        options = [item for prompt in prompts[begin : begin + 64] for item in ("--prompt", prompt)]
        command = [arguments.program, "generate", arguments.model, "--json", "-n", tokens, "--extend", arguments.extend,
                   "--device", arguments.device, *(sampling or ("-t", 0)), *options]  # fmt: skip
        lines = subprocess.run(list(map(str, command)), text=True, capture_output=True, check=True).stdout.splitlines()
        found = {line["prompt"]: line["text"] for line in map(json.loads, lines) if "text" in line}
        texts += [found[index] for index in range(len(found))]
    return texts


def load(arguments, results):
    count, kinds = 500, 40
    # Odd requests bring a prompt that nobody has sent before, others one of a few.
    own = [index for index in range(count + 64) if index % 2]
    prompts = [prompt_of(index) for index in range(kinds)]
    prompts += [" and ".join(prompt_of(10_000 + 3 * index + i) for i in range(3)) for index in own]
    which = {index: kinds + place for place, index in enumerate(own)}
    # Every third one is sampled. What gsa generate draws depends on the seed and the prompt, as here.
    plans = [(which.get(index, index % kinds), index % SEEDS if index % 3 == 2 else None) for index in range(count + 64)]
    expected = {}
    for seed in (None, *range(SEEDS)):
        some = sorted({kind for kind, own_seed in plans if own_seed == seed})
        sampling = () if seed is None else ("-t", TEMPERATURE, "--seed", seed)
        texts = generated(arguments, [prompts[kind] for kind in some], 24, *sampling)
        expected |= {(kind, seed): text for kind, text in zip(some, texts, strict=True)}
    memory = []
    errors = wrong = 0
    compared = {"greedy": 0, "sampled": 0}
    full_at = None  # the request before which the prefix cache was full
    limit = ("--prefix-cache-limit", arguments.prefix_limit) if arguments.prefix_limit else ()
    with Server(arguments, *limit) as server:

        def request(index):
            nonlocal full_at
            kind, seed = plans[index]
            sampling = {} if seed is None else {"temperature": TEMPERATURE, "seed": seed}
            text = server.complete(prompts[kind], max_tokens=24, **sampling)["choices"][0]["text"]
            good = text == expected[kind, seed]
            compared["greedy" if seed is None else "sampled"] += 1
            memory.append(server.resident())
            if full_at is None and server.metrics()["gsa_prefix_cache_evictions_total"] > 0:
                full_at = len(memory)
            return good

        for clients, requests in ((8, count), (64, 64)):
            with ThreadPoolExecutor(clients) as pool:
                first = 0 if clients == 8 else count
                for future in [pool.submit(request, first + index) for index in range(requests)]:
                    try:
                        wrong += not future.result()
                    except Exception as error:  # noqa: BLE001: every failure counts
                        print(error, file=sys.stderr)
                        errors += 1
            if clients == 8:
                quarter = len(memory) // 4
                second, last = (statistics.median(memory[i * quarter : (i + 1) * quarter]) for i in (1, 3))
    results["load"] = {"requests": count + 64, "errors": errors, "texts_compared": compared, "other_texts": wrong,
                       "prefix_cache_limit": arguments.prefix_limit or "default", "prefix_cache_full_at": full_at,
                       "resident_mib": {"second quarter": round(second, 1), "last quarter": round(last, 1)}}  # fmt: skip
    # The bar is one of a full cache. With the server's own limit these requests do not fill it.
    flat = not limit or (full_at is not None and full_at <= quarter and last <= 1.02 * second)
    return errors == 0 and wrong == 0 and sum(compared.values()) == count + 64 and flat


def batching(arguments, results):
    prompts = [prompt_of(1000 + index) for index in range(64)]
    rates = {}
    for clients in (1, 16):
        with Server(arguments) as server, ThreadPoolExecutor(clients) as pool:
            server.complete("the", max_tokens=8)
            runs = []
            for repeat in range(3):  # other prompts each time: nothing is found in the prefix cache
                texts = [f"{repeat} {prompt}" for prompt in prompts]
                begin = time.perf_counter()
                answers = list(pool.map(lambda text: server.complete(text, max_tokens=64, ignore_eos=True), texts))
                tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
                runs.append(tokens / (time.perf_counter() - begin))
            rates[clients] = statistics.median(runs)
    results["batching"] = {"tokens_per_second": {str(clients): round(rate) for clients, rate in rates.items()},
                           "ratio": round(rates[16] / rates[1], 2)}  # fmt: skip
    return rates[16] >= 3 * rates[1]


def hang_ups(arguments, results):
    with Server(arguments, "--max-batch", 32) as server:
        rng = random.Random(9)

        def leave(index):
            body = json.dumps({"prompt": prompt_of(index), "max_tokens": 150, "stream": index % 2 == 0})
            request = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            with socket.create_connection((server.host, server.port)) as raw:
                raw.sendall(request[: rng.choice([len(request)] * 4 + [rng.randrange(len(request))])].encode())
                raw.settimeout(rng.random() * 0.2)
                with contextlib.suppress(TimeoutError, ConnectionError):
                    if rng.random() < 0.7:
                        raw.recv(rng.randrange(1, 4096))

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(leave, range(1000)))
        metrics = server.settled()
        held = metrics["gsa_kv_cache_pages_in_use"] - metrics["gsa_kv_cache_prefix_pages"]
        results["hang-ups"] = {"clients": 1000, "cancelled": int(metrics["gsa_requests_cancelled_total"]),
                               "failed": int(metrics["gsa_requests_failed_total"]), "pages_leaked": int(held)}  # fmt: skip
        return held == 0 and metrics["gsa_requests_failed_total"] == 0


def prefix(arguments, results):
    text = " ".join(prompt_of(index) for index in range(4000))
    with Server(arguments) as server, ThreadPoolExecutor(16) as pool:
        ids = server.ask("/tokenize", {"prompt": text})["tokens"][:8192]
        tails = [server.ask("/tokenize", {"prompt": word, "add_special_tokens": False})["tokens"][:3] for word in WORDS]
        begin = time.perf_counter()
        list(pool.map(lambda tail: server.complete([ids + tail], max_tokens=4), tails))
        read = int(server.settled()["gsa_prefill_tokens_total"])
        results["prefix"] = {"shared": 8192, "requests": 16, "tokens_read": read,
                             "seconds": round(time.perf_counter() - begin, 2)}  # fmt: skip
        return read == 8192 + sum(map(len, tails))


def stream(server, prompt, tokens, stop=None):
    """Times of the tokens of one text, which ends early when `stop` is set."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=1800)
    # With token ids each token is an event, whether it has a text of its own or not.
    body = {"prompt": [prompt], "temperature": 0, "max_tokens": tokens, "ignore_eos": True, "stream": True,
            "return_token_ids": True}  # fmt: skip
    connection.request("POST", "/v1/completions", json.dumps(body))
    response, times = connection.getresponse(), []
    while line := response.readline():
        if line.startswith(b"data: {") and b'"token_ids":[]' not in line and b'"token_ids":' in line:
            times.append(time.perf_counter())
        if stop is not None and stop.is_set():
            break
    connection.close()
    return times


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def gap(arguments, results):
    text = " ".join(prompt_of(index) for index in range(arguments.long // 8))
    with Server(arguments, "--max-gap", arguments.max_gap) as server, ThreadPoolExecutor(arguments.writers) as pool:
        ids = server.ask("/tokenize", {"prompt": text})["tokens"]
        prompts = [[ids[0], *ids[1 + turn : arguments.long + turn]] for turn in range(3)]  # that share no page
        room = server.ask("/v1/models")["data"][0]["max_model_len"]
        stop, found = threading.Event(), []
        writers = [pool.submit(stream, server, ids[: 64 + index], min(room - 1024, 200_000), stop)
                   for index in range(arguments.writers)]  # fmt: skip
        try:
            while server.metrics()["gsa_generation_tokens_total"] < 50 * arguments.writers:
                time.sleep(0.05)
            # The first one finds a server that has not learnt yet what a chunk takes.
            for prompt in prompts[:2]:
                begin = time.perf_counter()
                server.complete([prompt], max_tokens=1)
                found.append((begin, time.perf_counter()))
                time.sleep(1)
        finally:
            stop.set()
        times = [writer.result() for writer in writers]
        server.settled()
        begin = time.perf_counter()
        server.complete([prompts[2]], max_tokens=1)
        alone = time.perf_counter() - begin
    results["gap"] = {"writers": arguments.writers, "long": arguments.long, "max_gap_ms": arguments.max_gap,
                      "alone_seconds": round(alone, 2)}  # fmt: skip
    holds = True
    for name, (begin, end) in zip(("first", "second"), found, strict=True):
        gaps = [1000 * (b - a) for own in times for a, b in zip(own, own[1:], strict=False) if b > begin and a < end]
        p99 = percentile(gaps, 0.99)
        results["gap"][name] = {"tokens": len(gaps), "p50_ms": round(percentile(gaps, 0.5), 1), "p99_ms": round(p99, 1),
                                "max_ms": round(max(gaps), 1), "prompt_seconds": round(end - begin, 2)}  # fmt: skip
        holds = holds and p99 <= arguments.max_gap
    return holds


def decode(arguments, results):
    """Both read the same prompts and write the same number of tokens; only the steps are timed."""
    if arguments.device == "cpu" and not arguments.threads:  # the clients of a CPU's server want a core, too
        arguments = argparse.Namespace(**{**vars(arguments), "threads": max(1, os.cpu_count() // 2)})
    tokens = arguments.tokens
    base = " ".join(prompt_of(index) for index in range(arguments.context // 8))
    with Server(arguments, "--max-batch", arguments.clients) as server, ThreadPoolExecutor(arguments.clients) as pool:
        whole = server.ask("/tokenize", {"prompt": base})["tokens"]
        ids = whole[: arguments.context - 8]
        # They differ at the front, as gsa generate's do: texts that shared pages would read them from the L2 cache.
        prompts = [[ids[0], *ids[index + 1 :], *ids[1 : index + 1]] for index in range(arguments.clients)]

        for prompt in prompts:  # into the prefix cache: all texts then begin together
            server.complete([prompt], max_tokens=1)
        before = server.metrics()
        begin = time.perf_counter()
        times = list(pool.map(lambda prompt: stream(server, prompt, tokens), prompts))
        after = server.settled()
        # While all of them run: from the last one's first token to the first one's last.
        start, end = max(t[0] for t in times), min(t[-1] for t in times)
        steps = sum(sum(start < t <= end for t in own) for own in times)
        rate = steps / (end - start)
        count = after["gsa_generation_tokens_total"] - before["gsa_generation_tokens_total"]
        results["decode"] = {"clients": arguments.clients, "context": arguments.context,
                             "tokens_per_second": round(rate, 1), "all": round(count / (time.perf_counter() - begin), 1)}  # fmt: skip
    # The engine's own rate, in one batch of as many prompts of as many tokens: of the steps behind the first ones, for
    # there the cache grows, and on a GPU a graph is captured. The server's figure leaves these out too.
    files = []
    for index in range(arguments.clients):
        path = Path(arguments.scratch) / f"prompt-{index}.txt"
        path.write_text(f"{index} {base}"[: len(base) * len(ids) // len(whole)])  # as many tokens, about
        files += ["--prompt-file", path]

    def decoded(count):
        command = [arguments.program, "generate", arguments.model, "-n", count, "-t", 0, "--ignore-eos", "--extend",
                   arguments.extend, "--device", arguments.device, "--stats", "--json", *files]  # fmt: skip
        if arguments.threads:
            command += ["--threads", arguments.threads]
        lines = subprocess.run(list(map(str, command)), text=True, capture_output=True, check=True).stdout.splitlines()
        return [line["stats"] for line in map(json.loads, lines) if "stats" in line][0]

    few, many = decoded(FIRST_STEPS), decoded(FIRST_STEPS + tokens)
    engine = (many["decode_tokens"] - few["decode_tokens"]) / (many["decode_seconds"] - few["decode_seconds"])
    results["decode"] |= {"engine_tokens_per_second": round(engine, 1), "share": round(rate / engine, 3),
                          "engine_with_first_steps": round(many["decode_tokens_per_second"], 1)}  # fmt: skip
    return rate >= 0.9 * engine if arguments.device != "cpu" else None


PARTS = {"load": load, "batching": batching, "hang-ups": hang_ups, "prefix": prefix, "gap": gap, "decode": decode}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder, or random:PRESET")
    parser.add_argument("--program", required=True, help="the program gsa")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of %(default)s")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of the server and of gsa generate; default: one a core")
    parser.add_argument("--extend", default=1, help="as gsa generate takes it")
    parser.add_argument("--prefix-limit", type=int, default=8,
                        help="of load, MiB: --prefix-cache-limit; 0: the server's own, memory then has no bar")  # fmt: skip
    parser.add_argument("--writers", type=int, default=4, help="of gap")
    parser.add_argument("--long", type=int, default=32768, help="of gap, tokens")
    parser.add_argument("--max-gap", type=float, default=200, help="of gap, ms: gsa serve's option")
    parser.add_argument("--clients", type=int, default=8, help="of decode")
    parser.add_argument("--context", type=int, default=8192, help="of decode, tokens")
    parser.add_argument("--tokens", type=int, default=64, help="of decode, a text")
    parser.add_argument("--scratch", default=".", help="a folder for prompts")
    parser.add_argument("--json", help="results to this file")
    arguments = parser.parse_args()
    unknown = set(arguments.parts.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--parts: expected some of {', '.join(PARTS)}, got {', '.join(unknown)}")
    if arguments.model.startswith("random:"):
        preset = arguments.model.removeprefix("random:")
        arguments.model = str(random_model(preset, Path(arguments.scratch) / f"random-{preset}", arguments.program))
    results, failed = {"cores": os.cpu_count(), "device": arguments.device}, []
    for part in arguments.parts.split(","):
        holds = PARTS[part](arguments, results)
        word = {True: "holds", False: "FAILS", None: "no bar"}[holds]
        print(f"{part:10} {word}  {json.dumps(results[part])}", flush=True)
        results[part]["holds"] = holds
        failed += [part] if holds is False else []
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

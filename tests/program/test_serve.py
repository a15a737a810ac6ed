"""gsa serve as its users run it: what it answers is what gsa generate writes, whatever else goes on."""

import contextlib
import http.client
import json
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving import WORDS, Server, run, train_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return train_tiny(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def server(model):
    with Server(model) as running:
        yield running


def prompts(count, seed=1):
    rng = random.Random(seed)
    return [f"the {rng.choice(WORDS)} and the {rng.choice(WORDS)} {rng.randrange(100)}" for _ in range(count)]


def generated(model, texts, *options):
    """What gsa generate writes, by prompt."""
    arguments = [item for text in texts for item in ("--prompt", text)]
    lines = run(model.parent, "generate", model, "--json", *([] if "-n" in options else ["-n", 20]), *arguments, *options).splitlines()
    found = [json.loads(line) for line in lines]
    return {(line["prompt"], line["sample"]): line["text"] for line in found if "text" in line}


def test_greedy_texts_are_those_of_generate(model, server):
    texts = prompts(16)
    expected = generated(model, texts, "--temperature", 0)
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(server.complete, texts * 3))
    for index, answer in enumerate(answers):
        (choice,) = answer["choices"]
        assert choice["text"] == expected[index % 16, 0]
        assert choice["finish_reason"] in ("stop", "length") and answer["object"] == "text_completion"
        assert answer["usage"]["prompt_tokens"] == len(texts[index % 16]) + 1  # bytes, and the mark before them


def test_samples_follow_their_seed(model, server):
    (text,) = prompts(1, seed=2)
    expected = generated(model, [text], "--temperature", 0.9, "--seed", 7, "--samples", 3)
    options = {"temperature": 0.9, "seed": 7, "n": 3}
    with ThreadPoolExecutor(8) as clients:
        others = [clients.submit(server.complete, other, temperature=1) for other in prompts(6, seed=3)]
        answers = list(clients.map(lambda _: server.complete(text, **options), range(4)))
        assert all(other.result()["choices"] for other in others)
    for answer in answers:
        assert [choice["text"] for choice in answer["choices"]] == [expected[0, sample] for sample in range(3)]
    unseeded = {server.text(text, temperature=1.5, max_tokens=40) for _ in range(4)}
    assert len(unseeded) > 1


def test_several_prompts_and_token_ids(server):
    texts = prompts(3, seed=4)
    answer = server.complete(texts)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    ids = [server.ask("/tokenize", {"prompt": text})["tokens"] for text in texts]
    assert [choice["text"] for choice in server.complete(ids)["choices"]] == [c["text"] for c in answer["choices"]]
    assert server.ask("/detokenize", {"tokens": ids[0]})["prompt"].endswith(texts[0])


def test_streams_add_up_to_the_text(server):
    (text,) = prompts(1, seed=5)
    whole = server.text(text)
    body = {"prompt": text, "temperature": 0, "max_tokens": 20, "stream_options": {"include_usage": True}}
    events = server.events("/v1/completions", body)
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["prompt_tokens"] == len(text) + 1
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == whole
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]].count(None) == len(chunks) - 2

    chat = {"messages": [{"role": "user", "content": "the keeper"}], "temperature": 0, "max_tokens": 20}
    answer = server.ask("/v1/chat/completions", chat)["choices"][0]["message"]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in server.events("/v1/chat/completions", chat)[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content") or "" for delta in deltas) == answer["content"]


def test_stop_strings_echo_and_logprobs(server):
    (text,) = prompts(1, seed=6)
    whole = server.text(text, max_tokens=40)
    stop = whole[8:11]
    assert server.text(text, max_tokens=40, stop=[stop]) == whole[: whole.index(stop)]
    choice = server.complete(text, echo=True, logprobs=2, max_tokens=3)["choices"][0]
    assert choice["text"] == text + whole[:3]
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] is None and all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert len(logprobs["tokens"]) == len(text) + 1 + 3 == len(logprobs["top_logprobs"])
    for value, top in zip(logprobs["token_logprobs"][-3:], logprobs["top_logprobs"][-3:], strict=True):
        assert value == pytest.approx(max(top.values()))  # greedy
    read_only = server.complete(text, echo=True, logprobs=2, max_tokens=0)["choices"][0]
    assert read_only["logprobs"]["token_logprobs"][1:] == pytest.approx(logprobs["token_logprobs"][1:-3], abs=1e-4)


@pytest.mark.parametrize("path, body, status, param", [
    ("/v1/completions", {"prompt": "x", "temperature": -1}, 400, "temperature"),
    ("/v1/completions", {"prompt": "x", "suffix": "y"}, 400, "suffix"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 10**7}, 400, "prompt"),
    ("/v1/completions", {"prompt": "x", "seed": 10**30}, 400, "seed"),
    ("/v1/completions", {"prompt": [[1, 99999]]}, 400, "prompt[0][1]"),
    ("/v1/completions", {}, 400, "prompt"),
    ("/v1/completions", {"prompt": "x", "model": "other"}, 404, "model"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
], ids=["temperature", "suffix", "length", "seed", "id", "none", "model", "messages"])  # fmt: skip
def test_mistakes_are_named(server, path, body, status, param):
    error = server.ask(path, body, status=status)["error"]
    assert error["param"] == param and error["message"] and error["type"] == "invalid_request_error"


def test_what_is_no_request_is_refused(server):
    assert "error" in server.ask("/v1/nothing", status=404)
    assert "error" in server.ask("/v1/completions", status=405)
    with socket.create_connection((server.host, server.port)) as raw:
        raw.sendall(b"\x00\x01 garbage\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    assert server.ask("/health") is not None


# The page size is 64: what is shared beyond full pages is read by each.
def test_a_shared_prefix_is_read_once(model):
    prefix = (" ".join(prompts(900, seed=8)))[:8191]
    with Server(model, "--extend", 1) as server, ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda i: server.complete(prefix + f" {i:02d}", max_tokens=4), range(16)))
        metrics = server.settled()
        assert metrics["gsa_prefill_tokens_total"] == 8192 + 16 * 3
        cached = sorted(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
        assert cached == [0] + [8192] * 15


# A prompt that the budget covers is read by dense kernels; what it left serves one that selects.
def test_pages_of_a_covered_prompt_serve_a_longer_one(model, tmp_path):
    fixed = Path(shutil.copytree(model, tmp_path / "fixed"))
    config = json.loads((fixed / "config.json").read_text())
    config |= {"index_budget": "fixed", "index_topk": 96, "index_topk_max": 96}
    (fixed / "config.json").write_text(json.dumps(config))
    text = " ".join(prompts(12, seed=11))
    covered, longer = text[:90], text[:220]
    expected = generated(fixed, [covered, longer], "--temperature", 0)
    with Server(fixed) as server:
        assert server.text(covered) == expected[0, 0]
        answer = server.complete(longer)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
        assert answer["choices"][0]["text"] == expected[1, 0]


def test_clients_that_hang_up_leave_nothing(model):
    with Server(model, "--max-batch", 8) as server:
        rng = random.Random(9)

        def hang_up(index):
            body = json.dumps({"prompt": prompts(1, seed=index)[0], "max_tokens": 150, "stream": index % 2 == 0})
            request = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            with socket.create_connection((server.host, server.port)) as raw:
                raw.sendall(request[: rng.choice([len(request), len(request), 30])].encode())
                if rng.random() < 0.5:
                    raw.settimeout(rng.random() * 0.2)
                    try:
                        raw.recv(64)
                    except TimeoutError:
                        pass

        with ThreadPoolExecutor(16) as clients:
            list(clients.map(hang_up, range(150)))
        metrics = server.settled()
        assert metrics["gsa_requests_cancelled_total"] > 20
        assert metrics["gsa_kv_cache_usage"] == 0
        assert metrics["gsa_kv_cache_pages_in_use"] == metrics["gsa_kv_cache_prefix_pages"]
        assert metrics["gsa_requests_failed_total"] == 0 and server.text("the keeper") is not None


# 4 MiB are some 1,800 tokens, a third of what the texts have together.
def test_a_small_cache_changes_no_text(model):
    texts = [" ".join(prompts(8, seed=index)) for index in range(12)]
    with Server(model, "--extend", 1) as large, ThreadPoolExecutor(12) as clients:
        expected = list(clients.map(lambda text: large.text(text, max_tokens=120), texts))
    with Server(model, "--extend", 1, "--cache-limit", 4) as small, ThreadPoolExecutor(12) as clients:
        assert list(clients.map(lambda text: small.text(text, max_tokens=120), texts)) == expected
        metrics = small.settled()
        assert metrics["gsa_requests_failed_total"] == 0
        assert metrics["gsa_prefix_cache_evictions_total"] + metrics["gsa_num_preemptions_total"] > 0


# Distinct prompts: the cache grows to its limit, and no further.
def test_the_prefix_cache_keeps_within_its_limit(model):
    with Server(model, "--prefix-cache-limit", 2) as server, ThreadPoolExecutor(4) as clients:
        def ask(index):
            return server.text(f"{index} " + " ".join(prompts(4, seed=index)), max_tokens=4)

        list(clients.map(ask, range(60)))
        metrics = server.settled()
        assert metrics["gsa_prefix_cache_evictions_total"] > 0
        held = metrics["gsa_kv_cache_prefix_pages"]
        assert 0 < held == metrics["gsa_kv_cache_pages_in_use"]
        list(clients.map(ask, range(60, 90)))
        assert server.settled()["gsa_kv_cache_prefix_pages"] == held


def test_an_unknown_chat_template_is_said_so(model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    body = {"messages": [{"role": "user", "content": "x"}]}
    for template, note in ("{{ '[INST]' }}", True), ("{{ '<|im_start|>' }}", False):
        (folder / "chat_template.jinja").write_text(template)
        with Server(folder) as server:
            ids = server.ask("/tokenize", body)["tokens"]
            text = server.ask("/detokenize", {"tokens": ids})["prompt"]
            assert text.startswith("User: x" if note else "<|im_start|>user")
            _, said = server.end()
            assert ("a chat template that is not known here" in said) == note, said
        if note:
            with Server(folder, "--chat-template", "plain") as server:
                assert "not known here" not in server.end()[1]


# Prompts of 60 to 200 bytes around dense_below, read in chunks of 16 beside each other.
def test_texts_around_dense_below(model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["dense_below"] = 128
    (folder / "config.json").write_text(json.dumps(config))
    texts = [" ".join(prompts(8, seed=7))[: 60 + 20 * index] for index in range(8)] * 2
    expected = generated(folder, texts[:8], "--temperature", 0, "-n", 40)
    with Server(folder, "--chunk", 16) as server, ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda text: server.text(text, max_tokens=40), texts))
    assert answers == [expected[index % 8, 0] for index in range(16)]


def test_a_full_queue_says_when_to_come_back(model):
    with Server(model, "--max-batch", 1, "--max-queue", 1) as server:
        body = {"prompt": "the", "max_tokens": 200, "ignore_eos": True}
        with ThreadPoolExecutor(8) as clients:
            def ask(_):
                with server.connect() as connection:
                    connection.request("POST", "/v1/completions", json.dumps(body))
                    response = connection.getresponse()
                    return response.status, response.headers["Retry-After"], response.read()

            answers = list(clients.map(ask, range(8)))
        refused = [answer for answer in answers if answer[0] == 429]
        assert refused and all(int(wait) >= 1 for _, wait, _ in refused)
        assert {status for status, _, _ in answers} == {200, 429}


def test_the_term_signal_lets_texts_end(model):
    with Server(model, "--grace", 300, "--extend", 1) as server:
        result = []
        body = {"ignore_eos": True, "max_tokens": 1500}
        client = threading.Thread(target=lambda: result.append(server.complete("the keeper", **body)))
        client.start()
        for _ in range(3000):
            if server.metrics()["gsa_num_requests_running"] == 1:
                break
            time.sleep(0.01)
        status, errors = server.end(signal.SIGTERM, timeout=300)
        client.join()
        assert status == 0, errors
        assert result[0]["usage"]["completion_tokens"] == 1500
    with Server(model, "--grace", 0, "--extend", 1) as server:
        with server.connect() as connection:
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 10**6, "stream": True,
                                                                      "ignore_eos": True}))  # fmt: skip
            response = connection.getresponse()
            assert response.status == 200
            start = response.read(10)
            assert server.end(signal.SIGINT)[0] == 0
            # The stream comes to its end, with an error before it.
            *_, last, done, rest = (start + response.read()).decode().split("\n\n")
            assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
            assert (done, rest) == ("data: [DONE]", "")


def test_a_server_that_ends_says_so(model):
    body = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with Server(model, "--grace", 300, "--extend", 1) as server, server.connect() as kept, server.connect() as running:
        kept.connect()
        running.request("POST", "/v1/completions", json.dumps(body))
        stream = running.getresponse()
        assert stream.read(10)
        server.process.send_signal(signal.SIGTERM)
        while "ending" not in (line := server.process.stderr.readline()):
            assert line
        for _ in range(600):  # until it has noticed
            kept.request("GET", "/health")
            response = kept.getresponse()
            response.read()
            if response.status == 503:
                break
            time.sleep(0.05)
        # New connections are still taken, new texts are not.
        assert server.ask("/health", status=503)["error"]["type"] == "server_error"
        assert "shutting down" in server.ask("/v1/completions", {"prompt": "x"}, status=503)["error"]["message"]
        assert stream.read().endswith(b"data: [DONE]\n\n")
        assert server.process.wait(300) == 0


def test_a_second_signal_ends_it_at_once(model):
    with Server(model, "--grace", 300, "--extend", 1) as server, server.connect() as running:
        running.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 10**6, "stream": True,
                                                               "ignore_eos": True}))  # fmt: skip
        assert running.getresponse().status == 200
        server.process.send_signal(signal.SIGINT)
        while "ending" not in (line := server.process.stderr.readline()):
            assert line
        assert server.end(signal.SIGTERM)[0] == -signal.SIGTERM


# With streams under way; their clients see that they were cut, and the port is free at once.
def test_a_killed_server_starts_again(model):
    texts, options = prompts(3, seed=13), {"max_tokens": 2000, "ignore_eos": True}
    body = {"temperature": 0, "stream": True, **options}
    with Server(model, "--extend", 1) as server, contextlib.ExitStack() as open_ones:
        streams = []
        for text in texts:
            connection = open_ones.enter_context(server.connect())
            connection.request("POST", "/v1/completions", json.dumps({"prompt": text, **body}))
            streams.append(connection.getresponse())
        begun = [stream.read(1000) for stream in streams]
        port = server.port
        server.process.kill()
        cut = []
        for stream, start in zip(streams, begun, strict=True):
            with pytest.raises((http.client.IncompleteRead, ConnectionResetError)) as broken:
                stream.read()
            cut.append(start + (broken.value.partial if isinstance(broken.value, http.client.IncompleteRead) else b""))
        assert server.process.wait() == -signal.SIGKILL
    with Server(model, "--extend", 1, port=port) as server, ThreadPoolExecutor(3) as clients:
        again = list(clients.map(lambda text: server.text(text, **options), texts))
    for text, seen in zip(again, cut, strict=True):
        assert b"[DONE]" not in seen
        events = [json.loads(event[6:]) for event in seen.decode().split("\n\n")[:-1]]
        beginning = "".join(event["choices"][0]["text"] for event in events)
        assert beginning and text.startswith(beginning)


def test_keys_are_asked_for(model, tmp_path):
    (tmp_path / "keys").write_text("first\n\n  second \r\n")  # as editors leave them
    with Server(model, "--api-key-file", tmp_path / "keys", "--api-key", "third", "--name", "book") as server:
        assert server.ask("/v1/models", status=401)["error"]["code"] == "invalid_api_key"
        for key in "first", "second", "third":
            listed = server.ask("/v1/models", headers={"Authorization": f"Bearer {key}"})
            assert [entry["id"] for entry in listed["data"]] == ["book"]
        for wrong in "Bearer firs", "Bearer firsts", "first", "Bearer ", "Basic first":
            server.ask("/v1/models", status=401, headers={"Authorization": wrong})
        assert server.ask("/health") is not None and server.metrics()


def test_where_the_model_looks(server):
    tokens = server.ask("/tokenize", {"prompt": "the keeper and the lamp are number"})["tokens"]
    look = server.ask("/gsa/look", {"tokens": tokens, "position": 30})
    assert look["position"] == 30 and len(look["layers"]) == 4
    for layer in look["layers"]:
        assert layer["k_t"] == len(layer["positions"]) == len(layer["weights"]) and max(layer["positions"]) <= 30
        assert sum(layer["weights"]) == pytest.approx(1, abs=1e-3) and 0 < layer["kept_mass"] <= 1.0001
    assert server.ask("/gsa/look", {"tokens": tokens, "position": 99}, status=400)["error"]["param"] == "position"
    assert "<html" in server.ask("/")


def test_curl_streams(server):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    body = json.dumps({"prompt": "the keeper", "max_tokens": 5, "temperature": 0, "stream": True})
    done = subprocess.run(["curl", "-sN", f"{server.url}/v1/completions", "-d", body], text=True, capture_output=True,
                          check=True, timeout=60)  # fmt: skip
    assert done.stdout.endswith("data: [DONE]\n\n") and done.stdout.count("data: ") >= 2


@pytest.mark.parametrize("arguments, status, message", [
    (["--port", "70000"], 2, "--port"),
    (["--chat-template", "chatlm"], 2, "--chat-template"),
    (["--host", "no.such.name.invalid"], 1, "no.such.name.invalid"),
    (["--api-key-file", "nowhere"], 1, "nowhere"),
    (["--api-key", "two words"], 2, "--api-key: expected a key of visible ASCII"),
    (["--max-gap", "0"], 2, "--max-gap"),
    (["--cache-limit", 99999999999999999], 2, "--cache-limit"),
    (["--cache-limit", 2**63 - 1], 2, "1 .. 16777216"),
    (["--prefix-cache-limit", "0"], 2, "--prefix-cache-limit"),
    (["--prefix-cache-limit", "5", "--no-prefix-cache"], 2, "--no-prefix-cache"),
    (["--name", "a\nb"], 2, "--name: expected a name of one line, got \"a\\nb\""),
], ids=["port", "template", "host", "keys", "words", "gap", "cache", "huge-cache", "prefixes", "none",
        "name"])  # fmt: skip
def test_mistakes_of_the_command_are_explained(gsa, model, arguments, status, message):
    assert message in gsa.run("serve", model, *arguments, status=status)


# Before the model is loaded, which may take minutes: this one would not load.
def test_a_port_that_is_taken_is_said_so(gsa, model, server, tmp_path):
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    (folder / "model.safetensors").write_bytes(b"")
    assert f"--port: cannot listen on 127.0.0.1:{server.port}" in gsa.run("serve", folder, "--port", server.port, status=1)
    assert "model.safetensors" in gsa.run("serve", folder, "--port", 0, status=1)


# A page of another site may have its name point at this machine, and read what the server answers.
def test_other_names_of_this_machine_are_refused(model, server):
    for host, status in ("evil.example:8000", 403), (f"localhost:{server.port}", 200), ("[::1]", 200):
        server.ask("/metrics", headers={"Host": host}, status=status)
        server.ask("/tokenize", {"prompt": "x"}, headers={"Host": host}, status=status)
    with Server(model, "--origin", "https://model.example") as proxied:
        proxied.ask("/metrics", headers={"Host": "model.example"})
        proxied.ask("/metrics", headers={"Host": "evil.example"}, status=403)
    with Server(model, "--host", "127.0.0.1") as any_name:
        any_name.ask("/metrics", headers={"Host": "evil.example"})


# By the head alone: a body of 32 MiB is neither waited for nor asked for.
def test_who_may_not_is_told_before_the_body(model):
    with Server(model, "--api-key", "sesame") as server:
        for path, key, status in ("v1/completions", "wrong", 401), ("v1/nothing", "sesame", 404), ("health", "", 405):
            with socket.create_connection((server.host, server.port), timeout=60) as raw:
                raw.sendall(f"POST /{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
                            "Content-Length: 30000000\r\nExpect: 100-continue\r\n\r\n".encode())  # fmt: skip
                assert raw.recv(100).startswith(f"HTTP/1.1 {status}".encode())

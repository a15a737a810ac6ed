"""A server that answers what the page asks, by rule: for tests of the page without a model."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "serve" / "core"
LAYERS = 3


def page():
    """The page as the build puts it together."""
    text = (SOURCE / "page.html").read_text(encoding="utf-8")
    for part in ("page.css", "page.js"):
        assert text.count(f"@{part}@\n") == 1
        text = text.replace(f"@{part}@\n", (SOURCE / part).read_text(encoding="utf-8"))
    return text


def look_at(position):
    """Layer n looks at the first token, at position / 2 and at the last n + 1 ones."""
    layers = []
    for n in range(LAYERS):
        positions = sorted({0, position // 2, *range(max(0, position - n), position + 1)})
        weights = [1 / len(positions)] * len(positions)
        layers.append(
            {"k_t": len(positions), "positions": positions, "weights": weights, "kept_mass": 0.9,
             "value_gate": 0.4, "output_gate": 0.6}
        )  # fmt: skip
    return {"position": position, "sparse": True, "layers": layers}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # a connection each: none outlives the server

    def log_message(self, *arguments):
        pass

    def answer(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refused(self):
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.answer(401, {"error": {"message": "wrong API key", "type": "invalid_request_error"}})
            return True
        return False

    def do_GET(self):
        if self.path == "/":
            self.answer(200, page().encode(), "text/html; charset=utf-8")
        elif self.path == "/v1/models":
            if not self.refused():
                self.answer(200, {"object": "list", "data": [{"id": "ruler-of-thumbs", "object": "model"}]})
        else:
            self.answer(404, {"error": {"message": "no such path"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, body))
        if self.refused():
            return
        if self.path == "/detokenize":
            # Word n for token n; 50 and what follows are the words of a stream, which /tokenize knows by other ids.
            assert body["return_token_strs"] is True
            words = [self.word(token) for token in body["tokens"]]
            self.answer(200, {"prompt": "".join(words), "token_strs": words})
        elif self.path == "/tokenize":
            assert body["return_token_strs"] is True
            words = [word + " " for word in body["prompt"].split()]
            self.answer(200, {"count": len(words) + 1, "max_model_len": 4096, "tokens": list(range(len(words) + 1)),
                              "token_strs": ["", *words]})  # fmt: skip
        elif self.path == "/gsa/look":
            if body["position"] == 1:
                self.answer(400, {"error": {"message": "position: expected another, got 1"}})
            else:
                self.answer(200, look_at(body["position"]))
        elif self.path == "/v1/completions":
            self.stream(body)
        else:
            self.answer(404, {"error": {"message": "no such path"}})

    @staticmethod
    def word(token):
        if token >= 50:
            return "übung " if token == 50 else f"word{token - 50} "
        return f"read{token} " if token else ""

    def stream(self, body):
        if body["max_tokens"] == 0:
            self.answer(400, {"error": {"message": "max_tokens: expected at least 1, got 0"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

        def event(data):
            self.wfile.write(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode())
            self.wfile.flush()

        assert body["return_token_ids"] is True
        try:
            event({"choices": [{"index": 0, "text": "", "token_ids": [], "prompt_token_ids": [0, 1, 2, 3]}]})
            for n in range(body["max_tokens"]):
                text = " übung" if n == 0 else f" word{n}"
                # In pieces that cut characters and events in two.
                choice = {"index": 0, "text": text, "token_ids": [50 + n]}
                raw = f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}\n\n".encode()
                at = raw.find("ü".encode()) + 1 if n == 0 else len(raw) - 1
                self.wfile.write(raw[:at])
                self.wfile.flush()
                time.sleep(self.server.pause)
                self.wfile.write(raw[at:])
                self.wfile.flush()
                if body["temperature"] == 2:
                    event({"error": {"message": "the model has no more room", "type": "server_error"}})
                    break
            event({"choices": [{"index": 0, "text": "", "token_ids": [], "finish_reason": "length"}]})
            usage = {"prompt_tokens": 4, "completion_tokens": body["max_tokens"], "total_tokens": 9}
            event({"choices": [], "usage": usage})
            event("[DONE]")
        except (BrokenPipeError, ConnectionResetError):
            self.server.gone.set()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, key=None, pause=0.01):
        super().__init__(("127.0.0.1", 0), Handler)
        self.key, self.pause, self.requests, self.gone = key, pause, [], threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"

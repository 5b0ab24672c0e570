"""A stand-in for llama-server: takes its argv, speaks its HTTP, and misbehaves on request.

Run as `python fake_engine.py [llama-server flags] [--fake-… options]`. Unknown flags are ignored, as the real flags
that do not matter here are. Options:

    --fake-delay S           seconds until /health turns from 503 to 200
    --fake-crash CODE        print the --fake-line texts and exit with CODE before becoming ready (-N = die of signal N)
    --fake-crash-after S     seconds to wait before that
    --fake-line TEXT         a line for the log; may be repeated
    --fake-chatter S         print a line every 0.1 s for S seconds while loading
    --fake-ignore-term       ignore SIGTERM
    --fake-context N         report N tokens a slot, whatever --ctx-size says
    --fake-speculation       report speculation as on
    --fake-generation CODE   answer generations with this status
    --fake-hang-generation   never answer a generation
    --fake-child             start a child process that outlives SIGTERM
    --fake-dump FILE         write environment, arguments and open descriptors as JSON
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--model", default="")
    parser.add_argument("--alias", default="")
    parser.add_argument("--ctx-size", type=int, default=4096)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--embeddings", action="store_true")
    parser.add_argument("--fake-delay", type=float, default=0.0)
    parser.add_argument("--fake-crash", type=int)
    parser.add_argument("--fake-crash-after", type=float, default=0.0)
    parser.add_argument("--fake-line", action="append", default=[])
    parser.add_argument("--fake-chatter", type=float, default=0.0)
    parser.add_argument("--fake-ignore-term", action="store_true")
    parser.add_argument("--fake-context", type=int, default=0)
    parser.add_argument("--fake-speculation", action="store_true")
    parser.add_argument("--fake-generation", type=int, default=200)
    parser.add_argument("--fake-hang-generation", action="store_true")
    parser.add_argument("--fake-child", action="store_true")
    parser.add_argument("--fake-dump", default="")
    return parser.parse_known_args(argv)[0]


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class Engine(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.ready = threading.Event()
        self.key = os.environ.get("LLAMA_API_KEY", "")
        super().__init__((options.host, options.port), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Engine

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Quiet."""

    def send(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refused(self) -> bool:
        if not self.server.ready.is_set():
            self.send(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})
            return True
        public = self.path in {"/health", "/v1/models"}
        if self.server.key and not public and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.send(401, {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}})
            return True
        return False

    def do_GET(self) -> None:
        if self.refused():
            return
        options = self.server.options
        context = options.fake_context or options.ctx_size // options.parallel
        slot = {"n_ctx": context, "speculative": options.fake_speculation, "is_processing": False}
        answers: dict[str, object] = {
            "/health": {"status": "ok"},
            "/v1/models": {"data": [{"id": options.alias or options.model, "object": "model"}]},
            "/props": {
                "default_generation_settings": {"n_ctx": context},
                "total_slots": options.parallel,
                "model_path": options.model,
                "build_info": "b11434-fake",
            },
            "/slots": [{"id": i, **slot} for i in range(options.parallel)],
        }
        self.send(200 if self.path in answers else 404, answers.get(self.path, {"error": {"message": "no such path"}}))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        options = self.server.options
        if self.refused():
            return
        if options.fake_hang_generation:
            time.sleep(3600)
        if options.fake_generation != 200:
            self.send(options.fake_generation, {"error": {"message": "the fake engine was told to fail"}})
        elif self.path == "/v1/embeddings" and options.embeddings:
            self.send(200, {"data": [{"embedding": [0.1, 0.2]}]})
        elif self.path == "/v1/chat/completions" and not options.embeddings:
            self.send(200, {"choices": [{"message": {"role": "assistant", "content": "Hello."}}]})
        else:
            self.send(501, {"error": {"message": "not supported by this server"}})


def die(code: int) -> None:
    if code < 0:
        os.kill(os.getpid(), -code)
        time.sleep(5)
    os._exit(code)


def dump(path: str) -> None:
    links = {}
    for entry in Path("/proc/self/fd").iterdir() if Path("/proc/self/fd").exists() else []:
        try:
            links[entry.name] = str(entry.readlink())
        except OSError:
            continue
    facts = {"env": dict(os.environ), "argv": sys.argv[1:], "fds": links, "sid": os.getsid(0), "pid": os.getpid()}
    Path(path).write_text(json.dumps(facts), encoding="utf-8")


def load(engine: Engine) -> None:
    options = engine.options
    until = time.monotonic() + options.fake_chatter
    while time.monotonic() < until:
        say("0.00.100.000 I load_tensors: still loading")
        time.sleep(0.1)
    time.sleep(options.fake_delay)
    for line in options.fake_line:
        say(line)
    if options.fake_crash is not None:
        time.sleep(options.fake_crash_after)
        die(options.fake_crash)
    engine.ready.set()
    say(f"0.00.187.587 I srv  llama_server: listening on http://{options.host}:{options.port}")


def main() -> None:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.fake_ignore_term else lambda *_: os._exit(0))
    if options.fake_dump:
        dump(options.fake_dump)
    if options.fake_child:
        subprocess.Popen(
            [sys.executable, "-c", "import signal,time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(600)"]
        )
    engine = Engine(options)
    threading.Thread(target=load, args=(engine,), daemon=True).start()
    engine.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()

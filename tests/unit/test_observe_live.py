"""What servers answer: a real llama-server, and servers that answer badly."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gezelctl.config.secrets import Secret
from gezelctl.observe.live import Target, ask_server, read_live
from gezelctl.observe.types import Live

LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
MODELS = b'{"object":"list","data":[{"id":"tiny","aliases":["tiny","small"],"owned_by":"llamacpp"}]}'
PROPS = b'{"default_generation_settings":{"n_ctx":1024},"total_slots":2,"model_path":"/m.gguf","build_info":"b7-abc"}'
SLOTS = (
    b'[{"id":0,"n_ctx":1024,"speculative":true,"is_processing":true},'
    b'{"id":1,"n_ctx":1024,"speculative":true,"is_processing":false}]'
)
Answers = dict[str, tuple[int, bytes]]
GOOD: Answers = {
    "/health": (200, b'{"status":"ok"}'),
    "/v1/models": (200, MODELS),
    "/props": (200, PROPS),
    "/slots": (200, SLOTS),
}
Serve = Callable[[Answers], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ThreadingHTTPServer] = []

    def start(answers: Answers) -> int:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, body = answers.get(self.path, (404, b""))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def target(port: int, engine: str = "llama-cpp", host: str = "127.0.0.1", key: str = "") -> Target:
    return Target("tiny", engine, host, port, Secret(key) if key else None)


@pytest.mark.engine("llama-server", "smollm2")
def test_a_real_server_from_start_to_ready(llama_server: Path, smollm2: Path) -> None:
    port = free_port()
    command = [
        str(llama_server),
        "-m",
        str(smollm2),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "-c",
        "2048",
        "-np",
        "2",
    ]
    process = subprocess.Popen(
        [*command, "--alias", "tiny", "--api-key", "k3y", "--offline"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        seen: list[str] = []
        deadline = time.monotonic() + 60
        while (live := ask_server(target(port, key="k3y"))).health != "Ready" and time.monotonic() < deadline:
            seen.append(live.health)
            time.sleep(0.02)
        assert set(seen) <= {"Unknown", "Loading"}
        assert (live.model_ids, live.model_path) == (("tiny",), str(smollm2))
        assert (live.context_tokens, live.slots, live.slots_busy, live.speculation) == (1024, 2, 0, False)
        without = ask_server(target(port))
        assert without == Live(health="Ready", message="asks for an API key that is not at hand")
    finally:
        process.kill()
        process.wait()


def test_ready(serve: Serve) -> None:
    assert ask_server(target(serve(GOOD))) == Live(
        health="Ready",
        model_ids=("tiny", "small"),
        model_path="/m.gguf",
        context_tokens=1024,
        slots=2,
        slots_busy=1,
        speculation=True,
        build="b7-abc",
    )


def test_mlx_servers_are_asked_for_health_and_models_only(serve: Serve) -> None:
    answers = {name: GOOD[name] for name in ("/health", "/v1/models")}
    assert ask_server(target(serve(answers), "mlx")) == Live(health="Ready", model_ids=("tiny", "small"))


def test_a_wildcard_bind_is_asked_on_loopback(serve: Serve) -> None:
    assert ask_server(target(serve(GOOD), host="0.0.0.0")).health == "Ready"


@pytest.mark.parametrize(
    ("answers", "live"),
    [
        ({"/health": (503, LOADING)}, Live(health="Loading", message="Loading model")),
        ({"/health": (503, b"<html>")}, Live(health="Loading", message="not ready yet")),
        (
            {"/health": (500, b'{"error":{"message":"dead"}}')},
            Live(health="Failed", message="/health answers 500: dead"),
        ),
        (
            {**GOOD, "/props": (401, b"{}"), "/slots": (401, b"{}")},
            Live(
                health="Ready",
                model_ids=("tiny", "small"),
                message="asks for an API key that is not at hand",
            ),
        ),
        ({}, Live(health="Failed", message="/health answers 404")),
        (
            {**GOOD, "/v1/models": (200, b"\xff not json")},
            Live(health="Failed", message="/health says ok, but /v1/models does not answer as an OpenAI server"),
        ),
        (
            {**GOOD, "/slots": (501, b"{}"), "/props": (200, b"[]")},
            Live(health="Ready", model_ids=("tiny", "small")),
        ),
        (
            {**GOOD, "/slots": (501, b"{}")},
            Live(
                health="Ready",
                model_ids=("tiny", "small"),
                model_path="/m.gguf",
                context_tokens=1024,
                slots=2,
                build="b7-abc",
            ),
        ),
    ],
)
def test_answers(answers: Answers, live: Live, serve: Serve) -> None:
    assert ask_server(target(serve(answers))) == live


def test_nobody_there() -> None:
    port = free_port()
    live = ask_server(target(port))
    assert live == Live(health="Unknown", message=f"/health on 127.0.0.1:{port}: Connection refused")


def test_one_that_accepts_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        live = ask_server(target(silent.getsockname()[1]), timeout_s=0.2)
        assert time.monotonic() - started < 1
    assert live == Live(health="Unknown", message="/health did not answer within 0.2 s")


def test_one_that_speaks_another_protocol() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        threading.Thread(target=greet, daemon=True).start()
        live = ask_server(target(other.getsockname()[1]))
    assert live.health == "Unknown"
    assert live.message.endswith("BadStatusLine")


def test_a_hundred_silent_servers_cost_a_few_timeouts(serve: Serve) -> None:
    port = serve(GOOD)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        dead = silent.getsockname()[1]
        targets = [Target(f"s{i}", "llama-cpp", "127.0.0.1", dead if i % 2 else port) for i in range(100)]
        started = time.monotonic()
        found = read_live(targets, timeout_s=0.2)
        took = time.monotonic() - started
    assert [name for name, live in found.items() if live.health == "Ready"] == [f"s{i}" for i in range(0, 100, 2)]
    assert list(found) == [t.name for t in targets]
    assert took < 50 * 0.2 / 4  # one after the other they would take 50 timeouts


def test_no_servers() -> None:
    assert read_live([]) == {}

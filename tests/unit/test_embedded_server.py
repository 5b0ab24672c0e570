"""The embedded server as a process: signals, exit codes, a taken port, nothing left behind."""

from __future__ import annotations

import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from gezelctl.engines.loglines import classify
from gezelctl.engines.types import LaunchSpec
from tests.serving import free_port, started

pytestmark = [pytest.mark.engine("embedded"), pytest.mark.engine("smollm2")]


def spec(model: Path, port: int, *more: str) -> LaunchSpec:
    argv = ("-m", "gezelctl.embedded", "--model", str(model), "--port", str(port), "--ctx-size", "2048", *more)
    return LaunchSpec("chat", "llama-cpp", "cpu", sys.executable, argv, "127.0.0.1", port)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_fast(sent: signal.Signals, smollm2: Path, tmp_path: Path) -> None:
    with started(spec(smollm2, free_port()), tmp_path) as served:
        began = time.monotonic()
        assert served.stop(sent) == 0
        assert time.monotonic() - began < 2
        assert not [line for line in served.lines if "Traceback" in line]


def test_a_signal_ends_it_while_it_generates(smollm2: Path, tmp_path: Path) -> None:
    with started(spec(smollm2, free_port()), tmp_path) as served:
        body = {"messages": [{"role": "user", "content": "Count to a thousand."}], "max_tokens": 1500, "stream": True}
        with served.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            next(answer.iter_lines())
            began = time.monotonic()
            assert served.stop() == 0
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_load_ends_it_at_once(sent: signal.Signals, smollm2: Path, tmp_path: Path) -> None:
    with started(spec(smollm2, free_port()), tmp_path, ready=False) as served:
        deadline = time.monotonic() + 30
        while not any("loading model" in line for line in served.lines) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert served.stop(sent) in {-sent, 0}
        assert not [line for line in served.lines if "Traceback" in line]


def test_kill_leaves_the_port_free(smollm2: Path, tmp_path: Path) -> None:
    port = free_port()
    with started(spec(smollm2, port), tmp_path) as served:
        assert served.stop(signal.SIGKILL) == -signal.SIGKILL
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_taken_port_is_named(smollm2: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(spec(smollm2, port), tmp_path, ready=False) as served:
            assert served.process.wait(60) == 1
            failure = classify(served.lines, 1)
    assert failure.code == "PORT"
    assert str(port) in failure.summary


def test_loading_is_told_before_ready(smollm2: Path, tmp_path: Path) -> None:
    """The port is bound before the model is loaded, as by llama-server; health is 503 until then."""
    with started(spec(smollm2, free_port()), tmp_path) as served:
        assert served.ask("/health") == {"status": "ok"}
        assert any("listening on" in line for line in served.lines)

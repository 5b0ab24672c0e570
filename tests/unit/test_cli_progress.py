"""Progress in its four modes, with a clock that the test turns."""

from __future__ import annotations

import io
import json
import threading

import pytest

from gezelctl.cli.output import Output
from gezelctl.cli.progress import Progress, choose_mode
from gezelctl.cli.terminal import Stream
from gezelctl.execute.report import Reporter

MIB = 1 << 20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(mode: str) -> tuple[Progress, io.StringIO, Clock]:
    raw, clock = io.StringIO(), Clock()
    progress = Progress(Stream(raw, color=False), mode, clock=clock)
    _: Reporter = progress
    return progress, raw, clock


@pytest.mark.parametrize(
    ("choice", "terminal", "environ", "quiet", "mode"),
    [
        ("auto", True, {}, False, "tty"),
        ("auto", False, {}, False, "plain"),
        ("auto", True, {"CI": "true"}, False, "plain"),
        ("auto", True, {"CI": "false"}, False, "tty"),
        ("auto", True, {"NO_COLOR": "1"}, False, "plain"),
        ("auto", True, {"TERM": "dumb"}, False, "plain"),
        ("auto", True, {}, True, "none"),
        ("json", False, {}, True, "json"),
        ("tty", False, {"CI": "1"}, False, "tty"),
    ],
)
def test_mode(choice: str, terminal: bool, environ: dict[str, str], quiet: bool, mode: str) -> None:
    stream = Stream(Terminal() if terminal else io.StringIO(), color=False)
    assert choose_mode(choice, stream, environ, quiet=quiet) == mode


def test_plain_is_a_line_every_tenth() -> None:
    progress, raw, clock = make("plain")
    progress.on_step("payload.x", "started", "downloading 100.0 MiB")
    for done in range(101):
        clock.now += 0.05
        progress.on_bytes("payload.x", done * MIB, 100 * MIB)
    progress.on_step("payload.x", "done", "verified")
    lines = raw.getvalue().splitlines()
    assert len(lines) == 12
    assert lines[1] == "payload.x: 10.0 of 100.0 MiB, 20.0 MiB/s, 4 s left"
    assert lines[-2] == "payload.x: 100.0 of 100.0 MiB, 20.0 MiB/s"
    assert lines[-1] == "payload.x: done: verified"


def test_plain_speaks_every_ten_seconds_of_a_slow_transfer() -> None:
    progress, raw, clock = make("plain")
    for second in range(61):
        clock.now = float(second)
        progress.on_bytes("payload.x", second, 10**9)
    assert len(raw.getvalue().splitlines()) == 6


def test_an_unknown_total_shows_no_eta_and_no_flood() -> None:
    progress, raw, clock = make("plain")
    for tick in range(200):
        clock.now = tick / 10
        progress.on_bytes("payload.x", tick * MIB, 0)
    assert raw.getvalue().splitlines() == ["payload.x: 100.0 MiB, 10.0 MiB/s"]


def test_the_live_line_is_drawn_ten_times_a_second_at_most() -> None:
    progress, raw, clock = make("tty")
    for tick in range(1000):
        clock.now = tick / 1000
        progress.on_bytes("payload.x", tick, 10**6)
    assert 8 <= raw.getvalue().count("\r\x1b[2K") <= 10
    progress.close()
    assert raw.getvalue().endswith("\r\x1b[2K")


def test_a_step_line_stands_above_the_live_line() -> None:
    progress, raw, clock = make("tty")
    clock.now = 1.0
    progress.on_bytes("payload.x", 5, 10)
    progress.on_step("server.a", "note", "loading")
    assert raw.getvalue() == "\r\x1b[2Kpayload.x: 5 of 10 B\r\x1b[2Kserver.a: loading\n\r\x1b[2Kpayload.x: 5 of 10 B"


def test_json_lines() -> None:
    progress, raw, clock = make("json")
    progress.on_step("payload.x", "started", "go")
    for done in range(11):
        clock.now += 1
        progress.on_bytes("payload.x", done, 10)
    progress.on_step("payload.x", "failed", "no\nspace \x1b[2J")
    events = [json.loads(line) for line in raw.getvalue().splitlines()]
    assert events[0] == {"event": "step", "address": "payload.x", "state": "started", "message": "go"}
    assert events[-1]["state"] == "failed"
    assert [e["done"] for e in events[1:-1]] == list(range(1, 11))


def test_none_says_nothing() -> None:
    progress, raw, _ = make("none")
    progress.on_step("payload.x", "failed", "x")
    progress.on_bytes("payload.x", 1, 1)
    assert raw.getvalue() == ""


def test_a_restarted_transfer_does_not_show_a_negative_rate() -> None:
    progress, raw, clock = make("plain")
    for done in (0, 50, 100, 0, 50, 100):
        clock.now += 1
        progress.on_bytes("payload.x", done * MIB, 100 * MIB)
    assert "-" not in raw.getvalue()


def test_messages_cannot_steer_the_terminal() -> None:
    progress, raw, _ = make("plain")
    progress.on_step("server.a", "failed", "\x1b[2J")
    assert raw.getvalue() == "server.a: FAILED: \\x1b[2J\n"


def test_many_threads_give_whole_lines() -> None:
    progress, raw, _ = make("plain")

    def work(name: str) -> None:
        for _ in range(200):
            progress.on_step(name, "note", "x" * 50)

    threads = [threading.Thread(target=work, args=(f"server.{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = raw.getvalue().splitlines()
    assert len(lines) == 800
    assert {len(line) for line in lines} == {len("server.0: ") + 50}


def test_output_makes_the_reporter_that_the_flags_ask_for() -> None:
    output = Output(progress="json", stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO(), environ={})
    assert output.progress().mode == "json"

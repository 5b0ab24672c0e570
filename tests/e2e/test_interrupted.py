"""Apply that is stopped, killed or run twice at once: whatever happened, applying again converges."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time

import psutil
import pytest

from tests.e2e.lab import FAKE_BACKEND, Lab, alive, ask, kill, wait_for
from tests.hubserver import Fault, running_hub


def _settled(lab: Lab, *servers: str) -> None:
    """Apply again: everything serves, one process each, and nothing is left to do."""
    lab.behave("")
    done = lab.run("apply", "-f", "models.yaml", "--yes")
    assert done.code == 0, done.err
    assert lab.idle()
    rows = lab.status()
    for name in servers:
        assert (rows[name]["sync"], rows[name]["health"]) == ("Synced", "Ready")
        assert rows[name]["pid"] == lab.pid(name)
        assert ask(lab.ports[name], "Hello")[0] == 200
    assert len(lab.processes()) == len(servers), "no second process of a server"
    assert not list((lab.root / "store").rglob("*.partial"))


def _applying(lab: Lab, *more: str) -> subprocess.Popen[str]:
    return lab.start("apply", "-f", "models.yaml", "--yes", *more)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_first_signal_finishes_the_step_and_starts_nothing_more(lab: Lab, number: signal.Signals, code: int) -> None:
    lab.fake("alpha", "beta", options="--fake-delay 1")
    applying = _applying(lab)
    wait_for(lambda: lab.pid("alpha"), "the first server to start")
    applying.send_signal(number)
    done = lab.end(applying)
    assert done.code == code
    assert f"{number.name}: finishing the current step; once more stops it now" in done.err
    assert "server.alpha: done: serving" in done.err
    assert "server.beta: skipped: stopped by a signal" in done.err
    assert lab.record("beta") == {}
    assert lab.status()["alpha"]["health"] == "Ready"
    assert lab.ok("lock").out == "free\n"

    pid = lab.pid("alpha")
    _settled(lab, "alpha", "beta")
    assert lab.pid("alpha") == pid, "what was finished is not done again"


def test_second_signal_stops_now_and_the_next_apply_proves_what_runs(lab: Lab) -> None:
    lab.fake("alpha", "beta", options="--fake-delay 2")
    applying = _applying(lab)
    wait_for(lambda: lab.pid("alpha"), "the first server to start")
    begun = time.monotonic()
    applying.send_signal(signal.SIGINT)
    time.sleep(0.3)
    applying.send_signal(signal.SIGINT)
    done = lab.end(applying)
    assert time.monotonic() - begun < 1.8
    assert done.code == 130
    assert "failed: server.alpha: stopped in the middle: its state is unknown" in done.err
    pid = lab.pid("alpha")
    assert alive(pid)
    assert lab.status()["alpha"]["health"] in {"Starting", "Loading"}
    _settled(lab, "alpha", "beta")
    assert lab.pid("alpha") == pid


def test_interrupt_while_waiting_for_an_answer(lab: Lab) -> None:
    """Before anything is done, Ctrl-C just leaves."""
    lab.fake("chat")
    (lab.root / "fake-llama-server").write_text("#!/bin/sh\nexec sleep 30\n")
    applying = _applying(lab)
    wait_for(lambda: any(p.name() == "sleep" for p in lab.processes()), "the probe to hang")
    time.sleep(0.2)
    applying.send_signal(signal.SIGINT)
    done = lab.end(applying)
    assert done.code == 130
    assert done.err.strip() == "interrupted"
    assert not lab.processes(), "the probe goes with it"
    lab.fake_engine()
    _settled(lab, "chat")


def test_killed_right_after_the_spawn(lab: Lab) -> None:
    """The server runs, unproven: the next apply proves that very process instead of loading the model again."""
    lab.fake("chat", options="--fake-delay 1.5")
    applying = _applying(lab)
    wait_for(lambda: lab.pid("chat"), "the server to start")
    kill(applying)
    assert lab.ok("lock").out == "free\n", "the kernel drops the lock"
    pid = lab.pid("chat")
    assert not lab.record("chat").get("proved", False)
    plan = lab.ok("plan").out
    assert "~ server.chat" in plan
    assert "not yet proven to serve" in plan
    _settled(lab, "chat")
    assert lab.pid("chat") == pid
    assert lab.record("chat")["proved"] is True


def test_killed_between_spawn_and_record(lab: Lab) -> None:
    """The record has the token but no pid: the process is found by the token."""
    lab.fake("chat", options="--fake-delay 1")
    applying = _applying(lab)
    wait_for(lambda: lab.pid("chat"), "the server to start")
    kill(applying)
    record = lab.record("chat")
    pid = record.pop("pid")
    del record["processStarted"]
    (lab.state / "runs/chat.json").write_text(json.dumps(record))
    assert lab.status()["chat"]["pid"] == pid
    _settled(lab, "chat")
    assert lab.pid("chat") == pid


def test_killed_before_the_spawn(lab: Lab) -> None:
    """The record was written, but nothing was started."""
    lab.fake("chat")
    lab.apply()
    record = lab.record("chat")
    lab.ok("destroy", "-f", "models.yaml", "--yes")
    for key in ("pid", "processStarted", "proved", "loadSeconds"):
        record.pop(key, None)
    (lab.state / "runs/chat.json").write_text(json.dumps(record))
    assert "its start was interrupted" in lab.ok("plan").out
    _settled(lab, "chat")


def test_killed_after_the_spawn_and_the_server_died_too(lab: Lab) -> None:
    lab.fake("chat", options="--fake-delay 5")
    applying = _applying(lab)
    wait_for(lambda: lab.pid("chat"), "the server to start")
    kill(applying)
    psutil.Process(lab.pid("chat")).kill()
    wait_for(lambda: not lab.processes(), "the server to go")
    assert lab.status()["chat"]["health"] == "Failed"
    _settled(lab, "chat")


def test_killed_in_the_middle_of_a_download(lab: Lab) -> None:
    lab.fake_engine()
    with running_hub() as hub:
        data = lab.gguf().read_bytes()
        digest = hub.add("lab/chat", "tiny.gguf", data)
        head = lab.fake_head(f"sources: {{huggingface: {{endpoint: {hub.endpoint}}}}}\n")
        source = f"huggingface: lab/chat, filename: tiny.gguf, sha256: {digest}"
        lab.write(lab.fake_server("chat", source), backends=FAKE_BACKEND, head=head)
        hub.fault = Fault("stall", after=2000)
        applying = _applying(lab, "--offline")
        partial = lab.root / "store/models/llama-cpp/chat/tiny.gguf.partial"
        wait_for(partial.exists, "the download to begin")
        kill(applying)
        hub.fault = None
        hub.released.set()
        assert not (partial.parent / "manifest.json").exists()
        _settled(lab, "chat")
        assert (partial.parent / "tiny.gguf").read_bytes() == data


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_a_random_moment(lab: Lab, seed: int) -> None:
    """Three times in a row, anywhere between reading the file and proving the last server."""
    lab.fake("alpha", "beta", options="--fake-delay 0.1")
    luck = random.Random(seed)
    for _ in range(3):
        applying = _applying(lab)
        time.sleep(luck.uniform(0.15, 1.0))
        kill(applying)
    _settled(lab, "alpha", "beta")


@pytest.mark.parametrize("seed", range(2))
def test_restart_killed_at_a_random_moment(lab: Lab, seed: int) -> None:
    """The old process is being stopped, or the new one started: never two of them, never one that is forgotten."""
    lab.fake("alpha")
    lab.apply()
    luck = random.Random(seed)
    for _ in range(3):
        applying = _applying(lab, "--restart", "alpha")
        time.sleep(luck.uniform(0.2, 0.6))
        kill(applying)
        assert len(lab.processes()) <= 1
    _settled(lab, "alpha")


def test_second_apply_waits_for_the_first_and_finds_nothing_to_do(lab: Lab) -> None:
    lab.fake("chat", options="--fake-delay 1.5")
    first = _applying(lab)
    wait_for(lambda: lab.pid("chat"), "the first apply to hold the lock")
    holder = lab.ok("lock").out
    assert holder.startswith("held: apply by ")
    assert f"pid {first.pid}" in holder
    second = _applying(lab)
    done = lab.end(first)
    assert done.code == 0
    waited = lab.end(second)
    assert waited.code == 0, waited.err
    assert f"waiting for the lock: apply by {holder.split('by ')[1].split(',')[0]}, pid {first.pid}" in waited.err
    assert "No changes:" in waited.out
    assert len(lab.processes()) == 1


def test_second_apply_gives_up_after_the_lock_timeout(lab: Lab) -> None:
    lab.fake("chat", options="--fake-delay 3")
    first = _applying(lab)
    wait_for(lambda: lab.pid("chat"), "the first apply to hold the lock")
    for timeout in ("0", "1s"):
        begun = time.monotonic()
        done = lab.run("apply", "-f", "models.yaml", "--yes", "--lock-timeout", timeout)
        assert done.code == 6
        assert "stack lab is locked: apply by " in done.err
        assert f"pid {first.pid}" in done.err
        assert "--lock-timeout" in done.err
        assert time.monotonic() - begun < 2.5
    assert lab.run("plan").code == 0, "reading needs no lock"
    assert lab.end(first).code == 0


def test_a_server_outlives_its_apply_and_holds_no_lock(lab: Lab) -> None:
    lab.fake("chat")
    lab.apply()
    process = psutil.Process(lab.pid("chat"))
    assert process.ppid() != 0
    assert not [f.path for f in process.open_files() if f.path.startswith(str(lab.state)) and "lock" in f.path]
    assert lab.ok("lock").out == "free\n"

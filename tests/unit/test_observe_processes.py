"""Which processes are ours, and who holds a port: with real processes and real sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from gezelctl.observe.ports import mask_command, port_holders
from gezelctl.observe.processes import (
    SERVER_VARIABLE,
    STACK_VARIABLE,
    TOKEN_VARIABLE,
    ProcessState,
    command_line,
    find_by_token,
    process_identity,
    process_state,
    resident_bytes,
    started_as,
)
from gezelctl.observe.sockdiag import listeners, read_table
from gezelctl.store.types import RunRecord

TOKEN = "0123456789abcdef0123456789abcdef"
LISTEN = """
import socket, sys, time
s = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print(s.getsockname()[1], flush=True)
time.sleep(60)
"""
Spawn = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, token: str = "", more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        env = {**os.environ, **({TOKEN_VARIABLE: token} if token else {}), **(more or {})}
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def record(pid: int, started: float, token: str = TOKEN) -> RunRecord:
    return RunRecord(server="tiny", token=token, launch=msgspec.Raw(b"{}"), pid=pid, process_started=started)


def test_start_time_and_token(spawn: Spawn) -> None:
    before = time.time()
    process = spawn("sleep", "60", token=TOKEN)
    identity = process_identity(process.pid)
    assert identity is not None
    assert identity.token == TOKEN
    assert abs(identity.started - before) < 2


def test_a_process_without_token_has_none(spawn: Spawn) -> None:
    identity = process_identity(spawn("sleep", "60").pid)
    assert identity is not None
    assert identity.token == ""


def test_the_token_is_there_as_soon_as_the_start_returns(spawn: Spawn) -> None:
    for _ in range(30):
        identity = process_identity(spawn("sleep", "60", token=TOKEN).pid)
        assert identity is not None
        assert identity.token == TOKEN


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 5])
def test_no_process(pid: int) -> None:
    assert process_identity(pid) is None
    assert command_line(2**22 + 5) == ()
    assert resident_bytes(2**22 + 5) == 0


def test_a_server_without_a_record_is_still_known_for_one(spawn: Spawn) -> None:
    names = {STACK_VARIABLE: "lab", SERVER_VARIABLE: "tiny"}
    process = spawn("sleep", "60", token=TOKEN, more=names)
    assert process_identity(process.pid), "waits until its environment is there"
    assert started_as(process.pid) == "server.tiny of stack lab"
    assert started_as(spawn("sleep", "60", more=names).pid) == "", "only with a token"
    assert started_as(spawn("sleep", "60", token=TOKEN, more={**names, STACK_VARIABLE: "a b"}).pid) == ""
    assert started_as(os.getpid()) == ""


def test_states(spawn: Spawn) -> None:
    process = spawn("sleep", "60", token=TOKEN)
    identity = process_identity(process.pid)
    assert identity is not None
    ours = record(process.pid, identity.started)
    assert process_state(None) == ProcessState("none")
    assert process_state(ours) == ProcessState("running", process.pid)
    assert process_state(record(process.pid, identity.started + 1.5)) == ProcessState("running", process.pid)
    assert process_state(record(process.pid, identity.started - 500)) == ProcessState("unproven", process.pid)
    assert process_state(record(process.pid, identity.started, "other")) == ProcessState("unproven", process.pid)
    assert process_state(record(process.pid, identity.started - 500, "other")) == ProcessState("gone")
    process.kill()
    deadline = time.monotonic() + 5
    while process_state(ours).state != "gone" and time.monotonic() < deadline:
        time.sleep(0.01)
    # not waited for yet, so this is a zombie: nothing of it serves
    assert process.returncode is None
    assert process_state(ours) == ProcessState("gone")
    process.wait()
    assert process_state(ours) == ProcessState("gone")


def test_a_start_that_was_interrupted_is_found_by_its_token(spawn: Spawn) -> None:
    token = os.urandom(16).hex()
    assert process_state(record(0, 0.0, token)) == ProcessState("gone")
    process = spawn("sleep", "60", token=token)
    assert find_by_token(token) == process.pid
    assert process_state(record(0, 0.0, token)) == ProcessState("running", process.pid)
    assert find_by_token("") == 0


def test_resident_bytes_and_command_line(spawn: Spawn) -> None:
    process = spawn(sys.executable, "-c", "x = b'x' * 50_000_000; print(1, flush=True); import time; time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    assert 50_000_000 < resident_bytes(process.pid) < 200_000_000
    assert command_line(process.pid)[:2] == (sys.executable, "-c")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_child_that_listens_is_named(host: str, spawn: Spawn) -> None:
    process = spawn(sys.executable, "-c", LISTEN, host, "--api-key", "planted-secret")
    assert process.stdout is not None
    port = int(process.stdout.readline())
    (holder,) = port_holders([port, port + 1 if port < 65535 else 1], {})
    assert (holder.port, holder.host, holder.pid, holder.server) == (port, host, process.pid, "")
    assert sys.executable in holder.command
    assert "planted-secret" not in holder.command
    (ours,) = port_holders([port], {process.pid: "tiny"})
    assert ours.server == "tiny"


def test_only_listeners_on_wanted_ports_count() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            peer = client.getsockname()[1]
            assert [h.pid for h in port_holders([port, peer], {})] == [os.getpid()]
        assert port_holders([], {}) == ()
    assert [h for h in port_holders([port], {}) if h.pid == os.getpid()] == []


def test_one_process_on_both_families_is_two_holders() -> None:
    with socket.create_server(("127.0.0.1", 0)) as four:
        port = four.getsockname()[1]
        with socket.create_server(("::1", port), family=socket.AF_INET6):
            assert [(h.host, h.pid) for h in port_holders([port], {})] == [
                ("127.0.0.1", os.getpid()),
                ("::1", os.getpid()),
            ]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/net")
def test_the_kernels_two_answers_agree() -> None:
    with socket.create_server(("127.0.0.1", 0)) as four, socket.create_server(("::", 0), family=socket.AF_INET6) as six:
        mine = {four.getsockname()[1], six.getsockname()[1]}
        asked = {item for item in listeners() if item.port in mine}
        tables = [*read_table(Path("/proc/net/tcp")), *read_table(Path("/proc/net/tcp6"))]
        assert asked == {item for item in tables if item.port in mine}
        assert len(asked) == 2


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["llama-server", "--api-key", "s3cret", "--port", "1"], "llama-server --api-key *** --port 1"),
        (["llama-server", "--api-key=s3cret"], "llama-server --api-key=***"),
        (["llama-server", "-hft", "s3cret"], "llama-server -hft ***"),
        (["llama-server", "--hf-token", "s3cret"], "llama-server --hf-token ***"),
        (["llama-server", "--api-key-file", "/run/key"], "llama-server --api-key-file /run/key"),
        (["x", "hf_abcdefghijklmnopqrstuv"], "x ***"),
        (["x", "https://user:s3cret@host/"], "x https://***@host/"),
        (["x", "--api-key"], "x --api-key"),
        (["x", "a\nb\x1b[31m"], "x a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31m"),
        ([], ""),
    ],
)
def test_commands_are_shown_without_secrets(arguments: list[str], shown: str) -> None:
    assert mask_command(arguments) == shown


def test_long_commands_are_cut() -> None:
    assert len(mask_command(["word"] * 500)) == 120

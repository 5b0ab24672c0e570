"""Starting, knowing and stopping real processes. What is not proven ours is never signalled."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gezelctl.config.secrets import Secret, secret_mac
from gezelctl.engines.types import ConfigFile, LaunchSpec, SecretEnv
from gezelctl.errors import EngineError, RefusedError
from gezelctl.execute.ports import port_is_free, require_port
from gezelctl.execute.process import Child, server_environment, start, stop
from gezelctl.observe.processes import process_state
from gezelctl.store.layout import Paths, UnsafePathError
from gezelctl.store.lock import StackLock
from gezelctl.store.records import hmac_key, read_record
from tests.executing import free_port, launch, make_paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = make_paths(tmp_path)
    found.state.mkdir(parents=True)
    return found


class Starter:
    """Starts servers and kills at the end whatever of them is left."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.children: list[Child] = []

    def __call__(
        self, spec: LaunchSpec, *, secrets: Mapping[str, Secret] | None = None, env: Mapping[str, str] | None = None
    ) -> Child:
        child = start(
            self.paths,
            spec,
            stack="lab",
            secrets=secrets or {},
            parent_env=os.environ if env is None else env,
            now=datetime.now(UTC),
            plan_digest="p" * 64,
        )
        self.children.append(child)
        return child


@pytest.fixture
def starter(paths: Paths) -> Iterator[Starter]:
    made = Starter(paths)
    yield made
    for child in made.children:
        if child.process.returncode is None:
            child.process.kill()
            child.process.wait()


def listening(port: int, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail("the server does not listen")


def dumped(path: Path) -> dict[str, Any]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            facts: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            time.sleep(0.02)
        else:
            return facts
    pytest.fail("the server wrote nothing")


def test_a_server_is_recorded_known_and_stopped(paths: Paths, starter: Starter) -> None:
    spec = launch()
    child = starter(spec)
    record = read_record(paths, "chat")
    assert record is not None
    assert (record.pid, record.token) == (child.record.pid, child.record.token)
    assert record.pid == child.process.pid
    assert record.plan_digest == "p" * 64
    assert process_state(record) == ("running", record.pid)
    listening(spec.port)
    assert stop(record, spec) == "stopped"
    assert process_state(record).state == "gone"
    assert port_is_free("127.0.0.1", spec.port)
    assert stop(record, spec) == "gone", "stopping twice is no fault"


def test_the_environment_is_clean_and_complete(paths: Paths, starter: Starter, tmp_path: Path) -> None:
    parent = {
        **os.environ,
        "LLAMA_ARG_CTX_SIZE": "1", "LLAMA_API_KEY": "planted-1", "HF_TOKEN": "planted-2", "MY_SECRET": "planted-3",
        "AWS_SECRET_ACCESS_KEY": "planted-4", "GGML_SCHED_DEBUG": "2", "CUDA_VISIBLE_DEVICES": "1", "LANG": "C.UTF-8",
    }  # fmt: skip
    spec = replace(launch("--fake-dump", str(tmp_path / "dump")), env={"MY_FLAG": "on"})
    child = starter(spec, secrets={"LLAMA_API_KEY": Secret("the-key")}, env=parent)
    env = dumped(tmp_path / "dump")["env"]
    assert "planted" not in json.dumps(env)
    assert {"LLAMA_ARG_CTX_SIZE", "GGML_SCHED_DEBUG"}.isdisjoint(env)
    assert env["LLAMA_API_KEY"] == "the-key"
    assert (env["HF_HUB_OFFLINE"], env["GEZELCTL_STACK"], env["GEZELCTL_SERVER"]) == ("1", "lab", "chat")
    assert env["GEZELCTL_TOKEN"] == child.record.token
    assert (env["MY_FLAG"], env["CUDA_VISIBLE_DEVICES"], env["LANG"]) == ("on", "1", "C.UTF-8")
    assert env["PATH"] == os.environ["PATH"]


def test_the_secret_stays_out_of_everything_but_the_environment(paths: Paths, starter: Starter) -> None:
    spec = launch(secret=SecretEnv("LLAMA_API_KEY", from_env="CHAT_KEY"))
    secret = Secret("planted-value")
    child = starter(spec, secrets={"LLAMA_API_KEY": secret})
    for file in (p for p in paths.state.rglob("*") if p.is_file()):
        assert b"planted-value" not in file.read_bytes(), file
    assert child.record.secret_macs == {"LLAMA_API_KEY": secret_mac(secret, hmac_key(paths))}


def test_libraries_beside_the_program_are_found(tmp_path: Path) -> None:
    (tmp_path / "llama-server").write_text("")
    spec = replace(launch(), program=str(tmp_path / "llama-server"))
    parent = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib"}
    assert server_environment(spec, "t", "lab", {}, parent)["LD_LIBRARY_PATH"] == "/opt/lib"
    (tmp_path / "libggml.so.0").write_text("")
    env = server_environment(spec, "t", "lab", {}, parent)
    assert (env["PATH"], env["LD_LIBRARY_PATH"]) == (f"{tmp_path}:/usr/bin", f"{tmp_path}:/opt/lib")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_server_stands_alone_and_holds_no_lock(paths: Paths, starter: Starter, tmp_path: Path) -> None:
    spec = launch("--fake-dump", str(tmp_path / "dump"))
    with StackLock(paths, "apply"):
        child = starter(spec)
        facts = dumped(tmp_path / "dump")
    with StackLock(paths, "apply", timeout_s=0):
        pass
    assert facts["sid"] == facts["pid"] == child.process.pid, "its own session"
    assert facts["fds"]["0"] == "/dev/null"
    assert facts["fds"]["1"] == facts["fds"]["2"] == str(paths.log("chat"))
    assert not [path for path in facts["fds"].values() if path.endswith("/lock")]


def test_a_server_that_ignores_sigterm_is_killed_after_the_grace(starter: Starter) -> None:
    spec = launch("--fake-ignore-term")
    child = starter(spec)
    listening(spec.port)
    begun = time.monotonic()
    assert stop(child.record, spec, grace_s=0.5) == "killed"
    assert 0.5 <= time.monotonic() - begun < 5
    assert port_is_free("127.0.0.1", spec.port)


def test_what_a_server_started_goes_with_it(starter: Starter) -> None:
    spec = launch("--fake-child")
    child = starter(spec)
    listening(spec.port)
    assert stop(child.record, spec, grace_s=2) == "stopped"
    assert process_state(replace(child.record, pid=0)).state == "gone", "nobody carries the token any more"


def test_a_process_that_only_has_the_pid_is_not_signalled(paths: Paths, starter: Starter) -> None:
    """A pid that was given to another process: neither start time nor token agree, so the server is gone."""
    spec = launch()
    child = starter(spec)
    listening(spec.port)
    stop(child.record, spec)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        reused = replace(child.record, pid=other.pid, process_started=child.record.process_started - 100)
        assert stop(reused, spec) == "gone"
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("lie", [{"token": "0" * 32}, {"process_started": 1.0}])
def test_half_a_proof_is_refused_and_not_signalled(starter: Starter, lie: dict[str, Any]) -> None:
    spec = launch()
    child = starter(spec)
    listening(spec.port)
    with pytest.raises(RefusedError) as caught:
        stop(replace(child.record, **lie), spec)
    assert caught.value.code == "UNPROVEN"
    assert f"pid {child.process.pid}" in caught.value.message
    assert child.process.poll() is None


def test_a_record_from_before_the_spawn_finds_its_process(paths: Paths, starter: Starter) -> None:
    """gezelctl may be killed between the spawn and the second write of the record."""
    spec = launch("--fake-child")
    child = starter(spec)
    listening(spec.port)
    early = replace(child.record, pid=0, process_started=0.0)
    assert process_state(early).state == "running"
    assert stop(early, spec, grace_s=2) in {"stopped", "killed"}
    assert child.process.wait(5) is not None
    assert port_is_free("127.0.0.1", spec.port)


def test_a_foreign_process_on_the_port_is_named(paths: Paths, starter: Starter) -> None:
    spec = launch()
    code = f"import socket,time\ns = socket.create_server(('127.0.0.1', {spec.port}))\ntime.sleep(60)"
    foreign = subprocess.Popen([sys.executable, "-c", code])
    try:
        listening(spec.port)
        with pytest.raises(RefusedError) as caught:
            starter(spec)
        assert caught.value.code == "PORT_IN_USE"
        assert f"port {spec.port} is in use by pid {foreign.pid} ({sys.executable}" in caught.value.message
        assert read_record(paths, "chat") is None
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_wildcard_holder_takes_the_exact_address_too(host: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as holder:
        port = holder.getsockname()[1]
        assert not port_is_free(host, port)
        with pytest.raises(RefusedError, match=f"pid {os.getpid()}"):
            require_port(host, port)
    assert port_is_free(host, port)


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(EngineError) as caught:
        port_is_free("192.0.2.1", free_port())
    assert caught.value.code == "BAD_HOST"


def test_a_program_that_cannot_run_leaves_no_record(paths: Paths, starter: Starter, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a program")
    for program, code in ((tmp_path / "gone", "ENGINE_MISSING"), (text, "ENGINE_NOT_EXECUTABLE")):
        with pytest.raises(EngineError) as caught:
            starter(replace(launch(), program=str(program)))
        assert caught.value.code == code
        assert str(program) in caught.value.message
        assert read_record(paths, "chat") is None


def test_a_configuration_is_written_in_its_own_place_only(paths: Paths, starter: Starter, tmp_path: Path) -> None:
    own = ConfigFile(str(paths.config("chat")), '{"a": 1}\n')
    starter(replace(launch(), config_files=(own,)))
    assert paths.config("chat").read_text() == '{"a": 1}\n'
    evil = ConfigFile(str(tmp_path / "evil"), "x\n")
    with pytest.raises(UnsafePathError):
        starter(replace(launch(name="other"), config_files=(evil,)))
    assert not (tmp_path / "evil").exists()


def test_saved_slots_are_for_nobody_else(paths: Paths, starter: Starter) -> None:
    slots = paths.slots("chat")
    starter(launch("chat", "--slot-save-path", f"{slots}/"))
    assert (slots.is_dir(), slots.stat().st_mode & 0o077) == (True, 0)


def test_a_large_log_is_rotated_at_the_start_and_the_offset_marks_this_start(paths: Paths, starter: Starter) -> None:
    log = paths.log("chat")
    log.parent.mkdir()
    log.write_bytes(b"old line\n")
    first = starter(launch("--fake-crash", "3"))
    assert first.record.log_offset == 9
    first.process.wait()
    with log.open("ab") as stream:
        stream.truncate(11 * 1024 * 1024)
    second = starter(launch("--fake-crash", "3"))
    assert second.record.log_offset == 0
    assert log.with_name("chat.log.1").stat().st_size == 11 * 1024 * 1024


def test_a_server_outlives_the_one_who_started_it(paths: Paths, tmp_path: Path) -> None:
    spec = launch()
    code = (
        "import sys, os\nfrom pathlib import Path\nfrom datetime import datetime, UTC\n"
        "from tests.executing import launch, make_paths\nfrom gezelctl.execute.process import start\n"
        "spec = launch(port=int(sys.argv[2]))\n"
        "start(make_paths(Path(sys.argv[1])), spec, stack='lab', secrets={}, parent_env=os.environ,"
        " now=datetime.now(UTC), plan_digest='').detach()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    root = Path(__file__).parents[2]
    starter = subprocess.run([sys.executable, "-c", code, str(tmp_path), str(spec.port)], cwd=root, check=False)
    assert starter.returncode == -signal.SIGKILL
    record = read_record(paths, "chat")
    assert record is not None
    try:
        listening(spec.port)
        assert process_state(record) == ("running", record.pid)
    finally:
        assert stop(record, spec) == "stopped"

"""One look at a host, whole: records, processes, answers, secrets, snapshots."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gezelctl.catalog.resolve import resolve_servers
from gezelctl.config.desired import DesiredServer, HostDesired
from gezelctl.config.diagnostics import InvalidConfig
from gezelctl.config.model import Backend, SecretRef, Source, Sources, StoreConfig
from gezelctl.config.settings import ENGINE_SETTINGS
from gezelctl.engines.types import LaunchSpec, SecretEnv
from gezelctl.observe import observer
from gezelctl.observe.observer import observe
from gezelctl.observe.processes import TOKEN_VARIABLE, process_identity
from gezelctl.observe.snapshot import read_snapshot, to_snapshot
from gezelctl.observe.types import Observed, Snapshot
from gezelctl.store.layout import Paths
from gezelctl.store.records import ensure_state, hmac_key, new_token, write_record
from gezelctl.store.types import RunRecord
from tests import ggufmake as make

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"status":"ok"}' if self.path == "/health" else b'{"data":[{"id":"tiny"}]}'
        self.send_response(200 if self.path in ("/health", "/v1/models") else 501)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(store=tmp_path / "store", state=tmp_path / "state", cache=tmp_path / "cache")


@pytest.fixture
def served() -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A process with a token that answers as a server: (process, port, token)."""
    token = new_token()
    command = [sys.executable, "-c", SERVER, "--api-key", "planted-secret"]
    process = subprocess.Popen(command, env={**os.environ, TOKEN_VARIABLE: token}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, int(process.stdout.readline()), token
    process.kill()
    process.wait()
    process.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def desired(tmp_path: Path, port: int, **more: object) -> HostDesired:
    program = tmp_path / "llama-server"
    if not program.exists():
        program.write_text("#!/bin/sh\necho '-m, --model FNAME    model path to load'\n")
        program.chmod(0o755)
        (tmp_path / "m.gguf").write_bytes(make.gguf_bytes(make.LLAMA, make.LLAMA_TENSORS))
    backend = Backend(engine="llama-cpp", binary=str(program))
    server = DesiredServer(
        name="tiny",
        port=port,
        host="127.0.0.1",
        backend_name="cpu",
        backend=backend,
        start_timeout_s=30,
        source=Source(path=str(tmp_path / "m.gguf")),
        **more,  # type: ignore[arg-type] # fields of the test
    )
    return HostDesired(
        stack="lab",
        host="here",
        servers=(server,),
        backends={"cpu": backend},
        store=StoreConfig(),
        sources=Sources(),
        base_dir=str(tmp_path),
    )


def look(tmp_path: Path, paths: Paths, port: int = 0, **more: object) -> Observed:
    wanted = desired(tmp_path, port or free_port(), **more)
    return observe(wanted, resolve_servers(wanted), paths)


def record_of(name: str, pid: int, port: int, token: str, **more: object) -> RunRecord:
    spec = LaunchSpec(
        server=name,
        engine="llama-cpp",
        backend="cpu",
        program="/x",
        argv=(),
        host="127.0.0.1",
        port=port,
        secret_env=(SecretEnv(name="LLAMA_API_KEY", from_env="TINY_KEY"),),
    )
    identity = process_identity(pid)
    return RunRecord(
        server=name,
        token=token,
        launch=msgspec.Raw(msgspec.json.encode(spec)),
        pid=pid,
        process_started=identity.started if identity else 0.0,
        **more,  # type: ignore[arg-type] # fields of the test
    )


def test_an_empty_host(tmp_path: Path, paths: Paths) -> None:
    seen = look(tmp_path, paths)
    assert seen.engines["cpu"].error == ""
    assert seen.sources[str(tmp_path / "m.gguf")].kind == "file"
    assert (seen.servers, seen.ports, seen.installed, seen.state, seen.problems) == ((), (), (), None, ())
    assert (seen.store_path, seen.state_path) == (str(paths.store), str(paths.state))
    assert not paths.store.exists()
    assert not paths.state.exists()


def test_looking_twice_gives_the_same_but_for_free_memory(tmp_path: Path, paths: Paths) -> None:
    first, second = look(tmp_path, paths), look(tmp_path, paths)
    assert msgspec.structs.replace(first, facts=second.facts) == second


def test_a_running_server_and_one_that_is_not_desired_any_more(
    tmp_path: Path, paths: Paths, served: tuple[subprocess.Popen[str], int, str]
) -> None:
    process, port, token = served
    log = tmp_path / "old.log"
    log.write_text("earlier start\nerror: it broke, hf_abcdefghijklmnopqrstuv\n")
    ensure_state(paths, "lab")
    write_record(paths, record_of("tiny", process.pid, port, token))
    write_record(paths, record_of("old", 2**22 + 9, port + 1, new_token(), log=str(log), log_offset=14))
    seen = look(tmp_path, paths, port)
    old, tiny = seen.servers
    assert (old.name, old.process, old.live) == ("old", "gone", None)
    assert old.log_tail == ("error: it broke, ***",)
    assert (tiny.process, tiny.pid) == ("running", process.pid)
    assert tiny.live is not None
    assert (tiny.live.health, tiny.live.model_ids) == ("Ready", ("tiny",))
    (holder,) = seen.ports
    assert (holder.pid, holder.server) == (process.pid, "tiny")
    assert seen.state is not None
    assert b"planted-secret" not in msgspec.json.encode(seen)
    assert observe(desired(tmp_path, port), (), paths, live=False).servers[1].live is None


def test_a_server_behind_a_wrapper_script_holds_its_port(
    tmp_path: Path, paths: Paths, served: tuple[subprocess.Popen[str], int, str]
) -> None:
    process, port, token = served
    with subprocess.Popen(["sleep", "60"], env={**os.environ, TOKEN_VARIABLE: token}) as wrapper:
        try:
            write_record(paths, record_of("tiny", wrapper.pid, port, token))
            (holder,) = look(tmp_path, paths, port).ports
        finally:
            wrapper.kill()
    assert (holder.pid, holder.server) == (process.pid, "tiny")


def test_a_foreign_holder_has_no_server_name(
    tmp_path: Path, paths: Paths, served: tuple[subprocess.Popen[str], int, str]
) -> None:
    process, port, _ = served
    (holder,) = look(tmp_path, paths, port).ports
    assert (holder.pid, holder.server) == (process.pid, "")
    assert "planted-secret" not in holder.command


def test_secrets_are_macs(tmp_path: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_KEY", "planted-secret")
    ref = SecretRef(from_env="TINY_KEY")
    assert look(tmp_path, paths, api_key=ref).secrets == {"tiny/LLAMA_API_KEY": ""}
    assert not paths.hmac_key.exists()
    hmac_key(paths)
    first = look(tmp_path, paths, api_key=ref)
    (mac,) = first.secrets.values()
    assert len(mac) == 64
    assert look(tmp_path, paths, api_key=ref).secrets == first.secrets
    monkeypatch.setenv("TINY_KEY", "another-secret")
    assert look(tmp_path, paths, api_key=ref).secrets != first.secrets
    monkeypatch.delenv("TINY_KEY")
    seen = look(tmp_path, paths, api_key=ref)
    assert seen.secrets == {"tiny/LLAMA_API_KEY": "missing"}
    assert seen.problems == ("the API key of tiny cannot be read: environment variable TINY_KEY is not set",)
    assert b"planted-secret" not in msgspec.json.encode(first)


def test_damaged_files_are_problems_not_failures(tmp_path: Path, paths: Paths) -> None:
    paths.runs.mkdir(parents=True)
    (paths.runs / "tiny.json").write_text("{")
    paths.state_file.write_text("[]")
    write_record(paths, RunRecord(server="other", token="t", launch=msgspec.Raw(b'{"engine": 3}'), pid=1))
    seen = look(tmp_path, paths)
    assert [s.name for s in seen.servers] == ["other"]
    assert len(seen.problems) == 3
    assert any("tiny.json" in line for line in seen.problems)
    assert any("other holds a launch of another version" in line for line in seen.problems)


def test_a_warm_look_starts_no_process_and_reads_no_payload(
    tmp_path: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(tmp_path, paths)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    opened: list[str] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and watching:
            opened.append(str(arguments[0]))

    watching = True
    sys.addaudithook(note)
    look(tmp_path, paths)
    watching = False
    assert str(tmp_path / "m.gguf") not in opened


def test_a_warm_look_is_quick(tmp_path: Path, paths: Paths) -> None:
    look(tmp_path, paths)
    wanted = desired(tmp_path, free_port())
    resolved = resolve_servers(wanted)
    took = []
    for _ in range(10):
        started = time.perf_counter()
        observe(wanted, resolved, paths)
        took.append(time.perf_counter() - started)
    assert min(took) < 0.02


@pytest.fixture
def snapshot(tmp_path: Path, paths: Paths, served: tuple[subprocess.Popen[str], int, str]) -> Snapshot:
    process, port, token = served
    write_record(paths, record_of("tiny", process.pid, port, token))
    return to_snapshot(look(tmp_path, paths, port), "lab", "gezelctl 0.1", "2026-01-02T03:04:05Z", home="/home/x")


def test_a_snapshot_comes_back_as_it_was(snapshot: Snapshot, tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    file.write_bytes(msgspec.json.encode(snapshot))
    assert read_snapshot(file) == snapshot
    assert (snapshot.kind, snapshot.format_version, snapshot.stack, snapshot.home) == (
        "Snapshot",
        "1.0",
        "lab",
        "/home/x",
    )


def test_tokens_stay_on_the_host(
    snapshot: Snapshot, served: tuple[subprocess.Popen[str], int, str], tmp_path: Path
) -> None:
    assert served[2].encode() not in msgspec.json.encode(snapshot)
    assert snapshot.observed.servers[0].record is not None


def test_keys_of_a_later_minor_version_are_passed_over(snapshot: Snapshot, tmp_path: Path) -> None:
    document = msgspec.json.decode(msgspec.json.encode(snapshot))
    document["formatVersion"] = "1.7"
    document["news"] = document["observed"]["news"] = 1
    file = tmp_path / "snapshot.json"
    file.write_bytes(msgspec.json.encode(document))
    assert read_snapshot(file).observed == snapshot.observed


@pytest.mark.parametrize(
    ("text", "code", "summary"),
    [
        ("{}", "E0503", "is not a snapshot"),
        ("[1]", "E0503", "is not a snapshot"),
        ('{"kind": "Plan", "formatVersion": "1.0"}', "E0503", "is not a snapshot"),
        ('{"kind": "Snapshot", "formatVersion": "new"}', "E0503", "is not a snapshot"),
        ('{"kind": "Snapshot", "formatVersion": "2.0"}', "E0504", "format version 2.0; this gezelctl reads 1.0"),
        ('{"kind": "Snapshot", "formatVersion": "1.0"}', "E0505", "is damaged"),
        ('{\n "kind": oops}', "E0502", "is not JSON"),
        ('{"kind": "Snapshot",\n', "E0502", "is not complete JSON"),
        ("", "E0502", "is not complete JSON"),
    ],
)
def test_what_is_no_snapshot(text: str, code: str, summary: str, tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    file.write_text(text)
    with pytest.raises(InvalidConfig) as caught:
        read_snapshot(file)
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert summary in found.summary
    assert found.cure


def test_broken_json_is_placed(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    file.write_text('{\n "kind": oops}')
    with pytest.raises(InvalidConfig) as caught:
        read_snapshot(file)
    (found,) = caught.value.diagnostics
    assert str(found.place) == f"{file}:2:10"


def test_a_missing_snapshot(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read_snapshot(tmp_path / "none.json")
    assert caught.value.diagnostics[0].code == "E0501"


def test_every_engine_has_its_variable() -> None:
    assert set(ENGINE_SETTINGS) == set(observer.API_KEY_VARIABLE)

"""The headers that a look at a host brings along, and what a plan does without them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gezelctl.cli.main import run
from gezelctl.cli.session import open_session
from gezelctl.observe import headers
from gezelctl.observe.observer import observe
from gezelctl.observe.types import Observed, Snapshot
from gezelctl.store.layout import Paths
from gezelctl.store.types import InstalledFile, InstalledManifest
from tests import ggufmake as make
from tests import hubserver
from tests.executing import free_port, write_manifest
from tests.hubserver import Fault

REPO = "lab/tiny"
FLAGS = "model host port alias ctx-size parallel cache-type-k cache-type-v flash-attn"
HELP = "".join(f"--{flag + ' X':<24} what it is\n" for flag in FLAGS.split())


@pytest.fixture
def hub() -> Iterator[hubserver.Hub]:
    with hubserver.running_hub() as server:
        yield server


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEZELCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GEZELCTL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def gguf(salt: int) -> bytes:
    return make.gguf_bytes(make.LLAMA | {"general.quantization_version": salt}, make.LLAMA_TENSORS)


def write_config(tmp_path: Path, endpoint: str, *digests: str, token: str = "") -> Path:
    """A models.yaml with one server a digest, each with the file `m<n>.gguf` of the hub."""
    program = tmp_path / "llama-server"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{HELP}END\n")
    program.chmod(0o755)
    servers = [
        f"  - {{name: s{n}, port: {20000 + n}, "
        f"source: {{huggingface: {REPO}, filename: m{n}.gguf, sha256: '{digest}'}}}}"
        for n, digest in enumerate(digests)
    ]
    lines = [
        "apiVersion: gezelctl/v1",
        "stack: lab",
        f"store: {{path: {tmp_path / 'store'}}}",
        f"sources: {{huggingface: {{endpoint: '{endpoint}'{token}}}}}",
        f"backends: {{cpu: {{engine: llama-cpp, binary: {program}}}}}",
        "defaults: {backend: cpu}",
        "models:",
        *servers,
    ]
    path = tmp_path / "models.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def publish(hub: hubserver.Hub, count: int) -> list[str]:
    return [hub.add(REPO, f"m{n}.gguf", gguf(n)) for n in range(count)]


def look(config: Path, *, offline: bool = False) -> tuple[Observed, Paths]:
    session = open_session([str(config)], None)
    return observe(session.desired, session.resolved, session.paths, offline=offline), session.paths


def header_problems(observed: Observed) -> list[str]:
    return [line for line in observed.problems if "header" in line]


def test_headers_come_before_the_files(hub: hubserver.Hub, tmp_path: Path) -> None:
    digests = publish(hub, 3)
    config = write_config(tmp_path, hub.endpoint, *digests)
    observed, _ = look(config)
    assert list(observed.headers) == sorted(digests)
    assert {h.values["general.quantization_version"] for h in observed.headers.values()} == {0, 1, 2}
    assert not header_problems(observed)


def test_offline_asks_nobody_and_knows_what_was_read_before(hub: hubserver.Hub, tmp_path: Path) -> None:
    config = write_config(tmp_path, hub.endpoint, *publish(hub, 1))
    observed, _ = look(config, offline=True)
    assert (observed.headers, header_problems(observed), hub.requests) == ({}, [], [])
    seen, _ = look(config)
    hub.requests.clear()
    assert look(config, offline=True)[0].headers == seen.headers
    assert not hub.requests


def test_a_file_that_cannot_be_read_is_one_line(hub: hubserver.Hub, tmp_path: Path) -> None:
    digests = publish(hub, 2)
    del hub.files[REPO, "main", "m1.gguf"]
    observed, _ = look(write_config(tmp_path, hub.endpoint, *digests))
    assert list(observed.headers) == [digests[0]]
    (line,) = header_problems(observed)
    assert "m1.gguf: no such file (HTTP 404)" in line


def test_a_hub_that_is_not_there_is_one_line_for_all_its_files(tmp_path: Path) -> None:
    config = write_config(tmp_path, f"http://127.0.0.1:{free_port()}", *(f"{n:064x}" for n in range(30)))
    observed, _ = look(config)
    (line,) = header_problems(observed)
    assert "the connection was refused (and 29 more of 127.0.0.1)" in line


def test_a_hub_that_hangs_holds_no_plan_up(hub: hubserver.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "LIMIT_S", 0.3)
    config = write_config(tmp_path, hub.endpoint, *publish(hub, 12))
    hub.fault = Fault("stall", after=10)
    (line,) = header_problems(look(config)[0])
    assert "(and 11 more of 127.0.0.1)" in line


def test_many_slow_headers_hold_no_plan_up(hub: hubserver.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "ALL_LIMIT_S", 0.0)
    (line,) = header_problems(look(write_config(tmp_path, hub.endpoint, *publish(hub, 3)))[0])
    assert "took longer than 0 s (and 2 more of 127.0.0.1)" in line
    assert not hub.requests


def test_a_token_that_cannot_be_read_is_one_line_and_asks_nobody(hub: hubserver.Hub, tmp_path: Path) -> None:
    token = ", token: {fromEnv: NO_SUCH_TOKEN}"
    observed, _ = look(write_config(tmp_path, hub.endpoint, *publish(hub, 2), token=token))
    (line,) = header_problems(observed)
    assert "NO_SUCH_TOKEN is not set" in line
    assert not hub.requests


def test_a_gated_header_is_read_with_the_token(
    hub: hubserver.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = publish(hub, 1)
    hub.gated.add(REPO)
    monkeypatch.setenv("LAB_TOKEN", hub.token)
    observed, _ = look(write_config(tmp_path, hub.endpoint, *digests, token=", token: {fromEnv: LAB_TOKEN}"))
    assert list(observed.headers) == digests
    assert hub.token not in msgspec.json.encode(observed).decode()


def test_installed_files_are_read_where_they_stand(hub: hubserver.Hub, tmp_path: Path) -> None:
    (digest,) = publish(hub, 1)
    config = write_config(tmp_path, hub.endpoint, digest)
    _, paths = look(config, offline=True)
    folder = paths.payload_dir("llama-cpp", "s0")
    folder.mkdir(parents=True)
    (folder / "m0.gguf").write_bytes(gguf(0))
    file = InstalledFile("m0.gguf", "weights", digest, len(gguf(0)))
    manifest = InstalledManifest("llama-cpp", "s0", "s0", "", "", (file,), "2026-01-12T14:02:11Z")
    write_manifest(folder, manifest)
    observed, _ = look(config)
    assert list(observed.headers) == [digest]
    assert not hub.requests


def test_a_snapshot_carries_the_headers(
    hub: hubserver.Hub, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    digests = publish(hub, 1)
    config = write_config(tmp_path, hub.endpoint, *digests)
    assert run(["snapshot", "-f", str(config)]) == 0
    snapshot = msgspec.json.decode(capsysbinary.readouterr().out, type=Snapshot)
    assert list(snapshot.observed.headers) == digests
    assert snapshot.observed.headers == look(config, offline=True)[0].headers


@pytest.mark.parametrize("how", ["option", "environment"])
def test_an_offline_plan_opens_no_connection(
    hub: hubserver.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    config = write_config(tmp_path, hub.endpoint, *publish(hub, 1))

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    if how == "environment":
        monkeypatch.setenv("GEZELCTL_OFFLINE", "1")
    assert run(["plan", "-f", str(config), *(["--offline"] if how == "option" else [])]) == 0
    assert not hub.requests


def test_a_plan_says_what_it_could_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, f"http://127.0.0.1:{free_port()}", "0" * 64)
    assert run(["plan", "-f", str(config)]) == 0
    shown = capsys.readouterr()
    assert "the connection was refused" in shown.out + shown.err

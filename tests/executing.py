"""Builders for tests of the executor: folders, file actions, plans, launches of the fake engine."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from gezelctl.catalog.types import Origin, PayloadFile, Role
from gezelctl.engines.types import Expectation, LaunchSpec, SecretEnv
from gezelctl.execute.context import ExecContext
from gezelctl.execute.fetch import Fetcher
from gezelctl.execute.install import Installer
from gezelctl.execute.report import StepState
from gezelctl.observe.hub import Hub
from gezelctl.plan.types import Against, Change, FileAction, PayloadMeta, Plan, Summary
from gezelctl.store.layout import Paths
from gezelctl.store.manifests import commit_pending, write_pending
from gezelctl.store.types import InstalledManifest
from tests.ggufmake import LLAMA, LLAMA_TENSORS, gguf_bytes

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
META = PayloadMeta(engine="llama-cpp", model_id="tiny", name="Tiny", version="1.0.0", fingerprint="f" * 64)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def model_bytes(salt: int = 0) -> bytes:
    """A small, whole GGUF; each salt gives other bytes of the same size."""
    return gguf_bytes({**LLAMA, "general.quantization_version": salt}, LLAMA_TENSORS)


def make_paths(root: Path) -> Paths:
    return Paths(store=root / "store", state=root / "state" / "lab", cache=root / "cache")


def write_manifest(directory: Path, manifest: InstalledManifest) -> None:
    """Publish a manifest for files that stand in place."""
    write_pending(directory, manifest)
    commit_pending(directory)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


PROGRAM = b"#!/bin/sh\nexit 0\n"


def tar_bytes(*members: tuple[str, bytes | str | None], mode: int = 0o755, kind: bytes = b"") -> bytes:
    """A tar.gz: bytes = file, text = symbolic link (or `kind`), None = folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.mode = mode
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                info.type, info.linkname = kind or tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


class Recorder:
    """A reporter that keeps what it was told."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str, str]] = []
        self.bytes: list[tuple[str, int, int]] = []

    def on_step(self, address: str, state: StepState, message: str) -> None:
        self.steps.append((address, state, message))

    def on_bytes(self, address: str, done: int, total: int) -> None:
        self.bytes.append((address, done, total))

    def notes(self) -> str:
        return "\n".join(message for _, state, message in self.steps if state == "note")


def hub_file(
    name: str, data: bytes, *, repo: str = "lab/tiny", role: Role = "weights", sized: bool = True
) -> PayloadFile:
    origin = Origin(kind="huggingface", repo=repo, filename=name)
    return PayloadFile(name=name, role=role, origin=origin, sha256=sha(data), size_bytes=len(data) if sized else 0)


def path_file(path: Path, data: bytes | None = None, *, name: str = "", role: Role = "weights") -> PayloadFile:
    """A file with a `path` origin; pinned when `data` is given."""
    origin = Origin(kind="path", path=str(path))
    digest, size = (sha(data), len(data)) if data is not None else ("", 0)
    return PayloadFile(name=name or path.name, role=role, origin=origin, sha256=digest, size_bytes=size)


def download(file: PayloadFile) -> FileAction:
    return FileAction(file=file, how="download", size_bytes=file.size_bytes)


def link(file: PayloadFile, how: Literal["link", "copy"] = "link") -> FileAction:
    return FileAction(file=file, how=how, size_bytes=file.size_bytes, source=file.origin.path)


FETCHERS: list[Fetcher] = []
"""Made by `installer`, to be closed by `close_fetchers`."""


def close_fetchers() -> None:
    while FETCHERS:
        FETCHERS.pop().__exit__()


def installer(paths: Paths, hub: Hub | None = None, **options: Any) -> tuple[Installer, Recorder]:
    recorder = Recorder()
    fetcher = Fetcher(hub or Hub("http://127.0.0.1:9"), **options)
    FETCHERS.append(fetcher)
    return (
        Installer(
            paths=paths,
            fetcher=fetcher,
            now=lambda: datetime.now(UTC),
            on_note=lambda text: recorder.on_step("", "note", text),
            on_bytes=lambda done, total: recorder.on_bytes("", done, total),
        ),
        recorder,
    )


def launch(
    *extra: str, name: str = "chat", port: int = 0, secret: SecretEnv | None = None, timeout_s: int = 20, **expect: Any
) -> LaunchSpec:
    """The fake engine as a server; what it is expected to report follows its flags unless `expect` says otherwise."""
    number = port or free_port()
    wanted = {
        "model_id": name,
        "model_path": f"/models/{name}.gguf",
        "context_tokens": 2048,
        "slots": 2,
        "speculation": False,
    }
    flags = ["--model", f"/models/{name}.gguf", "--alias", name, "--ctx-size", "4096", "--parallel", "2"]
    return LaunchSpec(
        server=name,
        engine="llama-cpp",
        backend="fake",
        program=sys.executable,
        argv=(str(FAKE_ENGINE), "--host", "127.0.0.1", "--port", str(number), *flags, *extra),
        host="127.0.0.1",
        port=number,
        secret_env=(secret,) if secret else (),
        expect=Expectation(**{**wanted, **expect}),
        start_timeout_s=timeout_s,
    )


def server_change(spec: LaunchSpec, action: Any = "create", **fields: Any) -> Change:
    return Change(address=f"server.{spec.server}", action=action, reason="not_present", launch=spec, **fields)


def make_plan(*changes: Change, complete: bool = True, applyable: bool = True) -> Plan:
    return Plan(
        format_version="1.0",
        kind="Plan",
        tool="gezelctl",
        stack="lab",
        host="here",
        digest=sha(repr(changes).encode()),
        source=(),
        against=Against(kind="live", seen="2026-01-01T00:00:00Z"),
        lineage="",
        serial=0,
        complete=complete,
        applyable=applyable,
        summary=Summary(create=len(changes)),
        changes=changes,
    )


def make_context(paths: Paths, **fields: Any) -> tuple[ExecContext, Recorder]:
    recorder = Recorder()
    defaults: dict[str, Any] = {"env": dict(os.environ), "base_dir": paths.state, "grace_s": 5.0}
    return ExecContext(paths=paths, reporter=recorder, **{**defaults, **fields}), recorder

"""What is written beside payloads and processes. Shapes only; reading and writing is in the sibling modules."""

from __future__ import annotations

from typing import Literal

import msgspec

from gezelctl.gguf.types import GgufSummary


class InstalledFile(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One payload file on disk: relative POSIX name, role, actual sha256, bytes, and how it came."""

    name: str
    role: str
    sha256: str
    size_bytes: int
    source: str = ""
    """URL or path it came from, credentials removed."""
    linked: bool = False


class InstalledManifest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`manifest.json` beside a payload: what is really on disk. Written last, so its presence means complete."""

    engine: str
    id: str
    name: str
    catalog_version: str
    fingerprint: str
    files: tuple[InstalledFile, ...]
    installed_at: str
    """RFC 3339, UTC, seconds."""
    repo: str = ""
    gguf: GgufSummary | None = None
    tool: str = ""
    schema_version: int = 1

    @property
    def digests(self) -> dict[str, str]:
        """sha256 by file name."""
        return {f.name: f.sha256 for f in self.files}


class InstalledPayload(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A manifest with the folder it stands in and the files of it that are missing or have another size."""

    path: str
    manifest: InstalledManifest
    damaged: tuple[str, ...] = ()


class PlannedMemory(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a launch was planned to take, in bytes over host and devices, its drafter included.

    `context_bytes` must come true to the byte when `exact`; `compute_bytes` (with the output buffer) is a bound.
    `total_bytes` also counts what no log line names: projector, prompt cache, overhead of a device.
    """

    architecture: str
    weights_bytes: int
    context_bytes: int
    compute_bytes: int
    total_bytes: int
    exact: bool = True


class MeasuredMemory(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One measured start of an architecture on an engine build, beside its plan. Bytes over host and devices."""

    server: str
    planned: PlannedMemory
    weights_bytes: int
    context_bytes: int
    compute_bytes: int
    when: str = ""


class BrokenDrafter(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How a draft model took an engine build down. `when` is RFC 3339."""

    server: str
    reason: str
    when: str


class Starved(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A start that ran out of device memory with experts placed by the planner, and how it had placed them."""

    server: str
    reason: str
    when: str
    n_gpu_layers: int | None = None
    n_cpu_moe: int = 0
    cpu_moe: bool = False


class RunRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What gezelctl knows of a process it started. Written before the spawn (pid 0) and again after it.

    A process is ours when pid, start time (epoch seconds, as the OS reports it) and the token in its environment
    all agree; `launch` is msgspec-encoded `engines.types.LaunchSpec` (store lies below engines and does not read it).
    """

    server: str
    token: str
    launch: msgspec.Raw
    pid: int = 0
    process_started: float = 0.0
    started_at: str = ""
    log: str = ""
    log_offset: int = 0
    """Where this start's output begins in the log file, bytes."""
    proved: bool = False
    load_seconds: float = 0.0
    secret_macs: dict[str, str] = {}
    plan_digest: str = ""
    planned_memory: PlannedMemory | None = None


class StackState(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`state.json` of one stack on one host. `serial` grows by one with every apply that changed something."""

    stack: str
    lineage: str
    serial: int = 0
    last_applied: str = ""


class Event(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One line of events.jsonl (ux contract 3.13)."""

    ts: str
    type: str
    stack: str = ""
    host: str = ""
    run_id: str = ""
    address: str = ""
    action: str = ""
    reason: str = ""
    message: str = ""
    level: Literal["info", "warning", "error"] = "info"
    duration_ms: int = 0
    detail: dict[str, str | int | float | bool] = {}

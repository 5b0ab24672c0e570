"""The Plan: one ordered, explained object; text, markdown, JSON and the exit code are views of it (ux contract 3.7)."""

from __future__ import annotations

from typing import Literal

import msgspec

from gezelctl.catalog.types import PayloadFile
from gezelctl.config.diagnostics import Diagnostic, Place
from gezelctl.engines.types import LaunchSpec, Scalar, Value
from gezelctl.store.types import PlannedMemory

FORMAT_VERSION = "1.0"
"""Of a plan's JSON: minor versions only add, and a reader refuses another major one."""
Action = Literal["create", "update", "restart", "delete", "fetch", "link", "keep", "noop", "blocked"]
SYMBOLS: dict[str, str] = {
    "create": "+",
    "update": "~",
    "restart": "-/+",
    "delete": "-",
    "fetch": "<=",
    "link": "&=",
    "keep": "!",
    "noop": " ",
    "blocked": "!",
}


class Field(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One differing setting. None = absent on that side. `sensitive` fields carry no values at all."""

    path: str
    before: Scalar | None = None
    after: Scalar | None = None
    effect: Literal["live", "restart", "replace"] = "restart"
    origin: str = ""
    place: Place | None = None
    reason: str = ""
    sensitive: bool = False
    drift: bool = False


class FileAction(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How one payload file gets to its folder: already there, hard link or copy from `source`, or download."""

    file: PayloadFile
    how: Literal["present", "link", "copy", "download"]
    size_bytes: int = 0
    source: str = ""
    """Absolute path for link and copy."""
    reason: str = ""


class PayloadMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the installed manifest says of a payload beside its files; of a `payload.*` change."""

    engine: str
    model_id: str
    name: str = ""
    version: str = ""
    fingerprint: str = ""
    repo: str = ""
    companions: dict[str, str] = {}
    """sha256 by name of the files that the catalog lists and this plan does not need: projectors, drafters of other
    accelerators. Where they are installed, they stay: another stack may share the store and use them."""


class Change(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One thing that changes, stays on purpose, or is blocked.

    `reason` is a code of the open set in the ux contract; `cause` says it in words. `downtime_s` None = unknown.
    Memory numbers are bytes on host and devices together, 0 when not planned.
    """

    address: str
    action: Action
    reason: str
    cause: str = ""
    fields: tuple[Field, ...] = ()
    unchanged_count: int = 0
    depends_on: tuple[str, ...] = ()
    downtime_s: int | None = None
    download_bytes: int = 0
    link_bytes: int = 0
    files: tuple[FileAction, ...] = ()
    payload: PayloadMeta | None = None
    launch: LaunchSpec | None = None
    argv_before: tuple[str, ...] = ()
    """Of the running process, from its run record; () when unknown. The review shows the command line as a diff."""
    observed_fingerprint: str = ""
    memory_before_bytes: int = 0
    memory_after_bytes: int = 0
    planned_memory: PlannedMemory | None = None
    """Of the launch, to be compared with what its start prints."""
    cure: str = ""


class Capacity(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One resource before and after: bytes of disk or memory, or a port (limit 1)."""

    resource: str
    before: int
    after: int
    limit: int
    fits: bool
    basis: Literal["measured", "estimate"] = "measured"


class Summary(msgspec.Struct, frozen=True, rename="camel"):
    """Counts over `changes`; the exit code and the last lines of every view come from here."""

    create: int = 0
    update: int = 0
    restart: int = 0
    delete: int = 0
    fetch: int = 0
    link: int = 0
    noop: int = 0
    kept: int = 0
    blocked: int = 0
    download_bytes: int = 0
    link_bytes: int = 0
    downtime_s: int = 0

    @property
    def changes(self) -> int:
        """How many things apply would do."""
        return self.create + self.update + self.restart + self.delete + self.fetch + self.link


class SourceFile(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    sha256: str


class Against(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the plan was compared with. `seen` is RFC 3339; `age_s` the snapshot's age, None when live."""

    kind: Literal["live", "snapshot"]
    seen: str
    path: str = ""
    age_s: int | None = None


class Decision(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Why a server is launched as it is, for --explain: every value with its origin, and the planner's reasons."""

    address: str
    values: tuple[Value, ...]
    notes: tuple[str, ...] = ()
    lost: str = ""
    """What the launch goes without for having failed with it on this host, "" for nothing."""


class Plan(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`changes` is ordered for execution: engines, payloads, then servers by name; no-ops come last.

    `digest` is sha256 over the normalised actions (no times, ids or serials). `applyable` is false when a change is
    blocked, a diagnostic is an error, or something does not fit.
    """

    format_version: str
    kind: Literal["Plan"]
    tool: str
    stack: str
    host: str
    digest: str
    source: tuple[SourceFile, ...]
    against: Against
    lineage: str
    serial: int
    complete: bool
    applyable: bool
    summary: Summary
    changes: tuple[Change, ...]
    capacity: tuple[Capacity, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    decisions: tuple[Decision, ...] = ()
    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    prune: bool = False
    checksum: str = ""
    """Set in a saved plan: sha256 of the JSON with an empty checksum."""

    @property
    def launches(self) -> tuple[LaunchSpec, ...]:
        """The launch of every server that is known, also of those that stay as they are."""
        return tuple(c.launch for c in self.changes if c.launch)

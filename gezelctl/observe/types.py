"""What is true on a host: facts, engine builds, payloads, processes, answers. One snapshot holds all of it."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import msgspec

from gezelctl.gguf.types import GgufSummary, VocabDigest
from gezelctl.store.types import InstalledPayload, MeasuredMemory, RunRecord, StackState, Starved


class Flag(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One option of an engine build as its --help tells it.

    `names` are all spellings, `negations` the --no-… forms of a pair (not in `names`), `arity` the words that follow:
    0 for a switch, 2 for the few ranges, else 1; `values` the closed domain when the help lists one, `env` the
    LLAMA_ARG_… variable.
    """

    names: tuple[str, ...]
    arity: int
    metavar: str = ""
    values: tuple[str, ...] = ()
    negations: tuple[str, ...] = ()
    default: str = ""
    env: str = ""


class Device(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A compute device as one engine build names it (`--list-devices`)."""

    id: str
    name: str
    total_bytes: int
    free_bytes: int


class EngineProbe(msgspec.Struct, frozen=True, dict=True, rename="camel", omit_defaults=True):
    """One engine build. `digest` is a stable name of the bytes: 16 hex digits, see observe.probe for what goes in.

    `error` is set when the build cannot be used ("ENGINE_MISSING", "ENGINE_NOT_EXECUTABLE", "ENGINE_DIES", …).
    """

    backend: str
    engine: str
    program: str
    prefix: tuple[str, ...] = ()
    """Arguments that come before the flags, such as -m gezelctl.embedded."""
    digest: str = ""
    version: str = ""
    build: int = 0
    flags: tuple[Flag, ...] = ()
    devices: tuple[Device, ...] = ()
    removed: dict[str, str] = {}
    """Spellings that the help still names only to refuse them → what it says to use instead; not in `flags`."""
    error: str = ""
    message: str = ""
    pending: bool = False
    """An archive that is not unpacked yet: nothing is known before it is fetched."""

    @cached_property
    def flags_by_name(self) -> dict[str, Flag]:
        """Every spelling of every flag but its negations."""
        return {name: flag for flag in self.flags for name in flag.names}

    @cached_property
    def flags_by_negation(self) -> dict[str, Flag]:
        return {name: flag for flag in self.flags for name in flag.negations}


class Gpu(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A graphics processor as the driver reports it; `id` is its UUID or PCI address."""

    id: str
    name: str
    total_bytes: int
    free_bytes: int
    kind: Literal["discrete", "integrated", "unified"] = "discrete"
    driver: str = ""


class Disk(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The file system under `path`. `file_system` identifies it on this host (st_dev); links never cross it."""

    path: str
    free_bytes: int
    total_bytes: int
    file_system: int
    hard_links: bool = True


class Facts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the host can do."""

    host: str
    os: str
    """linux or darwin."""
    os_version: str
    arch: str
    cpus: int
    memory_total_bytes: int
    memory_available_bytes: int
    gpus: tuple[Gpu, ...] = ()
    disks: tuple[Disk, ...] = ()
    python: str = ""
    recommended_working_set_bytes: int = 0
    """Metal's recommendedMaxWorkingSetSize; 0 where there is none."""


class PortHolder(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Who listens on a wanted port. pid 0 = another user's process that this user may not see."""

    port: int
    host: str = ""
    pid: int = 0
    command: str = ""
    server: str = ""
    """Set when the holder is one of our own servers."""
    started_as: str = ""
    """"server.chat of stack lab" when gezelctl started it, but no run record that is left here is of it."""


class SourceFact(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A local file that a `path` source or an adoptFrom root offers."""

    path: str
    kind: Literal["file", "directory", "missing", "unreadable", "other"]
    size_bytes: int = 0
    sha256: str = ""
    file_system: int = 0
    error_code: str = ""
    """A GGUF finding (NOT_GGUF, GGUF_TRUNCATED, …) with its message and cure."""
    error: str = ""
    cure: str = ""
    gguf: GgufSummary | None = None


class MlxShape(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What config.json of an MLX model says of its memory: trained context, and KV bytes per token at f16.

    Every layer counts as full attention, which is the most that the cache can take. 0 where the file does not say.
    """

    context_tokens: int = 0
    kv_bytes_per_token: int = 0


class Live(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a server answers over HTTP. `health` is the sum of it: Unknown when nothing could be asked."""

    health: Literal["Ready", "Loading", "Failed", "Unknown"]
    model_ids: tuple[str, ...] = ()
    model_path: str = ""
    context_tokens: int = 0
    slots: int = 0
    slots_busy: int = 0
    speculation: bool | None = None
    build: str = ""
    message: str = ""


class MemoryReading(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Measured bytes of a started server, read back from its log, by device ("host" always)."""

    weights_bytes: dict[str, int] = {}
    context_bytes: dict[str, int] = {}
    compute_bytes: dict[str, int] = {}
    output_bytes: dict[str, int] = {}
    resident_bytes: int = 0
    context_rounding_bytes: int = 0
    """By how much the sum of `context_bytes` may be off, since the log rounds each line."""


class ServerFact(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One server of this stack: its record, whether its process lives and is proven ours, and what it answers."""

    name: str
    record: RunRecord | None = None
    process: Literal["running", "gone", "unproven", "none"] = "none"
    pid: int = 0
    live: Live | None = None
    log_tail: tuple[str, ...] = ()
    memory: MemoryReading | None = None


class Observed(msgspec.Struct, frozen=True, dict=True, rename="camel", omit_defaults=True):
    """Everything the planner may know. Lists are sorted; equal hosts give equal bytes."""

    facts: Facts
    engines: dict[str, EngineProbe] = {}
    installed: tuple[InstalledPayload, ...] = ()
    servers: tuple[ServerFact, ...] = ()
    ports: tuple[PortHolder, ...] = ()
    sources: dict[str, SourceFact] = {}
    """By absolute path."""
    headers: dict[str, GgufSummary] = {}
    """sha256 → header of a wanted GGUF file that is not a local source: companions of installed payloads, and files
    read from afar before they are downloaded."""
    vocabs: dict[str, VocabDigest] = {}
    """sha256 → vocabulary, of the targets and draft models of this host that are on its disks."""
    broken_drafters: dict[str, str] = {}
    """"<engine digest>/<sha256 of the drafter>" → how that pair took a server down."""
    starved: dict[str, Starved] = {}
    """"<engine digest>/<sha256 of the weights>" → the last launch of that pair that ran out of device memory."""
    measured: dict[str, MeasuredMemory] = {}
    """"<engine digest>/<architecture>" → the last start that was measured."""
    former_flags: dict[str, tuple[Flag, ...]] = {}
    """By engine digest: the flags of builds that servers run on and that no backend has any more, where still known."""
    adoptable: dict[str, str] = {}
    """sha256 → absolute path, only for digests that some payload needs."""
    mlx_shapes: dict[str, MlxShape] = {}
    """By absolute folder: MLX sources and installed MLX payloads."""
    directories: dict[str, tuple[tuple[str, int, str], ...]] = {}
    """MLX folder sources: (relative name, bytes, sha256) of every payload file, by absolute folder path."""
    secrets: dict[str, str] = {}
    """"<server>/<variable>" → HMAC of the value on this host, "" when it cannot be read."""
    state: StackState | None = None
    store_path: str = ""
    state_path: str = ""
    problems: tuple[str, ...] = ()
    """What could not be observed, in words; shown by every plan."""

    # What every server of a plan looks up: searched each time, a thousand servers would cost a million steps.

    @cached_property
    def installed_by_id(self) -> dict[tuple[str, str], InstalledPayload]:
        """By engine and id."""
        return {(p.manifest.engine, p.manifest.id): p for p in self.installed}

    @cached_property
    def installed_weights(self) -> dict[str, str]:
        """Absolute path of the weights (first shard) of every installed llama.cpp model, by id."""
        return {
            p.manifest.id: f"{p.path}/{p.manifest.files[0].name}"
            for p in self.installed
            if p.manifest.engine == "llama-cpp" and p.manifest.files
        }

    @cached_property
    def servers_by_name(self) -> dict[str, ServerFact]:
        return {server.name: server for server in self.servers}


class Snapshot(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Observed state as a file, for planning elsewhere. `observed_at` is RFC 3339 UTC, seconds."""

    format_version: str
    kind: Literal["Snapshot"]
    tool: str
    stack: str
    host: str
    observed_at: str
    observed: Observed
    base_dir: str = ""
    """The folder of models.yaml on the host, which its relative paths count from."""
    home: str = ""
    """What `~` means on the host."""

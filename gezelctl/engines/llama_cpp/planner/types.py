"""What the launch planner is asked and what it answers."""

from __future__ import annotations

from typing import Literal

import msgspec

from gezelctl.catalog.types import Model, Payload, PayloadFile
from gezelctl.config.desired import DesiredServer
from gezelctl.engines.llama_cpp.spec import SpecPlan
from gezelctl.engines.types import Scalar, Value
from gezelctl.gguf.types import GgufSummary, VocabDigest
from gezelctl.observe.types import EngineProbe
from gezelctl.store.types import Starved

Basis = Literal["header", "catalog", "heuristic"]
"""Where prices come from: the file's own header (exact), the catalog's figures, or sizes alone."""


class Running(msgspec.Struct, frozen=True, rename="camel"):
    """How a server runs now: the values of its launch that the planner chose, and whether it drafts.

    A plan that still fits is kept, so that a plan after an apply is empty and free memory of this minute restarts
    nothing. Leave it out when the model, its payload or the engine build changes.
    """

    values: dict[str, Scalar]
    spec_types: tuple[str, ...] = ()


class LaunchQuestion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One server to plan for. Headers, vocabularies and the probe are None while they are not known.

    `files` are the payload's wanted files (projector and drafter only where they apply); `drafts` maps catalog ids to
    paths of installed weights; `broken_drafter` is why this engine build and this drafter are not tried together.
    """

    server: DesiredServer
    model: Model
    payload: Payload
    files: tuple[PayloadFile, ...]
    probe: EngineProbe | None = None
    gguf: GgufSummary | None = None
    draft_gguf: GgufSummary | None = None
    mmproj_gguf: GgufSummary | None = None
    vocab: VocabDigest | None = None
    draft_vocab: VocabDigest | None = None
    drafts: dict[str, str] = {}
    draft_bytes: int = 0
    """Bytes of the draft model when its header is not known and it is not among `files`."""
    broken_drafter: str = ""
    starved: Starved | None = None
    """The launch of these weights that ran out of device memory on this build: nothing above it is tried again."""
    running: Running | None = None

    @property
    def name(self) -> str:
        return self.server.name


class Demand(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes by place: each discrete card in the host's order, and RAM (all memory, where it is unified)."""

    cards: tuple[int, ...]
    ram: int

    @property
    def total(self) -> int:
        return sum(self.cards) + self.ram

    def plus(self, other: Demand) -> Demand:
        return Demand(tuple(a + b for a, b in zip(self.cards, other.cards, strict=True)), self.ram + other.ram)

    def minus(self, other: Demand) -> Demand:
        return Demand(tuple(a - b for a, b in zip(self.cards, other.cards, strict=True)), self.ram - other.ram)

    def covers(self, other: Demand) -> bool:
        """Whether `other` fits in here, place by place."""
        return self.ram >= other.ram and all(a >= b for a, b in zip(self.cards, other.cards, strict=True))


class Room(msgspec.Struct, frozen=True, rename="camel"):
    """What a server may use. `alone` = no other server lies on the cards; `tight` = leave the emptiest card alone."""

    free: Demand
    alone: bool
    tight: bool = False


class Ask(msgspec.Struct, frozen=True, rename="camel"):
    """One launch that could be: everything that the planner varies and memory depends on, but for the offload."""

    context: int
    slots: int
    kv: str
    swa_full: bool = False
    spec: SpecPlan = SpecPlan()


class Offload(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where layers go. `decided` = the planner gives all of these values and turns the engine's own fit off.

    `cards` are indices into the host's cards; `split` are shares of them, () for one card.
    """

    decided: bool = False
    cards: tuple[int, ...] = ()
    split: tuple[int, ...] = ()
    n_gpu_layers: int | None = None
    n_cpu_moe: int = 0
    cpu_moe: bool = False

    @property
    def full(self) -> bool:
        """Everything on the devices."""
        return self.n_gpu_layers in {None, -1} and not self.n_cpu_moe and not self.cpu_moe


class Figures(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Bytes of one server by purpose, over host and devices."""

    weights_bytes: int = 0
    context_bytes: int = 0
    compute_bytes: int = 0
    draft_bytes: int = 0
    projector_bytes: int = 0
    other_bytes: int = 0


class Placed(msgspec.Struct, frozen=True, rename="camel"):
    """An ask that fits: where it lies and what it is made of."""

    demand: Demand
    offload: Offload
    figures: Figures


class FitRow(msgspec.Struct, frozen=True, rename="camel"):
    """One line of the table of what would fit."""

    slots: int
    context: int
    kv_cache: str
    total_bytes: int


class Refusal(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Why a server gets no launch. `field` is the models.yaml name that the cure is about, where there is one."""

    code: str
    summary: str
    cure: str
    field: str = ""
    table: tuple[FitRow, ...] = ()


class ServerEstimate(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Planned memory of one server. `gpu_bytes` is by card id; on unified memory everything is in `ram_bytes`."""

    basis: Basis
    total_bytes: int
    ram_bytes: int
    gpu_bytes: dict[str, int]
    figures: Figures
    context: int
    slots: int
    kv_cache: str
    prompt_cache_bytes: int = 0


class LaunchAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The launch of one server: `values` are what the planner chose, never what somebody set."""

    server: str
    values: tuple[Value, ...] = ()
    estimate: ServerEstimate | None = None
    spec: SpecPlan = SpecPlan()
    refusal: Refusal | None = None
    notes: tuple[str, ...] = ()
    offload: Offload = Offload()


class PoolUse(msgspec.Struct, frozen=True, rename="camel"):
    """One pool of the host: planned bytes, the limit, and who is resident in it, by name."""

    pool: str
    planned_bytes: int
    limit_bytes: int
    servers: tuple[str, ...]


class HostPlan(msgspec.Struct, frozen=True, rename="camel"):
    """All answers, by server name, and what they add up to."""

    answers: tuple[LaunchAnswer, ...]
    pools: tuple[PoolUse, ...]

"""One server: from its settings, its prices and what is free to a grant (reference behaviour 18, steps 4 to 22)."""

from __future__ import annotations

from typing import Protocol

import msgspec

from gezelctl.engines.llama_cpp.kvtype import is_gemma
from gezelctl.engines.llama_cpp.planner import speculation as spec
from gezelctl.engines.llama_cpp.planner.budget import HostMemory
from gezelctl.engines.llama_cpp.planner.growth import grow
from gezelctl.engines.llama_cpp.planner.kvchoice import FULL, HALF, default_kv, trades_precision
from gezelctl.engines.llama_cpp.planner.ladder import Grant, ladder
from gezelctl.engines.llama_cpp.planner.request import Wish, context_wish, host_floor
from gezelctl.engines.llama_cpp.planner.settings import Settings
from gezelctl.engines.llama_cpp.planner.slots import (
    LLAMA_CPP_HEADROOM,
    MLX_HEADROOM,
    planned_slots,
    slot_ceiling,
    tier_slots,
)
from gezelctl.engines.llama_cpp.planner.swa import swa_verdict
from gezelctl.engines.llama_cpp.planner.types import Ask, Basis, LaunchQuestion, Placed, Room
from gezelctl.engines.llama_cpp.spec import SpecPlan


class Price(Protocol):
    """What an ask costs and where it lies; see CatalogPrice and HeaderPrice."""

    basis: Basis
    device: bool

    def notes(self) -> tuple[str, ...]: ...
    def full_swa_differs(self) -> bool: ...
    def slot_bytes(self, ask: Ask) -> int: ...
    def resident(self, ask: Ask) -> int: ...
    def fit(self, ask: Ask, room: Room, *, fast: bool = False) -> Placed | None: ...
    def window(self, ask: Ask, low: int, high: int, room: Room, *, fast: bool = False) -> int: ...


class Chosen(msgspec.Struct, frozen=True):
    """A grant with everything that was decided on the way; `reasons` by value name, one line each."""

    ask: Ask
    placed: Placed
    reasons: dict[str, str]
    notes: tuple[str, ...] = ()


class Candidate:
    """One server being planned."""

    def __init__(self, question: LaunchQuestion, host: HostMemory, settings: Settings, price: Price) -> None:
        self.question = question
        self.host = host
        self.settings = settings
        self.price = price
        self.mlx = question.payload.engine == "mlx"
        self._gemma = is_gemma(question.gguf, question.model.id)
        self.speculation = spec.Speculation(ways=(spec.PLAIN,), forced=False)
        self.wish = self._wish()
        self.kv, self.kv_reason = self._kv()

    def _wish(self) -> Wish:
        trained = self.question.gguf.context_length if self.question.gguf else 0
        authored = self.question.model.engine_options.get("contextSize")
        return context_wish(
            trained or self.question.model.context_window,
            host_floor(constrained=self.host.constrained),
            explicit=self.settings.integer("context") or 0,
            authored=authored if isinstance(authored, int) else 0,
        )

    def _kv(self) -> tuple[str, str]:
        given = self.settings.text("kvCache")
        if given or self.mlx:
            return given or FULL, ""
        return default_kv(self.question.gguf, self.question.model.id, self.settings.get("flashAttn"))

    @property
    def swa_choice(self) -> bool | None:
        """What is set of swaFull; None = to be decided, or nothing to decide."""
        value = self.settings.get("swaFull")
        return value if isinstance(value, bool) else None

    def ask(self, slots: int, context: int, plan: SpecPlan = spec.PLAIN, *, kv: str = "", full: bool = False) -> Ask:
        return Ask(context=context, slots=slots, kv=kv or self.kv, swa_full=full or bool(self.swa_choice), spec=plan)

    def smallest(self) -> Ask:
        """The least that the server could be started with: what it must have before anybody gets more."""
        forced = self.speculation.ways[0] if self.speculation.forced else spec.PLAIN
        return self.ask(self.settings.integer("slots") or 1, self.wish.shortest, forced)

    def slots(self, room: Room, kv: str) -> int:
        """How many slots to try first."""
        capacity = self.host.capacity
        tier = tier_slots(capacity.fast_bytes if self.price.device else self.host.ram_bytes)
        pool = sum(room.free.cards) if self.price.device and room.free.cards else room.free.ram
        if self.price.device:
            pool = min(pool, capacity.sizing_bytes)
        ask = self.ask(1, self.wish.requested, kv=kv)
        headroom = MLX_HEADROOM if self.mlx else LLAMA_CPP_HEADROOM
        ceiling = slot_ceiling(pool, self.price.resident(ask), self.price.slot_bytes(ask), headroom)
        return planned_slots(self.settings.integer("slots"), tier, ceiling)

    def promise(self, room: Room, plan: SpecPlan) -> Chosen | None:
        """The requested window for as many slots as there are, by the ladder; None = refused."""
        kv, reason = self._traded(room)
        planned = self.slots(room, kv)
        pinned = self.settings.integer("slots") is not None
        full_wanted = self.swa_choice is None and self._gemma and self.price.full_swa_differs()
        windowed = self._ladder(room, plan, planned, kv, pinned=pinned, full=False)
        full = False
        reasons = {"kvCache": reason}
        grant = windowed
        if full_wanted:
            grant_full = self._ladder(room, plan, planned, kv, pinned=pinned, full=True)
            fast = grant_full is not None and self._fits_fast(room, plan, kv, planned)
            verdict = swa_verdict(grant_full, windowed, planned, self.wish.requested, fits_fast=fast)
            grant, full = verdict.grant, bool(verdict.full)
            reasons["swaFull"] = verdict.reason
        if grant is None:
            return None
        ask = self.ask(grant.slots, grant.context, plan, kv=kv, full=full)
        placed = self.price.fit(ask, room)
        if placed is None:
            return None
        reasons["context"] = self._context_reason(grant)
        reasons["slots"] = _slots_reason(grant.slots, planned)
        return Chosen(ask, placed, reasons)

    def _ladder(self, room: Room, plan: SpecPlan, planned: int, kv: str, *, pinned: bool, full: bool) -> Grant | None:
        """Slots before context, and context before a refusal; a pinned slot count is the only rung."""
        high = self.wish.requested
        for low in self.wish.minima:

            def window(slots: int, low: int = low) -> int:
                if pinned and slots != planned:
                    return 0
                ask = self.ask(slots, high, plan, kv=kv, full=full)
                return self.price.window(ask, low, high, room)

            grant = ladder(planned, low, window)
            if grant is not None:
                return grant
        return None

    def _fits_fast(self, room: Room, plan: SpecPlan, kv: str, slots: int) -> bool:
        ask = self.ask(slots, self.wish.requested, plan, kv=kv, full=True)
        return self.price.fit(ask, room, fast=True) is not None

    def _traded(self, room: Room) -> tuple[str, str]:
        """The KV type, after Gemma's trade of precision for a second slot."""
        if self.kv != FULL or self.mlx:
            return self.kv, self.kv_reason
        decided = bool(self.settings.text("kvCache")) or self.settings.integer("slots") is not None
        tier = tier_slots(self.host.capacity.fast_bytes)
        if decided or tier < 2 or self.settings.text("flashAttn") == "off":
            return self.kv, self.kv_reason
        counts = {kv: self.slots(room, kv) for kv in (FULL, HALF)}
        if trades_precision(tier=tier, f16_slots=counts[FULL], q8_slots=counts[HALF], decided=decided):
            return HALF, "a second slot fits with it, and none with f16"
        return self.kv, self.kv_reason

    def _context_reason(self, grant: Grant) -> str:
        wish = self.wish
        if grant.context < wish.requested:
            return f"what memory leaves of the {wish.requested} tokens asked for; at least {wish.shortest} are needed"
        if grant.context == wish.native:
            return "the model's training context"
        return "the default window" if grant.context <= 65536 else "the catalog's window"

    def grown(self, chosen: Chosen, room: Room) -> Chosen:
        """The same launch with a longer window where fast memory is left over (the server's own share is in `room`).

        Nothing that was given up for the promise is spent on length: precision bought a slot. A full cache for
        windowed layers gives way where the windowed one grows further.
        """
        ask = chosen.ask
        hopeless = self.wish.explicit or self.mlx or self.price.basis == "heuristic"
        if hopeless or self.wish.target <= ask.context or ask.kv != self.kv:
            return chosen
        grown = self._stretch(chosen, room)
        if not ask.swa_full or self.swa_choice is not None:
            return grown
        windowed = msgspec.structs.replace(ask, swa_full=False)
        placed = self.price.fit(windowed, room)
        if placed is None:
            return grown
        reasons = chosen.reasons | {"swaFull": ""}
        other = self._stretch(Chosen(windowed, placed, reasons, chosen.notes), room)
        return other if other.ask.slots * other.ask.context > grown.ask.slots * grown.ask.context else grown

    def _stretch(self, chosen: Chosen, room: Room) -> Chosen:
        ask = chosen.ask
        pinned = self.settings.integer("slots") is not None

        def window(slots: int) -> int:
            wider = msgspec.structs.replace(ask, slots=slots)
            return self.price.window(wider, ask.context, self.wish.target, room, fast=True)

        grant = grow(Grant(ask.slots, ask.context), self.wish.target, pinned=pinned, window=window)
        wider = msgspec.structs.replace(ask, slots=grant.slots, context=grant.context)
        placed = self.price.fit(wider, room, fast=True) if wider != ask else None
        if placed is None:
            return chosen
        reasons = chosen.reasons | {"context": f"grown from {ask.context} into memory that nothing else needs"}
        if grant.slots != ask.slots:
            reasons["slots"] = f"{ask.slots - grant.slots} given for a longer window"
        return Chosen(wider, placed, reasons, chosen.notes)


def _slots_reason(slots: int, planned: int) -> str:
    if slots < planned:
        return f"{planned - slots} of {planned} given up to keep the window"
    return "as many as the memory of this host serves well"


def best_way(candidate: Candidate, room: Room) -> Chosen | None:
    """Plan with and without each way to speculate, and leave out what costs context, precision or residency."""
    ways = candidate.speculation.ways
    if candidate.speculation.forced:
        return candidate.promise(room, ways[0])
    plain = candidate.promise(room, spec.PLAIN)
    if plain is None:
        return None
    notes: list[str] = []
    for way in ways:
        if not way.types:
            break
        chosen = candidate.promise(room, way)
        cost = _cost(chosen, plain, candidate, room)
        if chosen is not None and not cost:
            return Chosen(chosen.ask, chosen.placed, chosen.reasons, tuple(notes))
        notes.append(f"{','.join(way.types)} left out: {cost}")
    return Chosen(plain.ask, plain.placed, plain.reasons, tuple(notes))


def _cost(chosen: Chosen | None, plain: Chosen, candidate: Candidate, room: Room) -> str:
    if chosen is None:
        return spec.drafter_costs_context("", "", 0, plain.ask.context)
    lost = spec.drafter_costs_context(chosen.ask.kv, plain.ask.kv, chosen.ask.context, plain.ask.context)
    if lost or not room.free.cards or not candidate.price.device:
        return lost
    if not plain.placed.offload.full or plain.placed.demand.total > sum(room.free.cards):
        return "" if chosen.placed.offload == plain.placed.offload else "more of the model would leave the GPU"
    needed = chosen.placed.demand.total if candidate.price.basis != "header" else sum(chosen.placed.demand.cards)
    moved = spec.drafter_costs_residency(needed, sum(room.free.cards))
    return moved or ("" if chosen.placed.offload.full else "part of the model would leave the GPU")

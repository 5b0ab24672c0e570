"""Why a server gets no launch, in words, with the table of what would fit."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gezelctl.engines.llama_cpp.planner.budget import GIB, UNLIMITED, HostMemory
from gezelctl.engines.llama_cpp.planner.coresidency import shortfall
from gezelctl.engines.llama_cpp.planner.kvchoice import FULL, HALF
from gezelctl.engines.llama_cpp.planner.one import Candidate
from gezelctl.engines.llama_cpp.planner.types import Ask, Demand, FitRow, Refusal, Room

DOES_NOT_FIT = "E0320"
TOGETHER = "E0321"
HOST_RESERVE = 4 * GIB
"""Of RAM, never offered to servers."""
_LEAST_CONTEXT = 2048
_NAMED = 4
_MOST_SLOTS = 4
"""Rows of the table: slot counts from one up, for each KV type that the model takes."""


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def refusal(candidate: Candidate, alone: Room, left: Room, residents: Mapping[str, int]) -> Refusal:
    """A server that would fit alone is refused for its company, another for its size."""
    ask = candidate.smallest()
    fits_alone = candidate.price.fit(ask, alone) is not None
    needed = needed_bytes(candidate, ask)
    wanted = f"{ask.slots} slot{'s' if ask.slots != 1 else ''} of {ask.context} tokens ({ask.kv})"
    table = fitting(candidate, left)
    if fits_alone and residents:
        company = _named(residents)
        short = shortfall(candidate.host, residents, candidate.question.name, needed)
        more = f", {gib(short)} too little" if short else ""
        summary = f"{wanted} needs {gib(needed)}; beside {company} there are {gib(left.free.total)}{more}"
        cure = _table_cure(candidate, table) or "Move a server to another host."
        return Refusal(TOGETHER, summary, cure, _field(candidate), table)
    summary = f"{wanted} needs {gib(needed)}; this host has {_limits(candidate.host)}"
    cure = _table_cure(candidate, table) or "Use a smaller model or quantisation."
    cure += _share_cure(candidate.host, needed)
    return Refusal(DOES_NOT_FIT, summary, cure, _field(candidate), table)


def needed_bytes(candidate: Candidate, ask: Ask) -> int:
    """What an ask takes on a host of this kind that has no limit, buffers included."""
    endless = Demand(tuple(UNLIMITED for _ in candidate.host.cards), UNLIMITED)
    placed = candidate.price.fit(ask, Room(endless, alone=True))
    if placed is None:
        return candidate.price.resident(ask) + candidate.price.slot_bytes(ask) * ask.slots
    return placed.demand.total


def _share_cure(host: HostMemory, needed: int) -> str:
    """The share of RAM that is planned with is a rule of ours; a machine that is there to serve may give more."""
    if host.shape == "unified" or needed > host.card_bytes + host.ram_total_bytes - HOST_RESERVE:
        return ""
    return f" Or set defaults.memoryMib: {-(-needed // GIB) * 1024}, if this host may give its servers that much."


def _named(residents: Mapping[str, int]) -> str:
    """The largest residents by name, and how many more there are."""
    largest = sorted(residents.items(), key=lambda item: (-item[1], item[0]))
    names = ", ".join(f"{name} {gib(size)}" for name, size in largest[:_NAMED])
    more = len(largest) - _NAMED
    return f"{names} and {more} more" if more > 0 else names


def _limits(host: HostMemory) -> str:
    if host.shape == "discrete":
        return f"{gib(host.card_bytes)} of GPU memory and {gib(host.ram_bytes)} of RAM to plan with"
    kind = "unified memory" if host.shape == "unified" else "RAM"
    return f"{gib(host.ram_bytes)} of {kind} to plan with"


def _field(candidate: Candidate) -> str:
    for name in ("context", "slots", "kvCache"):
        if candidate.settings.set_by_hand(name):
            return name
    return ""


def _table_cure(candidate: Candidate, table: tuple[FitRow, ...]) -> str:
    """The first row that differs from what is set, as an instruction."""
    if not table:
        return ""
    row = max(table, key=lambda found: (found.slots * found.context, found.kv_cache == FULL))
    parts = [f"context: {row.context}", f"slots: {row.slots}"]
    if row.kv_cache != candidate.kv:
        parts.append(f"kvCache: {row.kv_cache}")
    return f"Set {', '.join(parts)}; the table lists what else fits."


def fitting(candidate: Candidate, room: Room) -> tuple[FitRow, ...]:
    """What would fit: for every slot count the longest window, at the model's KV type and at half of it."""
    rows = []
    top = max(candidate.wish.native, candidate.wish.requested)
    low = min(_LEAST_CONTEXT, top)
    for kv in dict.fromkeys((candidate.kv, HALF)):
        for slots in range(1, _MOST_SLOTS + 1):
            ask = candidate.ask(slots, top, kv=kv)
            context = candidate.price.window(ask, low, top, room)
            if not context:
                break
            placed = candidate.price.fit(msgspec.structs.replace(ask, context=context), room)
            if placed is not None:
                rows.append(FitRow(slots, context, kv, placed.demand.total))
    return tuple(rows)

"""How much memory of a host may be planned with.

Curves after reference behaviour 7.11: unified memory, a discrete card beside RAM, or RAM alone. They are capped by what
the devices report of themselves, because a share of RAM is no promise: Metal has its own working set, a desktop holds
part of a card, other programs hold RAM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from gezelctl.observe.types import Facts, Gpu

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10

HostShape = Literal["unified", "discrete", "system-ram"]

_LARGE_HOST = 96 * GIB
_SHARE_LIMIT = 96 * GIB
_LIVE_MARGIN = 2 * GIB
"""Left of free RAM for what the host does next."""
_WORKING_SET_MARGIN = 2 * GIB
"""Below Metal's working set; allocations close to it have failed and taken machines down."""
_ENFORCED_FROM = GIB
"""A stated budget below this turns limits off."""
UNLIMITED = 1 << 60


class Capacity(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes that may be planned with. `fast` is what runs at full speed, `sizing` what slots are sized by."""

    budget_bytes: int
    fast_bytes: int
    sizing_bytes: int
    enforced: bool = True


class Card(msgspec.Struct, frozen=True, rename="camel"):
    """A discrete GPU. `usable_bytes` = the lesser of 95 % of its memory and what is free, ours counted as free."""

    id: str
    name: str
    total_bytes: int
    usable_bytes: int


class Held(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes that this stack's own running servers hold now, by GPU id and of RAM; they are planned anew."""

    gpu_bytes: Mapping[str, int] = {}
    ram_bytes: int = 0


class HostMemory(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A host as the planner sees it. `ram_bytes` is what may be planned of RAM (all of it, where memory is unified)."""

    shape: HostShape
    capacity: Capacity
    ram_bytes: int
    ram_total_bytes: int
    cards: tuple[Card, ...] = ()
    metal: bool = False

    @property
    def card_bytes(self) -> int:
        return sum(card.usable_bytes for card in self.cards)

    @property
    def constrained(self) -> bool:
        """A small host asks for a smaller window (reference behaviour 7.5)."""
        if self.shape == "discrete":
            return self.capacity.fast_bytes <= 8 * GIB
        return self.ram_total_bytes <= 16 * GIB


def host_shape(
    ram_bytes: int, vram_bytes: int, *, unified: bool | None = None, apple_silicon: bool = False
) -> HostShape:
    """Unified when stated, on Apple silicon, or when nothing is stated and video memory is at least 75 % of RAM."""
    if unified or apple_silicon or (unified is None and 4 * vram_bytes >= 3 * ram_bytes > 0):
        return "unified"
    return "discrete" if vram_bytes > 0 else "system-ram"


def capacity(shape: HostShape, ram_bytes: int, vram_bytes: int, explicit_bytes: int = 0) -> Capacity:
    """Budget of a host; `explicit_bytes` replaces the total, and turns limits off below 1 GiB (0 = not stated)."""
    large = ram_bytes >= _LARGE_HOST
    if 0 < explicit_bytes < _ENFORCED_FROM:
        return Capacity(UNLIMITED, UNLIMITED, UNLIMITED, enforced=False)
    if shape == "unified":
        curve = ram_bytes * (8 if large else 7) // 10
        budget = fast = max(0, min(max(curve, ram_bytes - 16 * GIB), ram_bytes - 4 * GIB))
        sizing = max(0, min(curve, ram_bytes - 4 * GIB, _SHARE_LIMIT))
    else:
        share = min(ram_bytes * (8 if large else 6) // 10, _SHARE_LIMIT)
        fast = sizing = usable_share(vram_bytes) if shape == "discrete" else share
        budget = fast + share if shape == "discrete" else share
    if explicit_bytes:
        return Capacity(explicit_bytes, min(fast, explicit_bytes), min(sizing, explicit_bytes))
    return Capacity(budget, fast, sizing)


def usable_share(vram_bytes: int) -> int:
    """What of a card's memory may be planned with."""
    return vram_bytes * 95 // 100


def card_of(gpu: Gpu, held_bytes: int = 0) -> Card:
    """Device admission: free memory, with what our own servers hold, within the card's usable share."""
    usable = min(usable_share(gpu.total_bytes), gpu.free_bytes + held_bytes)
    return Card(gpu.id, gpu.name, gpu.total_bytes, max(0, usable))


def host_memory(facts: Facts, held: Held | None = None, explicit_bytes: int = 0) -> HostMemory:
    """What may be planned on a host with these facts."""
    held = held or Held()
    metal = facts.os == "darwin" and facts.arch in {"arm64", "aarch64"}
    discrete = tuple(gpu for gpu in facts.gpus if gpu.kind == "discrete")
    shared = any(gpu.kind in {"unified", "integrated"} for gpu in facts.gpus) and not discrete
    vram = sum(gpu.total_bytes for gpu in discrete)
    shape = host_shape(facts.memory_total_bytes, vram, unified=shared, apple_silicon=metal)
    curve = capacity(shape, facts.memory_total_bytes, vram, explicit_bytes)
    live = max(0, facts.memory_available_bytes + held.ram_bytes - _LIVE_MARGIN)
    if shape != "discrete":
        cap = min(curve.budget_bytes, live if curve.enforced else UNLIMITED)
        if facts.recommended_working_set_bytes:
            cap = min(cap, max(0, facts.recommended_working_set_bytes - _WORKING_SET_MARGIN))
        limited = _limited(curve, cap)
        return HostMemory(
            shape=shape,
            capacity=limited,
            ram_bytes=limited.budget_bytes,
            ram_total_bytes=facts.memory_total_bytes,
            metal=metal,
        )
    cards = tuple(sorted((card_of(gpu, held.gpu_bytes.get(gpu.id, 0)) for gpu in discrete), key=lambda card: card.id))
    return _discrete(curve, cards, live, facts.memory_total_bytes)


def _discrete(curve: Capacity, cards: tuple[Card, ...], live: int, ram_total: int) -> HostMemory:
    """Cards and RAM are separate pools; a stated budget narrows the cards first, then RAM."""
    if not curve.enforced:
        cards = tuple(msgspec.structs.replace(card, usable_bytes=UNLIMITED) for card in cards)
        return HostMemory(shape="discrete", capacity=curve, ram_bytes=UNLIMITED, ram_total_bytes=ram_total, cards=cards)
    left = curve.fast_bytes
    kept = []
    for card in cards:
        usable = min(card.usable_bytes, left)
        left -= usable
        kept.append(msgspec.structs.replace(card, usable_bytes=usable))
    fast = sum(card.usable_bytes for card in kept)
    ram = min(curve.budget_bytes - curve.fast_bytes, live)
    limited = Capacity(fast + ram, fast, min(curve.sizing_bytes, fast))
    return HostMemory(shape="discrete", capacity=limited, ram_bytes=ram, ram_total_bytes=ram_total, cards=tuple(kept))


def _limited(curve: Capacity, cap: int) -> Capacity:
    return Capacity(
        min(curve.budget_bytes, cap), min(curve.fast_bytes, cap), min(curve.sizing_bytes, cap), curve.enforced
    )

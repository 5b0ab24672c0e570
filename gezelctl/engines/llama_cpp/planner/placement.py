"""Which devices a server uses: cards by their stable id, and the name that an engine build has for each."""

from __future__ import annotations

from collections.abc import Sequence

from gezelctl.engines.llama_cpp.planner.budget import MIB, Card, HostMemory
from gezelctl.engines.llama_cpp.planner.types import LaunchQuestion
from gezelctl.observe.types import Device

_TOTALS_AGREE = 0.06
"""Drivers and engines round a card's memory differently, and a driver keeps a part of it."""


def uses_device(question: LaunchQuestion, host: HostMemory) -> bool:
    """Whether a server computes on a GPU: its backend says so, and its build lists one where cards are separate."""
    if question.server.backend.accelerator == "cpu":
        return False
    probe = question.probe
    blind = probe is not None and bool(probe.flags) and not probe.pending and not probe.devices
    return not (blind and host.shape == "discrete")


def engine_names(cards: Sequence[Card], devices: Sequence[Device]) -> tuple[str, ...]:
    """The engine's own device name of every card, in the order of `cards`; empty when not every card is found.

    A card is known by its name and memory. Cards that agree in both are told apart by their order alone, which is
    enough to keep servers from sharing one by mistake, as every server is planned with the same order.
    """
    names: list[str] = []
    for card in cards:
        found = next((d.id for d in devices if d.id not in names and _same_card(card, d)), "")
        if not found:
            return ()
        names.append(found)
    return tuple(names)


def _same_card(card: Card, device: Device) -> bool:
    close = abs(card.total_bytes - device.total_bytes) <= _TOTALS_AGREE * card.total_bytes
    mine, theirs = _plain(card.name), _plain(device.name)
    return close and (mine in theirs or theirs in mine)


def _plain(name: str) -> str:
    return name.lower().replace("nvidia", "").replace("amd", "").strip()


def device_sets(free_bytes: Sequence[int], *, tight: bool) -> list[tuple[int, ...]]:
    """Cards to try in turn: each alone, then all together.

    The emptiest is first, which leaves a server most room; `tight` starts with the fullest, which leaves most room for
    large models to come.
    """
    sign = 1 if tight else -1
    alone: list[tuple[int, ...]] = [
        (index,) for index in sorted(range(len(free_bytes)), key=lambda index: (sign * free_bytes[index], index))
    ]
    return [*alone, tuple(range(len(free_bytes)))] if len(free_bytes) > 1 else alone


def split_shares(free_bytes: Sequence[int]) -> tuple[int, ...]:
    """`--tensor-split` in proportion to free memory, in GiB quarters, so that small changes of it change nothing."""
    quarters = tuple(size // (256 * MIB) for size in free_bytes)
    return quarters if any(quarters) else (1,) * len(free_bytes)

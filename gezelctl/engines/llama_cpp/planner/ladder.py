"""From a wish to what is granted: slots are given up before context, context never below its minimum (7.7)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gezelctl.engines.llama_cpp.planner.request import STEP

ALLOWANCE = 0.8
"""Part of the free budget that caches may take when prices are estimates; the rest is for compute buffers."""


class Grant(msgspec.Struct, frozen=True, rename="camel"):
    """Slots and tokens per slot."""

    slots: int
    context: int

    @property
    def tokens(self) -> int:
        return self.slots * self.context


def clamp(
    requested: int,
    slots: int,
    *,
    token_bytes: float,
    resident_bytes: int,
    budget_bytes: int,
    live_bytes: int | None = None,
    floor: int = 8192,
) -> int:
    """The window that an estimated price leaves, in steps of 1,024 tokens, between `floor` and the request.

    `budget_bytes` is what others have left of the budget, `live_bytes` what is free this minute (None = not known).
    """
    if token_bytes <= 0 or requested <= floor:
        return requested
    cap = budget_bytes if live_bytes is None else min(budget_bytes, live_bytes)
    allowance = (cap - resident_bytes) * ALLOWANCE
    return max(floor, min(requested, steps(allowance / token_bytes / slots)))


def steps(tokens: float) -> int:
    """Whole steps of 1,024 tokens, 0 for a negative number."""
    return max(0, int(tokens // STEP)) * STEP


def ladder(planned: int, minimum: int, window: Callable[[int], int]) -> Grant | None:
    """The first slot count from `planned` down whose window reaches the minimum; None = refused.

    `window(slots)` is what each of that many slots could get at most, up to the request.
    """
    for slots in range(planned, 0, -1):
        context = window(slots)
        if context >= minimum > 0:
            return Grant(slots, context)
    return None


def widest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest window from `low` up to `high` that fits, in steps above `low`; 0 when not even `low` does.

    Only windows that `fits` was asked about are returned. `fits` may be anything that larger windows make harder.
    """
    if fits(high):
        return high
    if low >= high or not fits(low):
        return 0
    known, beyond = 0, -(-(high - low) // STEP)
    while beyond - known > 1:
        middle = (known + beyond) // 2
        if fits(low + middle * STEP):
            known = middle
        else:
            beyond = middle
    return low + known * STEP

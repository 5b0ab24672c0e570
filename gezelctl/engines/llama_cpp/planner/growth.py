"""Growing a granted window into memory that nobody needs (reference behaviour 7.9)."""

from __future__ import annotations

from collections.abc import Callable

from gezelctl.engines.llama_cpp.planner.ladder import Grant

TRADE = 1.25
"""Slots are given for context only when each gets at least this much more of it."""


def grow(granted: Grant, target: int, *, pinned: bool, window: Callable[[int], int]) -> Grant:
    """The granted window, grown towards `target`.

    `window(slots)` is what each of that many slots could get of fast memory, up to the target. Without a pinned slot
    count, slots are given up (down to two, or one where there is only one) for the count that reaches the target, or
    else for the longest window.
    """
    if target <= granted.context:
        return granted
    untraded = max(granted.context, min(target, window(granted.slots)))
    best = Grant(granted.slots, untraded)
    if pinned or untraded >= target:
        return best
    for slots in range(granted.slots - 1, min(granted.slots, 2) - 1, -1):
        context = min(target, window(slots))
        if context > best.context and context >= TRADE * untraded:
            best = Grant(slots, context)
        if context >= target:
            break
    return best

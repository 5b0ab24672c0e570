"""How many requests at once (reference behaviour 7.6)."""

from __future__ import annotations

from gezelctl.engines.llama_cpp.planner.budget import GIB

LLAMA_CPP_HEADROOM = 0.2
MLX_HEADROOM = 0.35
"""Part of the memory that slots may not be planned into; MLX keeps more back, because it does not reserve."""


def tier_slots(fast_bytes: int) -> int:
    """Most slots that a host of this size gets by default."""
    return sum(fast_bytes >= edge * GIB for edge in (0, 12, 24, 48))


def slot_ceiling(pool_bytes: int, resident_bytes: int, slot_bytes: int, headroom: float = LLAMA_CPP_HEADROOM) -> int:
    """Slots whose caches fit beside the weights; at least 1. `pool_bytes` is what others have left."""
    if slot_bytes <= 0:
        return 1 << 16
    return max(1, int((pool_bytes - resident_bytes) * (1 - headroom) // slot_bytes))


def planned_slots(configured: int | None, tier: int, ceiling: int) -> int:
    """A configured number as it is, else the tier's, lowered to the ceiling."""
    return configured if configured is not None else max(1, min(tier, ceiling))

"""Who may be resident with whom, by bytes alone (reference behaviour 7.12)."""

from __future__ import annotations

from collections.abc import Mapping

from gezelctl.engines.llama_cpp.planner.budget import HostMemory


def ceiling(host: HostMemory) -> int:
    """Most that several servers may hold together: fast memory on a discrete host, the budget elsewhere."""
    return min(host.capacity.budget_bytes, host.capacity.fast_bytes)


def shortfall(host: HostMemory, held: Mapping[str, int], key: str, wanted_bytes: int) -> int:
    """Bytes that others would have to give up for `key` to hold `wanted_bytes`; 0 = it may.

    Its own earlier reservation is replaced. Alone it may spill up to the whole budget.
    """
    others = sum(size for name, size in held.items() if name != key)
    over_budget = others + wanted_bytes - host.capacity.budget_bytes
    over_ceiling = min(others, others + wanted_bytes - ceiling(host)) if others else 0
    return max(0, over_budget, over_ceiling)

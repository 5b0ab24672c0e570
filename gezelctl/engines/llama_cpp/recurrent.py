"""Bytes of recurrent state: llama_memory_recurrent of llama.cpp."""

from __future__ import annotations

from gezelctl.engines.llama_cpp.context import ContextPlan
from gezelctl.engines.llama_cpp.geometry import Geometry

STATE_BYTES = 4
"""State is F32 whatever the cache type."""


def state_layer_bytes(geometry: Geometry, plan: ContextPlan) -> tuple[int, ...]:
    """State bytes of each layer: one per slot even when the KV pool is unified, and one more per snapshot."""
    one = (geometry.r_elements + geometry.s_elements) * STATE_BYTES * plan.slots * (1 + plan.snapshots)
    return tuple(one if layer.recurrent else 0 for layer in geometry.layers)

"""Bytes of the attention cache per layer: llama_kv_cache and llama_kv_cache_iswa of llama.cpp."""

from __future__ import annotations

from gezelctl.engines.llama_cpp.context import (
    CACHE_TYPES,
    CONTEXT_ALIGNMENT,
    ContextPlan,
    ContextRequest,
    pad,
    row_bytes,
)
from gezelctl.engines.llama_cpp.geometry import Geometry


def window_cells(geometry: Geometry, plan: ContextPlan, *, swa_full: bool) -> int:
    """Cells per stream of a windowed layer: the window of every slot that shares the stream, plus one ubatch."""
    if swa_full:
        return plan.n_ctx_seq
    wanted = geometry.window * (plan.slots if plan.unified else 1) + plan.n_ubatch
    return min(plan.n_ctx_seq, pad(min(plan.n_ctx_seq, wanted), CONTEXT_ALIGNMENT))


def kv_layer_bytes(
    geometry: Geometry, request: ContextRequest, plan: ContextPlan, *, nextn: bool = False
) -> tuple[int, ...]:
    """Bytes of K and V of each layer over all streams; `nextn` sizes the MTP context instead of the main one.

    Without flash attention V is kept transposed and every layer's row is as wide as the widest.
    """
    swa_cells = window_cells(geometry, plan, swa_full=request.swa_full)
    widest = 0 if request.flash_attn else geometry.v_widest
    sizes = []
    for layer in geometry.layers:
        if not layer.cached or layer.nextn != nextn:
            sizes.append(0)
            continue
        v_elements = layer.v_elements if request.flash_attn or geometry.mla else widest
        row = row_bytes(request.type_k, layer.k_elements) + row_bytes(request.type_v, v_elements)
        row += row_bytes(request.type_k, layer.index_elements)
        sizes.append(row * (swa_cells if layer.swa else plan.n_ctx_seq) * plan.streams)
    return tuple(sizes)


def refusals(geometry: Geometry, request: ContextRequest) -> tuple[str, ...]:
    """Why llama.cpp would refuse these cache types, empty when it would not."""
    found = []
    quantized_v = CACHE_TYPES[request.type_v][0] > 1
    if quantized_v and not request.flash_attn:
        found.append(f"V cache type {request.type_v} needs flash attention")
    if geometry.mla and request.type_k != request.type_v:
        found.append(f"an MLA model needs one cache type, not {request.type_k} and {request.type_v}")
    return tuple(found)

"""Upper bounds of llama.cpp's compute, output and input buffers.

A compute buffer holds the worst-case graph: one full ubatch against the whole cache. ggml reuses its space from layer
to layer, so it depends on the widest layer and not on the number of layers or on the type of the weights. The bound
below was checked against the engine's own figures (tests/cases/memory/measured.json) and is never under them.
"""

from __future__ import annotations

import msgspec

from gezelctl.engines.llama_cpp import architectures as arch
from gezelctl.engines.llama_cpp.context import ContextPlan, ContextRequest
from gezelctl.engines.llama_cpp.geometry import Geometry, per_layer
from gezelctl.engines.llama_cpp.kv import window_cells
from gezelctl.engines.llama_cpp.layout import Layout
from gezelctl.engines.llama_cpp.weights import HOST, Placement, staged_bytes
from gezelctl.gguf.types import GgufSummary

FLOAT = 4
INDEX = 8
RWKV_WIDTHS = {"rwkv6": 9, "rwkv7": 14, "rwkv6qwen2": 20, "arwkv7": 20}
"""Activations of RWKV layers beyond the common ones, in embeddings."""
PIPELINE_COPIES = 4
"""GGML_SCHED_MAX_COPIES: inputs kept per device under pipeline parallelism."""


class Widths(msgspec.Struct, frozen=True, rename="camel"):
    """What sets the size of a graph: values per token."""

    embedding: int
    activation: int
    """Widest set of activations that live at once in one layer."""
    per_layer_input: int
    """Per-layer input embeddings of all layers (gemma3n, gemma4 E models)."""
    heads: int
    vocabulary: int
    state: int
    """r + s of one recurrent layer."""


def graph_widths(summary: GgufSummary, geometry: Geometry) -> Widths:
    """Read the widths from a header; arrays count with their largest value."""
    embedding = summary.integer("embedding_length")
    count = summary.block_count
    heads = max(per_layer(summary, "attention.head_count", count), default=0)
    feed_forward = max(per_layer(summary, "feed_forward_length", count), default=0)
    widest = max(
        3 * feed_forward,
        _experts(summary, embedding, feed_forward),
        8 * summary.integer("ssm.inner_size"),
        RWKV_WIDTHS.get(summary.architecture, 0) * embedding,
        _attention(summary, geometry, heads),
    )
    per_layer_input = summary.integer("embedding_length_per_layer_input") * count
    extra = per_layer_input + per_layer_input // 2 + 4 * summary.integer("expert_count")
    if summary.architecture == "gemma3n":
        extra += 9 * embedding
    return Widths(
        embedding=embedding,
        activation=7 * embedding + widest + extra,
        per_layer_input=per_layer_input,
        heads=heads,
        vocabulary=summary.vocab_size or summary.integer("vocab_size"),
        state=geometry.r_elements + geometry.s_elements,
    )


def _experts(summary: GgufSummary, embedding: int, feed_forward: int) -> int:
    used = summary.integer("expert_used_count")
    if not used:
        return 0
    own = 0 if summary.architecture in arch.EXPERTS_LIKE_DENSE else summary.integer("expert_feed_forward_length")
    width = own or feed_forward
    shared = summary.integer("expert_shared_feed_forward_length") or summary.integer("expert_shared_count") * width
    return max(3 * used * width, 2 * used * embedding) + 3 * shared


def _attention(summary: GgufSummary, geometry: Geometry, heads: int) -> int:
    cached = [layer for layer in geometry.layers if layer.cached]
    if not cached or not heads:
        return 0
    fallback = summary.integer("embedding_length") // heads
    dk = summary.integer("attention.key_length", fallback)
    dv = summary.integer("attention.value_length", fallback)
    k_row = max(layer.k_elements for layer in cached)
    v_row = max(layer.v_elements for layer in cached)
    return 2 * (heads * dk + k_row + v_row) + heads * dv


def graph_bound(widths: Widths, geometry: Geometry, request: ContextRequest, plan: ContextPlan, outputs: int) -> int:
    """Bytes that one device's share of the graph never exceeds; `outputs` rows of logits, 0 without the head."""
    tokens = min(plan.n_ctx, plan.n_ubatch)
    cells, swa_cells = _cells(geometry, request, plan)
    if request.flash_attn and geometry.architecture not in arch.NO_FLASH_ATTENTION:
        scores = tokens * 2 * (cells + swa_cells)
    else:
        scores = tokens * ((4 * widths.heads + 4) * max(cells, swa_cells) + 4 * swa_cells)
    if geometry.architecture in arch.INDEXED:
        scores += 3 * FLOAT * tokens * cells
    state = 2 * FLOAT * plan.slots * widths.state
    cast = _cast_cache_bytes(geometry, request, plan, max(cells, swa_cells))
    activation = FLOAT * widths.activation * tokens * arch.WIDER_GRAPHS.get(geometry.architecture, 100) // 100
    return activation + scores + state + cast + FLOAT * outputs * widths.vocabulary


def _cast_cache_bytes(geometry: Geometry, request: ContextRequest, plan: ContextPlan, cells: int) -> int:
    """Flash attention works on F16 copies of an F32 cache, one layer at a time: llm_graph_context::build_attn_mha."""
    if not request.flash_attn:
        return 0
    cached = [layer for layer in geometry.layers if layer.cached]
    k_row = max((layer.k_elements for layer in cached), default=0) if request.type_k == "f32" else 0
    v_row = max((layer.v_elements for layer in cached), default=0) if request.type_v == "f32" else 0
    return 2 * (k_row + v_row) * cells * plan.streams


def input_bound(
    widths: Widths, geometry: Geometry, request: ContextRequest, plan: ContextPlan, *, pipelined: bool
) -> int:
    """Bytes of a graph's inputs: masks, embeddings and positions of one ubatch, in four copies when pipelined.

    Without flash attention the mask is F32 and every value of the transposed V gets its own 64-bit row index.
    """
    cells, swa_cells = _cells(geometry, request, plan)
    each = 256 + 2 * FLOAT * widths.per_layer_input
    if request.flash_attn:
        each += 2 * (cells + swa_cells)
    else:
        caches = bool(cells) + bool(swa_cells)
        each += 4 * (cells + swa_cells) + INDEX * geometry.v_widest * caches
    copies, embeddings = (PIPELINE_COPIES, 45) if pipelined else (1, 17)
    embeddings += copies * arch.INPUT_EMBEDDINGS.get(geometry.architecture, 0)
    small = 4096 * (1 + plan.slots)
    return plan.n_ubatch * (copies * each + embeddings * widths.embedding) + small


def head_bound(widths: Widths, plan: ContextPlan, outputs: int) -> int:
    """Bytes that a device with the output head alone never exceeds."""
    return FLOAT * (outputs * widths.vocabulary + 12 * widths.embedding * plan.n_ubatch) + 65536


def _cells(geometry: Geometry, request: ContextRequest, plan: ContextPlan) -> tuple[int, int]:
    """Cells per stream that full and windowed layers see, 0 where there are no such layers.

    Without a cache a ubatch attends to itself.
    """
    if geometry.architecture in arch.NO_CACHE:
        return plan.n_ubatch, plan.n_ubatch
    full = any(layer.cached and not layer.swa for layer in geometry.layers)
    windowed = any(layer.cached and layer.swa for layer in geometry.layers)
    swa_cells = window_cells(geometry, plan, swa_full=request.swa_full) if windowed else 0
    return plan.n_ctx_seq if full else 0, swa_cells


def is_pipelined(request: ContextRequest, placement: Placement) -> bool:
    """Whether llama.cpp keeps several batches in flight: llama_context's own conditions.

    More than one device, everything offloaded, cache offloaded, no tensor overrides, devices that can do it.
    """
    return (
        len(request.devices) > 1
        and placement.full
        and request.kv_offload
        and not request.cpu_moe_layers
        and all(device.async_events for device in request.devices)
    )


def moved_cache_bytes(
    geometry: Geometry, request: ContextRequest, placement: Placement, kv: tuple[int, ...], device: int
) -> int:
    """Cache bytes that a device copies in because it works on a layer whose cache lies elsewhere.

    That is so without cache offload, for an attention layer of a hybrid just outside the offloaded part, and for
    layers that share the cache of an earlier layer on another device.
    """
    sharing = [index for index, layer in enumerate(geometry.layers) if layer.shares]
    if not request.kv_offload:
        return (4 if sharing else 2) * max(kv, default=0)
    if geometry.hybrid and not placement.full:
        return max(kv, default=0)
    if not sharing:
        return 0
    owners = range(max(sharing[0] - 2, 0), sharing[0])
    copied = sum(kv[owner] for owner in owners if placement.layers[owner] != device)
    uses = any(placement.layers[index] == device for index in sharing)
    return copied * (PIPELINE_COPIES if is_pipelined(request, placement) else 1) if uses else 0


def compute_bounds(layout: Layout, kv: tuple[int, ...]) -> dict[int, int]:
    """Upper bound of the compute buffer of each device index, HOST included; `kv` is the cache bytes of each layer.

    The host computes when it holds layers, experts or the cache, else it only keeps the inputs.
    """
    geometry, request, plan, placement = layout.geometry, layout.request, layout.plan, layout.placement
    widths = graph_widths(layout.summary, geometry)
    outputs = min(plan.n_outputs, plan.n_ubatch)
    pipelined = is_pipelined(request, placement)
    inputs = input_bound(widths, geometry, request, plan, pipelined=pipelined)
    staged = staged_bytes(layout.summary.weights, request, placement)
    found = {HOST: inputs}
    if HOST in placement.layers or not request.kv_offload or request.cpu_moe_layers or not placement.layers:
        head = outputs if placement.output == HOST else 0
        found[HOST] = max(inputs, graph_bound(widths, geometry, request, plan, head))
    for index, device in enumerate(request.devices):
        head = outputs if placement.output == index else 0
        if index in placement.layers:
            moved = moved_cache_bytes(geometry, request, placement, kv, index)
            bound = graph_bound(widths, geometry, request, plan, head) + moved + (inputs if moved else 0)
            bound += 0 if request.kv_offload else FLOAT * plan.slots * widths.state
        else:
            bound = head_bound(widths, plan, head) if head else 0
        if pipelined and bound:
            bound += inputs + PIPELINE_COPIES * FLOAT * widths.embedding * plan.n_ubatch
        found[index] = bound + (staged if device.stages_weights and bound else 0)
    return found


def output_bytes(widths: Widths, request: ContextRequest, plan: ContextPlan) -> int:
    """Host buffer of logits, and of embeddings where they are wanted: llama_context::output_reserve."""
    row = widths.vocabulary + (widths.embedding if request.embedding else 0)
    rows = max(plan.n_outputs, plan.slots) * row
    return FLOAT * (rows + (widths.embedding * plan.n_batch if request.load_mtp else 0))

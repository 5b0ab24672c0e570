"""What a llama.cpp server will allocate, by device and in total, from a header and a request.

Context bytes are exact for every architecture whose cache is modelled; weights are exact up to alignment; compute is
an upper bound. Nothing here reads a file or a machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gezelctl.engines.llama_cpp.compute import compute_bounds, graph_widths, output_bytes
from gezelctl.engines.llama_cpp.context import CONTEXT_ALIGNMENT, ContextPlan, ContextRequest, plan_context
from gezelctl.engines.llama_cpp.geometry import Geometry
from gezelctl.engines.llama_cpp.kv import kv_layer_bytes, refusals, window_cells
from gezelctl.engines.llama_cpp.layout import Layout, lay_out
from gezelctl.engines.llama_cpp.recurrent import state_layer_bytes
from gezelctl.engines.llama_cpp.weights import (
    HOST,
    Placement,
    embedding_is_doubled,
    weights_by_device,
)
from gezelctl.gguf.types import GgufSummary

MIB = 1024 * 1024
PROMPT_CACHE_BYTES = 8192 * MIB
"""`--cache-ram` default of llama-server."""
PROJECTOR_HEADROOM_BYTES = 512 * MIB
"""For the vision graph of the largest image, unless it was measured."""
CUDA_OVERHEAD_BYTES = 512 * MIB
"""Context, cuBLAS workspaces and pools of one CUDA device, outside every llama.cpp figure."""
UNKNOWN_MARGIN_PERCENT = 25
"""Added to context bytes of a cache class that is not modelled."""
HOST_NAME = "host"


class Projector(msgspec.Struct, frozen=True, rename="camel"):
    """An mmproj file: its tensor bytes, and what it was seen to use where that is known."""

    weight_bytes: int
    measured_bytes: int | None = None
    offload: bool = True
    """On the first device (`--mmproj-offload`, the default), else on the host."""


class Drafter(msgspec.Struct, frozen=True, rename="camel"):
    """A draft model beside the target. Its context has the target's total size, slots and pool."""

    summary: GgufSummary
    type_k: str = "f16"
    type_v: str = "f16"
    n_gpu_layers: int | None = None
    block_tokens: int = 0
    """Tokens that a block drafter (dflash, dspark) proposes in one pass, 0 for one at a time."""


class Extras(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a server holds besides its model and context."""

    projector: Projector | None = None
    drafter: Drafter | None = None
    mtp_type_k: str = "f16"
    mtp_type_v: str = "f16"
    lora_bytes: int = 0
    """Tensor bytes of all adapters."""
    prompt_cache_bytes: int = PROMPT_CACHE_BYTES
    """Limit of the prompt cache in host memory; 0 = off."""


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Bytes on one device or the host."""

    device: str
    context_bytes: int = 0
    weights_bytes: int = 0
    compute_bound_bytes: int = 0
    output_bytes: int = 0
    draft_bytes: int = 0
    projector_bytes: int = 0
    prompt_cache_bytes: int = 0
    overhead_bytes: int = 0
    total_bytes: int = 0


class MemoryEstimate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Sums over all devices, then each device; "host" is always the first."""

    context_bytes: int
    weights_bytes: int
    compute_bound_bytes: int
    output_bytes: int
    draft_bytes: int
    projector_bytes: int
    prompt_cache_bytes: int
    overhead_bytes: int
    total_bytes: int
    devices: tuple[DeviceMemory, ...]
    plan: ContextPlan
    placement: Placement
    exact: bool
    """Context bytes are exact; False adds a margin and a note why."""
    notes: tuple[str, ...] = ()


class ContextLine(msgspec.Struct, frozen=True, rename="camel"):
    """Context bytes as a line in tokens per slot: `fixed_bytes + bytes_per_token * tokens`, over all slots.

    Exact for multiples of 256 tokens from `from_tokens` on, where every sliding window is full; an upper bound below.
    """

    fixed_bytes: int
    bytes_per_token: int
    from_tokens: int

    def at(self, slot_tokens: int) -> int:
        """Bytes at this many tokens per slot, rounded up as llama.cpp does."""
        return self.fixed_bytes + self.bytes_per_token * -(-slot_tokens // CONTEXT_ALIGNMENT) * CONTEXT_ALIGNMENT


def context_bytes(geometry: Geometry, request: ContextRequest, plan: ContextPlan) -> int:
    """Attention cache and recurrent state of the main context, in bytes over all devices."""
    return sum(_context_layers(geometry, plan, kv_layer_bytes(geometry, request, plan)))


def context_line(geometry: Geometry, request: ContextRequest, n_ctx_train: int = 0) -> ContextLine:
    """How context bytes grow with tokens per slot under a request; its own context size does not matter."""
    slots = plan_context(msgspec.structs.replace(request, n_ctx=CONTEXT_ALIGNMENT), n_ctx_train).slots
    enough = geometry.window * slots + request.n_ubatch + request.n_batch
    low = -(-enough // CONTEXT_ALIGNMENT) * CONTEXT_ALIGNMENT
    plans = [_slot_plan(geometry, request, low * factor) for factor in (1, 2)]
    at_low, at_high = (context_bytes(geometry, request, plan) for plan in plans)
    slope = (at_high - at_low) // low
    reached = 0 if request.swa_full else window_cells(geometry, plans[1], swa_full=False)
    unified = plans[1].unified
    from_tokens = -(-reached // slots) if unified else reached
    return ContextLine(at_low - slope * low, slope, from_tokens if geometry.window else 0)


def _slot_plan(geometry: Geometry, request: ContextRequest, slot_tokens: int) -> ContextPlan:
    sized = msgspec.structs.replace(request, n_ctx=0, slot_tokens=slot_tokens)
    return plan_context(sized, 0, rollback=geometry.rollback)


def estimate(summary: GgufSummary, request: ContextRequest, extras: Extras | None = None) -> MemoryEstimate:
    """Memory of one server by device.

    Raises:
        ValueError: for a request that llama.cpp would abort on.
        KeyError: for a cache type that it does not know.
    """
    extras = extras or Extras()
    layout = lay_out(summary, request)
    rows = _model_rows(layout)
    if request.load_mtp and any(layer.nextn for layer in layout.geometry.layers):
        _add_draft(rows, mtp_context(layout, extras))
    if extras.drafter:
        _add_draft(rows, _drafter_rows(extras.drafter, layout))
    _add_companions(rows, request, extras)
    devices = tuple(_finish(row, index, request) for index, row in rows.items())
    return MemoryEstimate(
        **{name: sum(getattr(device, name) for device in devices) for name in _FIGURES},
        devices=devices,
        plan=layout.plan,
        placement=layout.placement,
        exact=layout.geometry.exact,
        notes=_notes(layout),
    )


def _notes(layout: Layout) -> tuple[str, ...]:
    geometry, request = layout.geometry, layout.request
    notes = [*geometry.notes, *refusals(geometry, request)]
    if request.snapshots and not geometry.rollback and any(layer.recurrent for layer in geometry.layers):
        notes.append(f"{geometry.architecture} cannot roll recurrent state back: no snapshots are kept")
    if layout.plan.n_ctx_seq > layout.summary.context_length > 0:
        trained = layout.summary.context_length
        notes.append(f"a slot is capped at the training context of {trained} tokens, its cache is not")
    return tuple(notes)


_FIGURES = tuple(field for field in DeviceMemory.__struct_fields__ if field != "device")
_Row = dict[str, int]


def _context_layers(geometry: Geometry, plan: ContextPlan, kv: Sequence[int]) -> list[int]:
    return [cache + recurrent for cache, recurrent in zip(kv, state_layer_bytes(geometry, plan), strict=True)]


def _model_rows(layout: Layout) -> dict[int, _Row]:
    """Weights, context, compute and output buffer of one model by device index, HOST first."""
    geometry, request, plan, placement = layout.geometry, layout.request, layout.plan, layout.placement
    rows: dict[int, _Row] = {index: dict.fromkeys(_FIGURES, 0) for index in (HOST, *range(len(request.devices)))}
    doubled = embedding_is_doubled(layout.summary)
    weights = weights_by_device(layout.summary.weights, geometry, request, placement, doubled_embedding=doubled)
    margin = 100 if geometry.exact else 100 + UNKNOWN_MARGIN_PERCENT
    for index, size in weights.items():
        rows[index]["weights_bytes"] = size
    kv = kv_layer_bytes(geometry, request, plan)
    for layer, size in enumerate(_context_layers(geometry, plan, kv)):
        device = placement.layers[layer] if request.kv_offload else HOST
        rows[device]["context_bytes"] += size * margin // 100
    for index, size in compute_bounds(layout, kv).items():
        rows[index]["compute_bound_bytes"] = size
    rows[HOST]["output_bytes"] = output_bytes(graph_widths(layout.summary, geometry), request, plan)
    return rows


def mtp_context(layout: Layout, extras: Extras) -> dict[int, _Row]:
    """The MTP context by device index: a cache of the MTP layers alone and a second compute buffer.

    Its weights are the model's own. It computes where its layers and the output head are.
    """
    request = msgspec.structs.replace(layout.request, type_k=extras.mtp_type_k, type_v=extras.mtp_type_v)
    kv = kv_layer_bytes(layout.geometry, request, layout.plan, nextn=True)
    placement = layout.placement
    rows: dict[int, _Row] = {index: dict.fromkeys(_FIGURES, 0) for index in (HOST, *range(len(request.devices)))}
    for layer, size in enumerate(kv):
        rows[placement.layers[layer] if request.kv_offload else HOST]["context_bytes"] += size
    for index, size in compute_bounds(msgspec.structs.replace(layout, request=request), kv).items():
        if index in {HOST, placement.output, placement.layers[-1]}:
            rows[index]["compute_bound_bytes"] = size
    rows[HOST]["output_bytes"] = output_bytes(graph_widths(layout.summary, layout.geometry), request, layout.plan)
    return rows


def _add_draft(rows: dict[int, _Row], draft: dict[int, _Row]) -> None:
    for index, row in draft.items():
        rows[index]["draft_bytes"] += sum(row.values())


def _drafter_rows(drafter: Drafter, target: Layout) -> dict[int, _Row]:
    """A draft model: its own weights, context at the target's total size, compute and output buffers."""
    own = msgspec.structs.replace(
        target.request,
        n_ctx=target.plan.n_ctx,
        slots=target.plan.slots,
        unified=target.plan.unified,
        type_k=drafter.type_k,
        type_v=drafter.type_v,
        n_gpu_layers=drafter.n_gpu_layers,
        snapshots=0,
        draft_tokens=drafter.block_tokens,
        cpu_moe_layers=0,
        load_mtp=False,
        tensor_split=(),
    )
    return _model_rows(lay_out(drafter.summary, own))


def _add_companions(rows: dict[int, _Row], request: ContextRequest, extras: Extras) -> None:
    first = 0 if request.devices else HOST
    if extras.projector:
        projector = extras.projector
        size = projector.measured_bytes or projector.weight_bytes + PROJECTOR_HEADROOM_BYTES
        rows[first if projector.offload else HOST]["projector_bytes"] += size
    rows[HOST]["prompt_cache_bytes"] = extras.prompt_cache_bytes
    placed = sum(row["weights_bytes"] for row in rows.values())
    for row in rows.values():
        if extras.lora_bytes and placed:
            row["weights_bytes"] += -(-extras.lora_bytes * row["weights_bytes"] // placed)
    for index, device in enumerate(request.devices):
        rows[index]["overhead_bytes"] = device.overhead_bytes


def _finish(row: _Row, index: int, request: ContextRequest) -> DeviceMemory:
    name = HOST_NAME if index == HOST else request.devices[index].name
    return DeviceMemory(device=name, **{**row, "total_bytes": sum(row.values())})

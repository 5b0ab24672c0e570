"""Context sizing of llama.cpp: what a request for slots and tokens becomes.

The rules are those of the `llama_context` constructor (src/llama-context.cpp) and of llama-server's defaults
(common/arg.cpp) in build b11434; older builds padded to 32.
"""

from __future__ import annotations

import msgspec

CONTEXT_ALIGNMENT = 256
"""`GGML_PAD(n_ctx, 256)`: cells come in multiples of this."""
MAX_SLOTS = 256
"""LLAMA_MAX_SEQ."""
DEFAULT_SLOTS = 4
"""llama-server without `-np`: four slots over one unified pool."""

CACHE_TYPES: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}
"""Types that `--cache-type-k/-v` accept: (elements per block, bytes per block), ggml's type traits."""


class Device(msgspec.Struct, frozen=True, rename="camel"):
    """One accelerator as llama.cpp sees it, in the order of `--device`."""

    name: str
    free_bytes: int = 0
    """Free memory at load; the default tensor split is proportional to it."""
    overhead_bytes: int = 0
    """Memory outside every llama.cpp figure (CUDA context, cuBLAS workspace)."""
    async_events: bool = False
    """Backend can copy asynchronously and record events (CUDA, ROCm): needed for pipeline parallelism."""
    stages_weights: bool = False
    """Backend takes large batches of host-resident weights over (op-offload on CUDA, ROCm, Vulkan, SYCL)."""


class ContextRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a launch asks for. Defaults are llama-server's own; None means that the flag is not given."""

    n_ctx: int = 0
    """`-c`, total tokens; 0 = the training context of the model."""
    slot_tokens: int = 0
    """Tokens per slot, used when `n_ctx` is 0: the pool is slots times this (`--kv-unified-per-slot` when unified)."""
    slots: int | None = None
    unified: bool | None = None
    n_batch: int = 2048
    n_ubatch: int = 512
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: bool = True
    swa_full: bool = False
    kv_offload: bool = True
    op_offload: bool = True
    embedding: bool = False
    """Embedding or rerank mode: every token of a batch is an output, and the output buffer holds embeddings too."""
    snapshots: int = 0
    """Recurrent state snapshots per slot for speculative rollback (spec-draft-n-max under MTP or EAGLE)."""
    draft_tokens: int = 0
    """Tokens that a drafter proposes at once; each slot verifies 1 + this many outputs."""
    n_gpu_layers: int | None = None
    """`-ngl`; None or negative = all."""
    devices: tuple[Device, ...] = ()
    """Devices in use; empty = host only."""
    tensor_split: tuple[float, ...] = ()
    """`-ts`; empty = proportional to free memory."""
    cpu_moe_layers: int = 0
    """`--n-cpu-moe`; a number at or above the layer count is `--cpu-moe`."""
    load_mtp: bool = False
    """MTP (nextn) tensors are loaded, because --spec-type contains draft-mtp."""


class ContextPlan(msgspec.Struct, frozen=True, rename="camel"):
    """What llama.cpp makes of a request."""

    n_ctx: int
    n_ctx_seq: int
    """Cells per stream: what one slot can reach."""
    streams: int
    slots: int
    unified: bool
    n_batch: int
    n_ubatch: int
    n_outputs: int
    """Rows of logits reserved for one ubatch."""
    snapshots: int


def pad(value: int, alignment: int) -> int:
    """`value` rounded up to a multiple of `alignment`."""
    return -(-value // alignment) * alignment


def row_bytes(cache_type: str, elements: int) -> int:
    """Bytes of a row of `elements` values, ggml_row_size.

    Raises:
        KeyError: for a type that llama.cpp does not accept for its cache.
    """
    block, size = CACHE_TYPES[cache_type]
    return elements // block * size


def total_tokens(request: ContextRequest, slots: int, n_ctx_train: int) -> int:
    """`-c` after its defaults: the explicit total, or slots times tokens per slot, or the training context."""
    return request.n_ctx or request.slot_tokens * slots or n_ctx_train


def plan_context(request: ContextRequest, n_ctx_train: int, *, rollback: bool = False) -> ContextPlan:
    """Resolve a request into sizes.

    `rollback` says that the architecture supports recurrent rollback (llm_arch_supports_rs_rollback); without it
    snapshots are clamped to 0. Without flags llama-server runs four slots over a unified pool; an explicit slot count
    splits the pool unless it is asked to be unified.

    Raises:
        ValueError: for a slot count outside 1..256 or a non-positive context or batch; llama.cpp aborts on these.
    """
    slots = DEFAULT_SLOTS if request.slots is None else request.slots
    unified = request.slots is None if request.unified is None else request.unified
    wanted = total_tokens(request, slots, n_ctx_train)
    if not 1 <= slots <= MAX_SLOTS:
        raise ValueError(f"slots must be 1 to {MAX_SLOTS}, not {slots}")
    if wanted < 1 or request.n_batch < 1 or request.n_ubatch < 0:
        raise ValueError(f"context {wanted}, batch {request.n_batch}, ubatch {request.n_ubatch}: must be positive")
    snapshots = request.snapshots if rollback else 0
    n_batch = min(wanted, request.n_batch)
    n_ubatch = min(n_batch, request.n_ubatch or n_batch)
    if snapshots:
        n_batch, n_ubatch = max(n_batch, snapshots + 2), max(n_ubatch, snapshots + 2)
    n_ctx = pad(wanted, CONTEXT_ALIGNMENT)
    n_ctx_seq = n_ctx if unified else pad(n_ctx // slots, CONTEXT_ALIGNMENT)
    outputs = n_batch if request.embedding else min(n_batch, slots * (1 + request.draft_tokens))
    return ContextPlan(
        n_ctx=n_ctx if unified else n_ctx_seq * slots,
        n_ctx_seq=n_ctx_seq,
        streams=1 if unified else slots,
        slots=slots,
        unified=unified,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_outputs=outputs,
        snapshots=snapshots,
    )

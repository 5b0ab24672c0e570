"""Which KV cache type a server gets (reference behaviour 7.4) and what the engine demands of it."""

from __future__ import annotations

from gezelctl.engines.llama_cpp.context import CACHE_TYPES
from gezelctl.engines.report import Report
from gezelctl.engines.types import Value
from gezelctl.gguf.types import GgufSummary

_WITHOUT_FLASH_ATTENTION = frozenset({"grok"})
"""Architectures for which llama.cpp forces flash attention off (llama_init_from_model)."""


def is_gemma(gguf: GgufSummary | None, model_id: str) -> bool:
    """By architecture when the header is known, and by id."""
    return (gguf is not None and gguf.architecture.lower().startswith("gemma")) or "gemma" in model_id.lower()


def head_sizes(gguf: GgufSummary) -> tuple[int, ...]:
    """Elements of a K or V head, global and windowed; empty for a model without attention heads."""
    heads = gguf.integer("attention.head_count") or int(max(gguf.array("attention.head_count") or (0,)))
    default = gguf.integer("embedding_length") // heads if heads else 0
    names = ("key_length", "value_length", "key_length_swa", "value_length_swa")
    sizes = {gguf.integer(f"attention.{name}", default if "swa" not in name else 0) for name in names}
    return tuple(sorted(sizes - {0}))


def quantised(kv_type: str) -> bool:
    """Has blocks of more than one element: needs flash attention for V."""
    return CACHE_TYPES[kv_type][0] > 1


def unfit_reason(kv_type: str, gguf: GgufSummary | None, flash_attn: object) -> str:
    """Why the engine would refuse this cache type, "" when it takes it (llama_init_from_model)."""
    if not quantised(kv_type):
        return ""
    if flash_attn == "off":
        return f"a {kv_type} V cache requires flash attention, which is off"
    if gguf is None:
        return ""
    if gguf.architecture in _WITHOUT_FLASH_ATTENTION:
        return f"a {kv_type} V cache requires flash attention, which {gguf.architecture} models do not support"
    block = CACHE_TYPES[kv_type][0]
    size = next((s for s in head_sizes(gguf) if s % block), 0)
    return f"the block of {kv_type} ({block}) does not divide the head size {size}" if size else ""


def choose_kv_type(
    wanted: Value | None, gguf: GgufSummary | None, model_id: str, flash_attn: object, report: Report
) -> Value:
    """The wanted type if the engine takes it (else E0305); without a wish f16 for Gemma and q8_0 for the rest."""
    if wanted is not None:
        reason = unfit_reason(str(wanted.value), gguf, flash_attn)
        if reason:
            report.error("E0305", "kvCache", f"kvCache {wanted.value} cannot be used: {reason}", "Set kvCache: f16.")
        return wanted
    if is_gemma(gguf, model_id):
        return Value("kvCache", "f16", "planner", "Gemma models lose quality with a quantised cache")
    if reason := unfit_reason("q8_0", gguf, flash_attn):
        report.note(f"KV cache f16: {reason}")
        return Value("kvCache", "f16", "planner", reason)
    return Value("kvCache", "q8_0", "planner", "half the memory of f16 at nearly the same quality")

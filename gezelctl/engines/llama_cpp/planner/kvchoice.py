"""Which type the KV cache gets (reference behaviour 7.2, 7.4)."""

from __future__ import annotations

from gezelctl.engines.llama_cpp.context import CACHE_TYPES
from gezelctl.engines.llama_cpp.kvtype import is_gemma, unfit_reason
from gezelctl.gguf.types import GgufSummary

FULL, HALF = "f16", "q8_0"


def bytes_per_element(cache_type: str) -> float:
    """Bytes of one cached value; unknown types count as f16."""
    block, size = CACHE_TYPES.get(cache_type, (1, 2))
    return size / block


def scale_from_f16(cache_type: str) -> float:
    """How a price at f16 becomes one at this type."""
    return bytes_per_element(cache_type) / bytes_per_element(FULL)


def default_kv(gguf: GgufSummary | None, model_id: str, flash_attn: object) -> tuple[str, str]:
    """(type, reason) when nobody says: f16 for Gemma, q8_0 for the rest where the engine takes it."""
    if is_gemma(gguf, model_id):
        return FULL, "Gemma models lose quality with a quantised cache"
    reason = unfit_reason(HALF, gguf, flash_attn)
    return (FULL, reason) if reason else (HALF, "half the memory of f16 at nearly the same quality")


def trades_precision(*, tier: int, f16_slots: int, q8_slots: int, decided: bool) -> bool:
    """Whether a Gemma model gives precision for a second slot.

    Only where nobody set a type or a slot count (`decided`) and the host is large enough for two slots by default.
    """
    return not decided and tier >= 2 and f16_slots < 2 <= q8_slots

"""Numbers of a header that no model has: llama.cpp aborts on some of them, and sizes would be nonsense with others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Final

from gezelctl.errors import GgufError
from gezelctl.gguf.types import GgufSummary

LAYER_LIMIT: Final = 512
"""LLAMA_MAX_LAYERS: llama.cpp stops with an assertion above it, and at 0."""
LARGEST: Final = (1 << 31) - 1
"""Widths, counts and lengths are 32-bit in llama.cpp, and are multiplied with each other."""
_SIZES = re.compile(
    r"\.(?:block_count|context_length|embedding_length\w*|feed_forward_length|vocab_size"
    r"|attention\.(?:head_count\w*|(?:key|value)_length\w*|sliding_window|shared_kv_layers|indexer\.\w+)"
    r"|expert_\w*(?:count|length)|nextn_predict_layers|full_attention_interval|n_deepstack_layers"
    r"|ssm\.(?:conv_kernel|inner_size|state_size|group_count|time_step_rank)"
    r"|shortconv\.l_cache|wkv\.head_size|token_shift_count|kda\.head_dim)$"
)
_NOT_ZERO: Final = frozenset({".block_count", ".full_attention_interval"})


def check_numbers(name: str, summary: GgufSummary) -> None:
    """Refuse sizes that cannot be, and a layer count that the tensors of the file contradict.

    Raises GgufError GGUF_CORRUPT; `name` is what messages call the file.
    """
    prefix = summary.architecture
    for key, given in _sizes(summary):
        wrong = next((value for value in given if not 0 <= value <= LARGEST), None)
        if wrong is None and key.removeprefix(prefix) in _NOT_ZERO and 0 in given:
            wrong = 0
        if wrong is not None:
            raise _corrupt(name, f"{key} is {wrong}")
    count, held = summary.block_count, len(summary.weights.layers)
    if count > LAYER_LIMIT:
        raise _corrupt(name, f"{prefix}.block_count is {count}; llama.cpp takes up to {LAYER_LIMIT} layers")
    if held > count and summary.get("block_count") is not None:
        raise _corrupt(name, f"{prefix}.block_count is {count}, but there are tensors of {held} layers")


def _sizes(summary: GgufSummary) -> Iterator[tuple[str, tuple[int | float, ...]]]:
    """The keys of the architecture that size memory, scalars as arrays of one."""
    scalars = ((key, (value,)) for key, value in summary.values.items() if isinstance(value, int))
    for key, given in chain(scalars, summary.arrays.items()):
        if key.startswith(f"{summary.architecture}.") and _SIZES.search(key):
            yield key, given


def _corrupt(name: str, what: str) -> GgufError:
    cure = "the file is damaged or hostile: fetch it again and compare its sha256 with the publisher's"
    return GgufError(f"{name}: {what}", cure=cure, code="GGUF_CORRUPT")

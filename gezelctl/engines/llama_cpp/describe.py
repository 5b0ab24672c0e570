"""What a header says about a model, in the words that people use of it: heads, windows, experts, bytes by class."""

from __future__ import annotations

import msgspec

from gezelctl.engines.llama_cpp.context import ContextRequest
from gezelctl.engines.llama_cpp.geometry import Geometry, per_layer, read_geometry
from gezelctl.engines.llama_cpp.memory import context_line
from gezelctl.gguf.types import GgufSummary
from gezelctl.gguf.types_table import file_type_name


class ClassBytes(msgspec.Struct, frozen=True, rename="camel"):
    """Tensor bytes by the class that decides where they lie; they add up to `total_bytes`.

    `layer_bytes` are main layers without routed experts, `nextn_bytes` MTP layers with all that is in them.
    """

    total_bytes: int
    input_bytes: int
    layer_bytes: int
    expert_bytes: int
    output_bytes: int
    nextn_bytes: int
    other_bytes: int


class Description(msgspec.Struct, frozen=True, rename="camel"):
    """Derived from a header. Per-layer figures are the distinct values over main layers, in ascending order.

    `swa_layers` and `recurrent_layers` are indices. `context_bytes_per_token` and `context_fixed_bytes` are one slot's
    cache at f16; the first is exact beyond the sliding window.
    """

    name: str
    file_type: str
    layer_count: int
    nextn_layers: int
    embedding_length: int
    feed_forward_lengths: tuple[int, ...]
    context_length: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    key_length_swa: int
    value_length_swa: int
    mla: bool
    experts: int
    experts_used: int
    experts_shared: int
    window: int
    swa_layers: tuple[int, ...]
    cached_layers: int
    recurrent_layers: tuple[int, ...]
    tokenizer_model: str
    tokenizer_pre: str
    vocab_size: int
    has_template: bool
    bytes_by_class: ClassBytes
    context_bytes_per_token: int
    context_fixed_bytes: int
    exact: bool
    """Context bytes of this architecture are known to the byte."""
    notes: tuple[str, ...] = ()


def describe(summary: GgufSummary) -> Description:
    """The description of any header; figures that a file does not have are 0 or empty."""
    geometry = read_geometry(summary)
    main = geometry.layer_count
    line = context_line(geometry, ContextRequest(slots=1), summary.context_length)
    heads = per_layer(summary, "attention.head_count", main)
    kv_heads = per_layer(summary, "attention.head_count_kv", main)
    fallback = summary.integer("embedding_length") // max(heads, default=0) if any(heads) else 0
    key = summary.integer("attention.key_length", fallback)
    value = summary.integer("attention.value_length", fallback)
    windowed = bool(geometry.window)
    return Description(
        name=_text(summary, "general.name"),
        file_type="" if summary.file_type is None else file_type_name(summary.file_type).removeprefix("MOSTLY_"),
        layer_count=main,
        nextn_layers=len(geometry.layers) - main,
        embedding_length=summary.integer("embedding_length"),
        feed_forward_lengths=_distinct(per_layer(summary, "feed_forward_length", main)),
        context_length=summary.context_length,
        heads=_distinct(heads),
        kv_heads=_distinct(tuple(filter(None, kv_heads))) or _distinct(heads),
        key_length=key,
        value_length=value,
        key_length_swa=summary.integer("attention.key_length_swa", key) if windowed else 0,
        value_length_swa=summary.integer("attention.value_length_swa", value) if windowed else 0,
        mla=geometry.mla,
        experts=summary.integer("expert_count"),
        experts_used=summary.integer("expert_used_count"),
        experts_shared=summary.integer("expert_shared_count"),
        window=geometry.window,
        swa_layers=tuple(i for i, layer in enumerate(geometry.layers) if layer.swa),
        cached_layers=sum(layer.cached and not layer.nextn for layer in geometry.layers),
        recurrent_layers=tuple(i for i, layer in enumerate(geometry.layers) if layer.recurrent),
        tokenizer_model=_text(summary, "tokenizer.ggml.model"),
        tokenizer_pre=_text(summary, "tokenizer.ggml.pre"),
        vocab_size=summary.vocab_size,
        has_template=bool(summary.chat_template),
        bytes_by_class=_by_class(summary, geometry),
        context_bytes_per_token=line.bytes_per_token,
        context_fixed_bytes=line.fixed_bytes,
        exact=geometry.exact,
        notes=geometry.notes,
    )


def _by_class(summary: GgufSummary, geometry: Geometry) -> ClassBytes:
    weights, main = summary.weights, geometry.layer_count
    layers, nextn = weights.layers[:main], weights.layers[main:]
    return ClassBytes(
        total_bytes=weights.total_bytes,
        input_bytes=weights.input_bytes,
        layer_bytes=sum(layer.dense_bytes for layer in layers),
        expert_bytes=sum(layer.expert_bytes for layer in layers),
        output_bytes=weights.output_bytes,
        nextn_bytes=sum(layer.dense_bytes + layer.expert_bytes for layer in nextn)
        + sum(layer.nextn_bytes for layer in weights.layers),
        other_bytes=weights.other_bytes,
    )


def _distinct(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))


def _text(summary: GgufSummary, key: str) -> str:
    value = summary.values.get(key)
    return value if isinstance(value, str) else ""

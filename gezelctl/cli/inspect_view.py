"""A model's header as text."""

from __future__ import annotations

from collections.abc import Sequence

from gezelctl.engines.llama_cpp.describe import Description
from gezelctl.engines.templatelint import TemplateFinding
from gezelctl.gguf.types import GgufSummary
from gezelctl.observe.mlxfolder import MlxFolder
from gezelctl.plan.units import count, format_bytes, printable

_LABEL = 14
_LISTED = 12
"""Layer numbers that are listed before the rest is counted."""


def render_gguf(shown: str, summary: GgufSummary, found: Description, findings: Sequence[TemplateFinding]) -> str:
    """All of a GGUF model on one screen; sizes of tensors are those on disk, by class and by type."""
    rows = [
        ("name", printable(found.name) or "(none)"),
        ("architecture", ", ".join(filter(None, (printable(summary.architecture), found.file_type)))),
        ("size", _size(summary)),
        ("layers", _layers(found)),
        ("embedding", f"{found.embedding_length:,}{_feed_forward(found)}"),
        ("attention", _attention(found)),
        ("experts", _experts(found)),
        ("window", _window(found)),
        ("context", f"{found.context_length:,} tokens trained" if found.context_length else "not stated"),
        ("KV cache", _cache(found)),
        ("tokenizer", _tokenizer(found)),
        ("template", _template(found, findings)),
        *(("note", note) for note in found.notes),
    ]
    lines = [printable(shown), *(f"  {label:<{_LABEL}}{text}" for label, text in rows)]
    return "\n".join([*lines, *_template_lines(findings), *_tensors(summary, found)])


def _size(summary: GgufSummary) -> str:
    weights = summary.weights
    files = count(summary.shards, "file")
    return f"{format_bytes(summary.file_bytes)} in {files}, {_large(weights.parameters)} parameters"


def _large(number: int) -> str:
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:,}"


def _layers(found: Description) -> str:
    text = f"{found.layer_count}"
    if found.recurrent_layers:
        text += f" ({len(found.recurrent_layers)} recurrent, {found.cached_layers} with attention)"
    return f"{text} and {count(found.nextn_layers, 'MTP layer')}" if found.nextn_layers else text


def _feed_forward(found: Description) -> str:
    lengths = [length for length in found.feed_forward_lengths if length]
    return f", feed-forward {_span(lengths)}" if lengths else ""


def _span(values: Sequence[int]) -> str:
    """Distinct values of all layers: one, or the least and the greatest."""
    if not values:
        return "0"
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


def _attention(found: Description) -> str:
    if not found.cached_layers:
        return "none"
    if found.mla:
        return f"{_span(found.heads)} heads, MLA (one compressed row a token)"
    kv_heads = f"{_span(found.kv_heads)} KV head{'' if found.kv_heads == (1,) else 's'}"
    text = f"{_span(found.heads)} heads, {kv_heads}, head size {_pair(found)}"
    swa = (found.key_length_swa, found.value_length_swa)
    if found.window and swa != (found.key_length, found.value_length):
        text += f", {swa[0]} in the window" if swa[0] == swa[1] else f", {swa[0]} and {swa[1]} in the window"
    return text


def _pair(found: Description) -> str:
    if found.key_length == found.value_length:
        return f"{found.key_length}"
    return f"{found.key_length} (K) and {found.value_length} (V)"


def _experts(found: Description) -> str:
    if not found.experts:
        return "none"
    shared = f", {found.experts_shared} shared" if found.experts_shared else ""
    return f"{found.experts}, {found.experts_used} used a token{shared}"


def _window(found: Description) -> str:
    if not found.window:
        return "none"
    full = [i for i in range(found.layer_count) if i not in found.swa_layers and i not in found.recurrent_layers]
    rest = f"; full: layer {_indices(full)}" if full else ""
    return f"{found.window:,} tokens in {len(found.swa_layers)} of {found.layer_count} layers{rest}"


def _indices(layers: Sequence[int]) -> str:
    shown = ", ".join(str(layer) for layer in layers[:_LISTED])
    return f"{shown} and {len(layers) - _LISTED} more" if len(layers) > _LISTED else shown


def _cache(found: Description) -> str:
    fixed = f", {format_bytes(found.context_fixed_bytes)} whatever the length" if found.context_fixed_bytes else ""
    about = "" if found.exact else "about "
    return f"{about}{format_bytes(found.context_bytes_per_token)} a token at f16{fixed}"


def _tokenizer(found: Description) -> str:
    if not found.tokenizer_model and not found.vocab_size:
        return "none"
    kind = printable(found.tokenizer_model or "unknown")
    pre = f" ({printable(found.tokenizer_pre)})" if found.tokenizer_pre else ""
    return f"{kind}{pre}, {found.vocab_size:,} tokens"


def _template(found: Description, findings: Sequence[TemplateFinding]) -> str:
    if not found.has_template:
        return "none"
    return f"yes, {count(len(findings), 'finding')}" if findings else "yes, renders two turns and a tool call"


def _template_lines(findings: Sequence[TemplateFinding]) -> list[str]:
    lines = []
    for finding in findings:
        line = f"line {finding.line}: " if finding.line else ""
        lines.append(f"  {'':<{_LABEL}}{finding.severity}: {line}{printable(finding.summary)}")
    return lines


def _tensors(summary: GgufSummary, found: Description) -> list[str]:
    by_class = found.bytes_by_class
    if not summary.weights.tensor_count:
        return ["", "no tensors: a header alone"]
    tied = " (also the output head)" if summary.weights.tied else ""
    rows = [
        ("input", by_class.input_bytes, f"on the host{tied}"),
        ("layers", by_class.layer_bytes, "without routed experts"),
        ("experts", by_class.expert_bytes, "routed"),
        ("output", by_class.output_bytes, ""),
        ("nextn", by_class.nextn_bytes, "loaded only for MTP"),
        ("other", by_class.other_bytes, ""),
    ]
    shown = [(name, size, note) for name, size, note in rows if size]
    lines = ["", f"tensors: {summary.weights.tensor_count:,}, {format_bytes(by_class.total_bytes)}"]
    lines += [f"  {name:<{_LABEL}}{format_bytes(size):>10}  {note}".rstrip() for name, size, note in shown]
    types = sorted(summary.weights.by_type.items(), key=lambda item: (-item[1], item[0]))
    return [*lines, "by type:", *(f"  {name:<{_LABEL}}{format_bytes(size):>10}" for name, size in types)]


def render_mlx(shown: str, found: MlxFolder) -> str:
    """An MLX folder, as far as config.json tells."""
    quantized = f", {found.quantization_bits} bits" if found.quantization_bits else ""
    group = f" in groups of {found.quantization_group}" if found.quantization_group else ""
    rows = [
        ("architecture", f"{printable(found.model_type) or 'not stated'} (MLX){quantized}{group}"),
        ("size", f"{format_bytes(found.weights_bytes)} in {count(found.weight_files, 'safetensors file')}"),
        ("layers", f"{found.layers}"),
        ("embedding", f"{found.hidden_size:,}"),
        ("attention", f"{found.heads} heads, {count(found.kv_heads, 'KV head')}, head size {found.head_dim}"),
        ("experts", f"{found.experts}" if found.experts else "none"),
        ("window", f"{found.sliding_window:,} tokens" if found.sliding_window else "none"),
        ("context", f"{found.context_length:,} tokens trained" if found.context_length else "not stated"),
        ("tokenizer", f"{found.vocab_size:,} tokens"),
    ]
    return "\n".join([printable(shown), *(f"  {label:<{_LABEL}}{text}" for label, text in rows)])

"""Small GGUF files of real shapes: the keys of a model with a few tensors of the right names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import ggufmake as make

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"

DENSE: dict[str, Any] = {
    "context_length": 32768,
    "embedding_length": 2048,
    "block_count": 4,
    "feed_forward_length": 5632,
    "attention.head_count": 32,
    "attention.head_count_kv": 4,
}
WINDOWED: dict[str, Any] = {
    "context_length": 131072,
    "embedding_length": 1152,
    "block_count": 13,
    "feed_forward_length": 6912,
    "attention.head_count": 4,
    "attention.head_count_kv": 1,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "attention.sliding_window": 512,
}
EXPERTS: dict[str, Any] = {
    "context_length": 40960,
    "embedding_length": 2048,
    "block_count": 4,
    "feed_forward_length": 6144,
    "expert_feed_forward_length": 768,
    "expert_count": 128,
    "expert_used_count": 8,
    "attention.head_count": 32,
    "attention.head_count_kv": 4,
    "attention.key_length": 128,
    "attention.value_length": 128,
}
HYBRID_MTP: dict[str, Any] = {
    "context_length": 262144,
    "embedding_length": 5120,
    "block_count": 9,
    "nextn_predict_layers": 1,
    "feed_forward_length": 17408,
    "attention.head_count": 24,
    "attention.head_count_kv": 4,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "full_attention_interval": 4,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 6144,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
}


def tensors(keys: Mapping[str, Any], vocab: int, *, untied: bool = False) -> list[make.Tensor]:
    """A Q8_0 embedding, two matrices a layer, the experts of an expert model, norms."""
    width, layers, nextn = keys["embedding_length"], keys["block_count"], keys.get("nextn_predict_layers", 0)
    found: list[make.Tensor] = [("token_embd.weight", (width, vocab), 8)]
    for layer in range(layers):
        found.append((f"blk.{layer}.attn_q.weight", (width, width), 8))
        found.append((f"blk.{layer}.attn_norm.weight", (width,), 0))
        if "expert_count" in keys:
            shape = (width, keys["expert_feed_forward_length"], keys["expert_count"])
            found.append((f"blk.{layer}.ffn_up_exps.weight", shape, 2))
        if layer >= layers - nextn:
            found.append((f"blk.{layer}.nextn.eh_proj.weight", (2 * width, width), 8))
    found.append(("output_norm.weight", (width,), 0))
    return [*found, ("output.weight", (width, vocab), 8)] if untied else found


def write_model(
    path: Path,
    architecture: str,
    keys: Mapping[str, Any],
    *,
    vocab: int = 320,
    template: str = TEMPLATE,
    tensors: Sequence[make.Tensor] = (),
) -> Path:
    """Write a model whose tensor data is a hole, so that its size is real and costs no disk."""
    values: dict[str, Any] = {
        "general.architecture": architecture,
        "general.name": f"Tiny {architecture}",
        "general.file_type": 7,
        **{f"{architecture}.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(vocab)],
    }
    if template:
        values["tokenizer.chat_template"] = template
    header = make.gguf_bytes(values, tensors, fill=b"")
    body = sum(make.padded(make.tensor_bytes(dims, kind), 32) for _, dims, kind in tensors)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + body)
    return path

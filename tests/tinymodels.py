"""Small models with random weights and a real tokenizer, which a llama-server loads and serves (nonsense)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

WIDTH: Final = 128
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD: Final = 64
FEED: Final = 256
EXPERTS: Final = 8
EXPERT_FEED: Final = 64
_COMMON: Final[dict[str, Any]] = {
    "context_length": 8192,
    "embedding_length": WIDTH,
    "feed_forward_length": FEED,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
"""A token costs 512 bytes of f16 cache in each layer, so that whole windows are whole MiB."""
ARCHITECTURES: Final[dict[str, dict[str, Any]]] = {
    "llama": {"block_count": 4, "rope.dimension_count": HEAD},
    "qwen3moe": {
        "block_count": 3,
        "expert_count": EXPERTS,
        "expert_used_count": 2,
        "expert_feed_forward_length": EXPERT_FEED,
    },
    "gemma3": {"block_count": 6, "attention.sliding_window": 512},
}


def write_tiny(
    path: Path, architecture: str, tokenizer: Path, *, seed: int = 0, drop: str = "", swap: bool = False
) -> Path:
    """A model of one of ARCHITECTURES with the vocabulary and template of another file.

    `drop` renames a tensor away: its header is whole, and no engine can load it. `swap` exchanges two tokens.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for suffix, value in {**_COMMON, **ARCHITECTURES[architecture]}.items():
        key = f"{architecture}.{suffix}"
        writer.add_float32(key, value) if isinstance(value, float) else writer.add_uint32(key, value)
    tokens = _put_tokenizer(writer, _tokenizer(tokenizer), swap=swap)
    random = np.random.default_rng(seed)
    for name, shape in _tensors(architecture, tokens).items():
        data = np.ones(shape, np.float32) if len(shape) == 1 else _matrix(random, shape)
        writer.add_tensor(f"gone.{name}" if name == drop else name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _matrix(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return (random.standard_normal(shape, np.float32) * 0.02).astype(np.float16)


@cache
def _tokenizer(path: Path) -> Mapping[str, tuple[gguf.GGUFValueType, Any]]:
    fields = gguf.GGUFReader(path).fields
    return {
        name: (field.types[0] if len(field.types) == 1 else field.types[1], field.contents())
        for name, field in fields.items()
        if name.startswith("tokenizer.")
    }


def _put_tokenizer(writer: gguf.GGUFWriter, fields: Mapping[str, tuple[gguf.GGUFValueType, Any]], *, swap: bool) -> int:
    for name, (kind, value) in fields.items():
        if isinstance(value, list):
            items = [*value]
            if swap and name == "tokenizer.ggml.tokens":
                items[1000], items[1001] = items[1001], items[1000]
            writer.add_array(name, items)
        else:
            writer.add_key_value(name, value, kind)
    return len(fields["tokenizer.ggml.tokens"][1])


def _tensors(architecture: str, tokens: int) -> dict[str, tuple[int, ...]]:
    """Shapes in numpy's order, outermost first."""
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (tokens, WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(ARCHITECTURES[architecture]["block_count"]):
        found |= {f"blk.{layer}.{name}.weight": shape for name, shape in _layer(architecture).items()}
    return found


def _layer(architecture: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "attn_norm": (WIDTH,),
        "attn_q": (HEADS * HEAD, WIDTH),
        "attn_k": (KV_HEADS * HEAD, WIDTH),
        "attn_v": (KV_HEADS * HEAD, WIDTH),
        "attn_output": (WIDTH, HEADS * HEAD),
        "ffn_norm": (WIDTH,),
    }
    if architecture != "llama":
        found |= {"attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,)}
    if architecture == "gemma3":
        found |= {"post_attention_norm": (WIDTH,), "post_ffw_norm": (WIDTH,)}
    if architecture == "qwen3moe":
        return found | {
            "ffn_gate_inp": (EXPERTS, WIDTH),
            "ffn_gate_exps": (EXPERTS, EXPERT_FEED, WIDTH),
            "ffn_up_exps": (EXPERTS, EXPERT_FEED, WIDTH),
            "ffn_down_exps": (EXPERTS, WIDTH, EXPERT_FEED),
        }
    return found | {"ffn_gate": (FEED, WIDTH), "ffn_up": (FEED, WIDTH), "ffn_down": (WIDTH, FEED)}

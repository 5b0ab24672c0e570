"""Writes small GGUF files for tests, from the format's description and nothing else.

Values say their type: `bool`, `str`, `float` (f32), `int` (u32), a list (array of its first element's type), or
`(code, value)` with the format's own type code for the rest. Wrong files are made by saying wrong things.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)

FORMATS: Final[dict[int, str]] = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "?",
    U64: "Q",
    I64: "q",
    F64: "d",
}

BLOCKS: Final[dict[int, tuple[int, int]]] = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 30: (1, 2)}
"""(elements, bytes) of a block, for the tensor types that tests use: F32, F16, Q4_0, Q8_0, Q4_K, BF16."""

Tensor = tuple[str, Sequence[int], int]
"""(name, dims, ggml type id)."""


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def type_of(value: object) -> int:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, str | bytes):
        return STRING
    return F32 if isinstance(value, float) else U32


def body(code: int, value: Any) -> bytes:
    """The bytes of a value after its type code."""
    if code == STRING:
        return string(value)
    if code == ARRAY:
        inner, items = value if isinstance(value, tuple) else (type_of(value[0]), value)
        return struct.pack("<IQ", inner, len(items)) + b"".join(body(inner, item) for item in items)
    return struct.pack("<" + FORMATS[code], value)


def pair(key: str | bytes, value: Any) -> bytes:
    if isinstance(value, tuple):
        code, value = value
    else:
        code = ARRAY if isinstance(value, list) else type_of(value)
    return string(key) + struct.pack("<I", code) + body(code, value)


def padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def tensor_bytes(dims: Sequence[int], type_: int) -> int:
    block, size = BLOCKS[type_]
    rows = 1
    for dim in dims[1:]:
        rows *= dim
    return dims[0] // block * size * rows


def tensor_entry(name: str | bytes, dims: Sequence[int], type_: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_, offset)


def gguf_bytes(
    values: Mapping[str, Any], tensors: Sequence[Tensor] = (), *, version: int = 3, fill: bytes = b"\0"
) -> bytes:
    """A whole file; the tensor data is `fill` repeated, and the last tensor is padded too, as writers do."""
    alignment = values.get("general.alignment", 32)
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(values))]
    parts += [pair(key, value) for key, value in values.items()]
    offset = 0
    for name, dims, type_ in tensors:
        parts.append(tensor_entry(name, dims, type_, offset))
        offset += padded(tensor_bytes(dims, type_), alignment)
    header = b"".join(parts)
    if not tensors:
        return header
    return header.ljust(padded(len(header), alignment), b"\0") + fill * offset


LLAMA: Final[dict[str, Any]] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [f"t{i}" for i in range(300)],
    "tokenizer.chat_template": "{{ messages }}",
}

LLAMA_TENSORS: Final[tuple[Tensor, ...]] = (
    ("token_embd.weight", (32, 300), 8),
    ("blk.0.attn_q.weight", (32, 32), 2),
    ("blk.0.ffn_up.weight", (32, 64), 2),
    ("blk.1.attn_q.weight", (32, 32), 2),
    ("blk.1.ffn_up_exps.weight", (32, 64, 4), 2),
    ("output_norm.weight", (32,), 0),
    ("output.weight", (32, 300), 8),
)

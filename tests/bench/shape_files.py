"""GGUF files of a shape without tensor data: header, tensor table and a sparse body that costs no disk.

Which tensors an architecture wants is asked of llama.cpp itself: it refuses a file with the name of the first missing
tensor, then with the expected shape of a wrong one, so a file grows until it loads.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np

from gezelctl.engines.llama_cpp.geometry import read_geometry
from gezelctl.gguf.types import GgufSummary, WeightTable
from tests.bench.libllama import Library, RefusedError, Setting

MISSING = re.compile(r"tensor '([^']+)' not found")
WRONG_SHAPE = re.compile(r"tensor '([^']+)' has wrong shape; expected\s+([\d, ]+), got")
BLOCK = re.compile(r"blk\.(\d+)\.(.*)")
ALIGNMENT = 32


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """Shape in ggml's order (innermost first) and type name."""

    shape: tuple[int, ...]
    type: str

    @property
    def size(self) -> int:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[self.type]]
        return int(np.prod(self.shape)) // block * size


Tensors = dict[str, Tensor]


class Shape(msgspec.Struct, frozen=True):
    """An entry of shapes.yaml: keys without the architecture prefix and the type of matrices.

    `extra` names tensors that llama.cpp calls optional but whose absence it does not survive, by kind of layer.
    """

    architecture: str
    keys: dict[str, Any]
    type: str = "F16"
    untied: bool = False
    mtp: bool = False
    extra: dict[str, dict[str, tuple[int, ...]]] = {}

    def summary(self) -> GgufSummary:
        """The header summary that a reader of the keys alone would give."""
        named = {f"{self.architecture}.{key}": value for key, value in self.keys.items()}
        return GgufSummary(
            version=3,
            architecture=self.architecture,
            file_bytes=0,
            shards=1,
            values={key: value for key, value in named.items() if not isinstance(value, list)},
            arrays={key: tuple(value) for key, value in named.items() if isinstance(value, list)},
            weights=WeightTable(0, 0, 0, 0, 0, 0, tied=True, layers=()),
            vocab_size=self.keys["vocab_size"],
        )


def write_shape(path: Path, architecture: str, keys: dict[str, Any], tensors: Tensors) -> None:
    """Write a loadable GGUF whose tensor bytes are a hole."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    for suffix, value in keys.items():
        _add(writer, f"{architecture}.{suffix}", value)
    for name, tensor in tensors.items():
        kind = gguf.GGMLQuantizationType[tensor.type]
        shape = list(reversed(tensor.shape))
        writer.add_tensor_info(name, shape, np.dtype(np.float32), tensor.size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    body = sum(-(-tensor.size // ALIGNMENT) * ALIGNMENT for tensor in tensors.values())
    os.truncate(path, -(-path.stat().st_size // ALIGNMENT) * ALIGNMENT + body)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


def grow(library: Library, path: Path, shape: Shape) -> Tensors:
    """Tensors of a shape, found by loading until nothing is missing.

    Raises:
        RefusedError: when llama.cpp refuses for another reason than a tensor.
    """
    tensors = _optional_tensors(shape)
    for _ in range(20_000):
        write_shape(path, shape.architecture, shape.keys, tensors)
        try:
            library.measure(path, Setting(load_mtp=shape.mtp))
        except RefusedError as refusal:
            _correct(tensors, str(refusal), shape.type)
        else:
            return tensors
    raise RefusedError(f"{shape.architecture}: still incomplete after {len(tensors)} tensors")


def _optional_tensors(shape: Shape) -> Tensors:
    tensors: Tensors = {}
    if shape.untied:
        tensors["output.weight"] = _tensor((shape.keys["embedding_length"], shape.keys["vocab_size"]), shape.type)
    layers = read_geometry(shape.summary()).layers
    for kind, named in shape.extra.items():
        for index, layer in enumerate(layers):
            if not {"all": True, "recurrent": layer.recurrent, "first": index == 0, "nextn": layer.nextn}[kind]:
                continue
            for name, size in named.items():
                matrix = name.endswith(".weight") and len(size) > 1
                tensors[f"blk.{index}.{name}"] = _tensor(size, shape.type if matrix else "F32")
    return tensors


def _tensor(shape: tuple[int, ...], kind: str) -> Tensor:
    """A tensor of `kind` when its rows are whole blocks, else F16."""
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
    return Tensor(shape, kind if shape[0] % block == 0 else "F16")


def _correct(tensors: Tensors, log: str, weight: str) -> None:
    missing = MISSING.search(log)
    if missing:
        tensors[missing[1]] = _like_an_earlier_layer(tensors, missing[1])
        return
    wrong = WRONG_SHAPE.search(log)
    if not wrong:
        raise RefusedError(log)
    shape = tuple(int(part) for part in wrong[2].split(","))
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    name = wrong[1]
    matrix = len(shape) > 1 and name.endswith(".weight") and "conv" not in name and "_a_log" not in name
    tensors[name] = _tensor(shape, weight) if matrix else Tensor(shape, "F32")


def _like_an_earlier_layer(tensors: Tensors, name: str) -> Tensor:
    found = BLOCK.match(name)
    if found:
        for layer in range(int(found[1]) - 1, -1, -1):
            twin = tensors.get(f"blk.{layer}.{found[2]}")
            if twin:
                return twin
    return Tensor((1,), "F32")

"""Sums a tensor table by the class that decides where llama.cpp puts each tensor.

Classes: LLM_TENSOR_INFOS in src/llama-arch.cpp (INPUT, OUTPUT, REPEATING); experts: the pattern that `--cpu-moe`
overrides, `LLM_FFN_EXPS_REGEX` in common/common.h.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from gezelctl.errors import GgufError
from gezelctl.gguf.types import LayerWeights, TensorInfo, WeightTable

MAX_LAYERS: Final = 4_096
"""Far above LLAMA_MAX_LAYERS, so that a damaged name does not make a table of millions."""

EMBEDDING: Final = "token_embd"
INPUT_TENSORS: Final = frozenset(
    {
        EMBEDDING,
        "position_embd",
        "token_types",
        "per_layer_token_embd",
        "masked_embd_centroids",
        "masked_embd_ordering",
    }
)
_OUTPUT: Final = re.compile(
    r"(?:output|(?:dec\.|enc\.)?output_norm|output_hc_(?:fn|base|scale)|cls|cls\.output|cls\.norm|altup_proj"
    r"|altup_unembd_proj|dense_[23]|nextn\.post_projection|fc|d2t)(?:\.[a-z_]+)?"
)
_LAYER: Final = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,9})\.(.*)", re.DOTALL)
_EXPERT: Final = re.compile(r"ffn_(?:up|down|gate_up|gate)_(?:ch)?exps")


class _Layer:
    __slots__ = ("dense", "expert", "largest", "nextn")

    def __init__(self) -> None:
        self.dense = self.expert = self.largest = self.nextn = 0

    def add(self, rest: str, size: int) -> None:
        if rest.startswith("nextn."):
            self.nextn += size
        elif _EXPERT.match(rest):
            self.expert += size
            self.largest = max(self.largest, size)
        else:
            self.dense += size


def weigh(name: str, tensors: Sequence[TensorInfo], elements: int) -> WeightTable:
    """The table of all `tensors` of a model, every shard's together; `name` is for messages.

    Raises GgufError SPLIT when two shards hold the same tensor, GGUF_CORRUPT on a layer number beyond any model's.
    """
    sums: Counter[str] = Counter()
    by_type: Counter[str] = Counter()
    layers: dict[int, _Layer] = {}
    names: set[str] = set()
    for tensor in tensors:
        by_type[tensor.type_name] += tensor.size_bytes
        sums[_place(name, tensor, layers)] += tensor.size_bytes
        names.add(tensor.name)
    if len(names) < len(tensors):
        raise _duplicate(name, tensors)
    embedding = f"{EMBEDDING}.weight"
    return WeightTable(
        total_bytes=by_type.total(),
        parameters=elements,
        tensor_count=len(tensors),
        input_bytes=sums["input"] + sums[EMBEDDING],
        token_embd_bytes=sums[EMBEDDING],
        output_bytes=sums["output"],
        tied=embedding in names and "output.weight" not in names,
        layers=_rows(layers),
        other_bytes=sums["other"],
        by_type=dict(sorted(by_type.items())),
    )


def _place(name: str, tensor: TensorInfo, layers: dict[int, _Layer]) -> str:
    match = _LAYER.match(tensor.name)
    if match:
        index = int(match[1])
        if index >= MAX_LAYERS:
            raise GgufError(
                f"{name}: tensor {tensor.name!r} belongs to layer {index}; no model has {MAX_LAYERS} layers",
                cure="the file is damaged or hostile: fetch it again and compare its sha256 with the publisher's",
                code="GGUF_CORRUPT",
            )
        layers.setdefault(index, _Layer()).add(match[2], tensor.size_bytes)
        return "layers"
    base = tensor.name.partition(".")[0]
    if base == EMBEDDING:
        return EMBEDDING
    if base in INPUT_TENSORS:
        return "input"
    return "output" if _OUTPUT.fullmatch(tensor.name) else "other"


def _rows(layers: dict[int, _Layer]) -> tuple[LayerWeights, ...]:
    count = max(layers, default=-1) + 1
    rows = (layers.get(index, _Layer()) for index in range(count))
    return tuple(LayerWeights(row.dense, row.expert, row.nextn, row.largest) for row in rows)


def _duplicate(name: str, tensors: Sequence[TensorInfo]) -> GgufError:
    counts = Counter(tensor.name for tensor in tensors)
    twice = next(tensor for tensor, count in counts.items() if count > 1)
    return GgufError(
        f"{name}: tensor {twice!r} is in more than one shard",
        cure="the shards are not of one set: fetch all of them again from one revision",
        code="SPLIT",
    )

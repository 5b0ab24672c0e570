"""Reading good files: real ones, made ones, in one piece and in shards, from disk and from other sources."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gezelctl.gguf.reader import read_headers, read_summary, read_summary_from
from gezelctl.gguf.source import FIRST_READ_BYTES
from gezelctl.gguf.types import GgufSummary, LayerWeights, Scalar
from tests import ggufmake as make


class Memory:
    """A source as an HTTP Range reader would be: counts its reads, and may not know its size."""

    def __init__(self, data: bytes, *, sized: bool = True) -> None:
        self.name = "memory"
        self.data = data
        self.size = len(data) if sized else None
        self.reads: list[tuple[int, int]] = []

    def read_at(self, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        return self.data[offset : offset + length]


def read(data: bytes) -> GgufSummary:
    return read_summary_from(Memory(data))


@pytest.mark.engine("smollm2")
def test_the_real_model_reads_as_the_gguf_package_reads_it(smollm2: Path) -> None:
    summary = read_summary(smollm2)
    reader = gguf.GGUFReader(smollm2)
    scalars = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.") and field.types[0] != gguf.GGUFValueType.ARRAY
    }
    assert summary.chat_template == scalars.pop("tokenizer.chat_template")
    assert summary.values == scalars
    assert summary.vocab_size == len(reader.fields["tokenizer.ggml.tokens"].data)
    assert summary.weights.tensor_count == len(reader.tensors)
    assert summary.weights.total_bytes == sum(int(tensor.n_bytes) for tensor in reader.tensors)
    assert summary.weights.parameters == sum(int(tensor.n_elements) for tensor in reader.tensors)
    assert summary.file_bytes == smollm2.stat().st_size
    tensors = read_headers(smollm2)[0].tensors
    listed = [(t.name, t.type_name, t.dims, t.size_bytes) for t in tensors]
    assert listed == [(t.name, t.tensor_type.name, tuple(map(int, t.shape)), int(t.n_bytes)) for t in reader.tensors]
    starts = [tensor.offset for tensor in tensors]
    assert starts == [int(tensor.data_offset) - reader.data_offset for tensor in reader.tensors]


@pytest.mark.engine("smollm2")
def test_the_real_model_weighs_what_llama_server_allocates(smollm2: Path) -> None:
    """llama-server -lv 4 -ngl 99 logs a 96,576,768 byte device buffer and 30,081,024 bytes again on the host."""
    weights = read_summary(smollm2).weights
    assert (weights.total_bytes, weights.token_embd_bytes, weights.tied) == (96_576_768, 30_081_024, True)
    assert len(weights.layers) == 30


def test_header_only_files_are_read(gguf_headers: Path) -> None:
    paths = sorted(gguf_headers.glob("*.gguf"))
    assert len(paths) == 17
    summaries = {path.stem: read_summary(path) for path in paths}
    for summary in summaries.values():
        assert summary.block_count > 0
        assert summary.context_length > 0
        assert summary.vocab_size > 0
        assert summary.weights.tensor_count == summary.weights.total_bytes == 0
    assert summaries["qwen35_27b_mtp"].integer("nextn_predict_layers") == 1
    pattern = summaries["gemma4_31b"].array("attention.sliding_window_pattern")
    assert pattern is not None
    assert [index for index, swa in enumerate(pattern) if not swa] == list(range(5, 60, 6))
    assert summaries["nemotron_h"].array("attention.head_count_kv") is not None


def test_weights_by_class() -> None:
    tensors: list[make.Tensor] = [
        ("token_embd.weight", (32, 10), 8),
        ("token_embd_norm.weight", (32,), 0),
        ("per_layer_token_embd.weight", (32, 20), 8),
        ("rope_freqs.weight", (16,), 0),
        ("blk.0.attn_q.weight", (32, 32), 2),
        ("blk.0.ffn_up_shexp.weight", (32, 64), 2),
        ("blk.0.ffn_up_exps.weight", (32, 64, 4), 2),
        ("blk.0.ffn_gate_up_exps.weight", (32, 128, 4), 2),
        ("blk.0.ffn_down_exps.bias", (32, 4), 0),
        ("blk.0.ffn_gate_inp.weight", (32, 4), 0),
        ("blk.0.ffn_down_chexps.weight", (32, 8), 2),
        ("blk.2.nextn.eh_proj.weight", (64, 32), 2),
        ("blk.2.attn_norm.weight", (32,), 0),
        ("output_norm.weight", (32,), 0),
        ("cls.output.weight", (32, 2), 0),
        ("altup_proj.weight", (32, 32, 3), 2),
        ("d2t", (64,), 0),
        ("v.blk.0.attn_q.weight", (32, 32), 1),
    ]
    weights = read(make.gguf_bytes({"general.architecture": "llama"}, tensors)).weights
    assert weights.input_bytes == 340 + 680
    assert weights.token_embd_bytes == 340
    assert weights.output_bytes == 128 + 256 + 1728 + 256
    assert weights.other_bytes == 128 + 64 + 2048
    assert weights.layers == (
        LayerWeights(576 + 1152 + 512, 4608 + 9216 + 512 + 144, 0, 9216),
        LayerWeights(0),
        LayerWeights(128, 0, 1152),
    )
    assert weights.tied
    layers = sum(row.dense_bytes + row.expert_bytes + row.nextn_bytes for row in weights.layers)
    assert weights.total_bytes == weights.input_bytes + weights.output_bytes + weights.other_bytes + layers
    assert sum(weights.by_type.values()) == weights.total_bytes


def test_output_weight_means_untied() -> None:
    tensors: list[make.Tensor] = [("token_embd.weight", (32, 10), 8), ("output.weight", (32, 10), 8)]
    weights = read(make.gguf_bytes({"general.architecture": "llama"}, tensors)).weights
    assert not weights.tied
    assert weights.output_bytes == 340


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_versions_and_alignments(version: int, alignment: int) -> None:
    values = make.LLAMA | {"general.alignment": alignment}
    data = make.gguf_bytes(values, make.LLAMA_TENSORS, version=version)
    summary = read(data)
    assert (summary.version, summary.file_bytes) == (version, len(data))
    assert summary.vocab_size == 300
    assert summary.chat_template == "{{ messages }}"


def test_the_last_tensor_needs_no_padding() -> None:
    data = make.gguf_bytes({"general.architecture": "llama"}, [("output_norm.weight", (3,), 0)])
    assert read(data[:-20]).weights.total_bytes == 12


def test_long_strings_and_large_arrays_are_left_out() -> None:
    values = {
        "general.architecture": "llama",
        "kept": "ü" * 256,
        "long": "x" * 257,
        "longer": "x" * 5000,
        "small": [1] * 4096,
        "large": [1] * 4097,
        "empty": (make.ARRAY, (make.I32, [])),
        "nan": float("nan"),
        "infinite": [1.0, math.inf],
        "texts": ["a", "b"],
        "flags": [True, False],
    }
    summary = read(make.gguf_bytes(values))
    assert set(summary.values) == {"general.architecture", "kept"}
    assert set(summary.arrays) == {"small", "empty", "flags"}
    assert msgspec.json.decode(msgspec.json.encode(summary), type=GgufSummary) == summary


_INTS = {make.U8: 8, make.U16: 16, make.U32: 32, make.U64: 64}
_SIGNED = {make.I8: 8, make.I16: 16, make.I32: 32, make.I64: 64}


def _scalars() -> st.SearchStrategy[tuple[int, Any]]:
    numbers = [st.tuples(st.just(code), st.integers(0, 2**bits - 1)) for code, bits in _INTS.items()]
    numbers += [
        st.tuples(st.just(code), st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)) for code, bits in _SIGNED.items()
    ]
    floats = st.floats(allow_nan=False, allow_infinity=False)
    return st.one_of(
        *numbers,
        st.tuples(st.just(make.BOOL), st.booleans()),
        st.tuples(st.just(make.F64), floats),
        st.tuples(st.just(make.F32), st.floats(width=32, allow_nan=False, allow_infinity=False)),
        st.tuples(st.just(make.STRING), st.text(st.characters(codec="utf-8"), max_size=256)),
    )


_KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(
    lambda key: not key.startswith(("general.", "split.", "tokenizer."))
)


@given(st.dictionaries(_KEYS, _scalars(), max_size=20))
def test_every_scalar_comes_back(values: dict[str, tuple[int, Scalar]]) -> None:
    summary = read(make.gguf_bytes(values))
    assert summary.values == {key: value for key, (_, value) in values.items()}
    assert {key: type(value) for key, value in summary.values.items()} == {
        key: type(value) for key, (_, value) in values.items()
    }


@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(0, 3))
def test_string_arrays_of_any_bytes_are_counted(texts: list[bytes], extra: int) -> None:
    values = {f"pad{i}": i for i in range(extra)} | {
        "tokenizer.ggml.tokens": (make.ARRAY, (make.STRING, texts)),
        "after": 7,
    }
    summary = read(make.gguf_bytes(values))
    assert summary.vocab_size == len(texts)
    assert summary.values["after"] == 7


def test_a_vocabulary_far_larger_than_the_window() -> None:
    """Lengths around the window's edge, and strings larger than a window."""
    texts = [b"x" * (i % 97) for i in range(20_000)] + [b"y" * (3 * FIRST_READ_BYTES)] + [b"z"] * 5_000
    values = make.LLAMA | {"tokenizer.ggml.tokens": (make.ARRAY, (make.STRING, texts)), "after": 7}
    source = Memory(make.gguf_bytes(values, make.LLAMA_TENSORS))
    summary = read_summary_from(source)
    assert summary.vocab_size == 25_001
    assert summary.values["after"] == 7
    assert len(source.reads) < 8
    unsized = read_summary_from(Memory(source.data, sized=False))
    assert 0 <= summary.file_bytes - unsized.file_bytes < 32
    assert unsized == msgspec.structs.replace(summary, file_bytes=unsized.file_bytes)


def test_only_the_header_is_read() -> None:
    data = make.gguf_bytes(make.LLAMA, [("token_embd.weight", (256, 64_000), 1)])
    source = Memory(data)
    read_summary_from(source)
    assert source.reads == [(0, FIRST_READ_BYTES)]
    unsized = Memory(data[:FIRST_READ_BYTES], sized=False)
    assert read_summary_from(unsized).file_bytes == len(data)


def split(tmp_path: Path, shards: int = 3) -> list[Path]:
    """LLAMA_TENSORS over shards as llama-gguf-split writes them: all keys in the first, split.* in each."""
    paths = []
    groups = [make.LLAMA_TENSORS[i::shards] for i in range(shards)]
    for i, group in enumerate(groups):
        values: dict[str, Any] = dict(make.LLAMA) if i == 0 else {}
        values |= {"split.no": (make.U16, i), "split.count": (make.U16, shards)}
        values["split.tensors.count"] = (make.I32, len(make.LLAMA_TENSORS))
        path = tmp_path / f"model-{i + 1:05d}-of-{shards:05d}.gguf"
        path.write_bytes(make.gguf_bytes(values, group))
        paths.append(path)
    return paths


def test_shards_are_summed(tmp_path: Path) -> None:
    paths = split(tmp_path)
    summary = read_summary(paths[0])
    whole = read(make.gguf_bytes(make.LLAMA, make.LLAMA_TENSORS))
    assert summary.shards == 3
    assert summary.weights == whole.weights
    assert summary.file_bytes == sum(path.stat().st_size for path in paths)
    assert [len(header.tensors) for header in read_headers(paths[0])] == [3, 2, 2]
    assert summary == read_summary_from([Memory(path.read_bytes()) for path in paths])


@pytest.mark.engine("llama-server", "smollm2")
def test_a_set_that_llama_gguf_split_made(llama_server: Path, smollm2: Path, tmp_path: Path) -> None:
    import subprocess

    tool = llama_server.with_name("llama-gguf-split")
    if not tool.exists():
        pytest.skip("needs llama-gguf-split beside llama-server")
    command = [str(tool), "--split-max-tensors", "100", str(smollm2), str(tmp_path / "s")]
    subprocess.run(command, check=True, capture_output=True)
    summary = read_summary(tmp_path / "s-00001-of-00003.gguf")
    assert summary.shards == 3
    assert summary.weights == read_summary(smollm2).weights


def test_u64_beyond_2_63_survives_json() -> None:
    summary = read(make.gguf_bytes({"general.architecture": "x", "big": (make.U64, 2**64 - 1)}))
    assert msgspec.json.decode(msgspec.json.encode(summary), type=GgufSummary).values["big"] == 2**64 - 1


def test_the_maker_and_struct_agree_on_the_smallest_file() -> None:
    assert make.gguf_bytes({}) == b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
    assert read(make.gguf_bytes({})).architecture == ""

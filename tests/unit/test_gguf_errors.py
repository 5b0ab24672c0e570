"""Bad files: each fault is named with the file, the numbers and the cure; nothing else is ever raised."""

from __future__ import annotations

import ctypes
import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gezelctl.errors import ExitCode, GgufError
from gezelctl.gguf.reader import read_summary, read_summary_from
from gezelctl.gguf.shards import shard_paths
from gezelctl.gguf.vocab import vocab_digest
from tests import ggufmake as make
from tests.unit.test_gguf_reader import Memory, split

GOOD = make.gguf_bytes(make.LLAMA, make.LLAMA_TENSORS)
MIB = 1 << 20


def header(tensors: int, keys: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def one_tensor(
    name: str | bytes, dims: tuple[int, ...], type_: int = 0, offset: int = 0, rank: int | None = None
) -> bytes:
    entry = make.tensor_entry(name, dims, type_, offset)
    if rank is not None:
        at = 8 + len(name)
        entry = entry[:at] + struct.pack("<I", rank) + entry[at + 4 :]
    return header(1, 0, entry) + bytes(4096)


def pairs(*items: bytes) -> bytes:
    return header(0, len(items), b"".join(items)) + bytes(64)


def two_tensors(second: str, offset: int) -> bytes:
    entries = make.tensor_entry("a", (8,), 0, 0) + make.tensor_entry(second, (8,), 0, offset)
    return header(2, 0, entries) + bytes(4096)


CASES: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "NOT_GGUF", "is empty"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "NOT_GGUF", "a git-lfs pointer"),
    "html": (b"\n<!DOCTYPE html><html>", "NOT_GGUF", "a web page"),
    "json": (b'{"error":"Unauthorized"}', "NOT_GGUF", "a JSON error message"),
    "zip": (b"PK\x03\x04\x14\0", "NOT_GGUF", "a zip archive"),
    "gzip": (b"\x1f\x8b\x08\0", "NOT_GGUF", "a gzip archive"),
    "ggjt": (b"tjgg\x03\0\0\0", "NOT_GGUF", "a legacy GGML file (ggjt)"),
    "ggml": (b"lmgg\0\0\0\0", "NOT_GGUF", "a legacy GGML file (ggml)"),
    "safetensors": (struct.pack("<Q", 2) + b'{"a', "NOT_GGUF", "a safetensors file"),
    "zeros": (bytes(100), "NOT_GGUF", "all zeros"),
    "text": (b"hello world", "NOT_GGUF", "it begins with b'hell'"),
    "version 1": (header(0, 0, version=1), "GGUF_VERSION", "GGUF version 1, which llama.cpp no longer reads"),
    "version 0": (header(0, 0, version=0), "GGUF_VERSION", "GGUF version 0"),
    "version 4": (header(0, 0, version=4), "GGUF_VERSION", "GGUF version 4; versions 2 and 3 are known"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "GGUF_VERSION", "a big-endian GGUF (version 3)"),
    "cut in the magic": (b"GGUF", "GGUF_TRUNCATED", "expected 8 bytes or more, have 4"),
    "cut in the counts": (GOOD[:20], "GGUF_TRUNCATED", "expected 24 bytes or more, have 20"),
    "cut in the keys": (GOOD[:400], "GGUF_TRUNCATED", "have 400"),
    "cut in the data": (
        GOOD[:-100],
        "GGUF_TRUNCATED",
        f"expected {len(GOOD) - 8} bytes or more, have {len(GOOD) - 100}",
    ),
    "tensor count": (header(1 << 60, 0), "GGUF_CORRUPT", "1152921504606846976 tensors"),
    "key count": (header(0, 1 << 60), "GGUF_CORRUPT", "1152921504606846976 keys"),
    "counts for this size": (header(1000, 1000), "GGUF_TRUNCATED", "a header of 1000 tensors, 1000 keys"),
    "empty key": (pairs(make.pair("", 1)), "GGUF_CORRUPT", "key 0 has a name of 0 bytes"),
    "long key": (pairs(make.pair("k" * 65_536, 1)), "GGUF_CORRUPT", "a name of 65536 bytes"),
    "key not UTF-8": (pairs(make.pair(b"\xff\xfe", 1)), "GGUF_CORRUPT", "the name of key 0 is not UTF-8"),
    "key twice": (pairs(make.pair("a", 1), make.pair("a", 2)), "GGUF_CORRUPT", "key 'a' occurs twice"),
    "value type": (pairs(make.string("a") + struct.pack("<II", 13, 0)), "GGUF_CORRUPT", "value type 13"),
    "array type": (pairs(make.string("a") + struct.pack("<IIQ", 9, 99, 0)), "GGUF_CORRUPT", "value type 99"),
    "array of arrays": (pairs(make.string("a") + struct.pack("<IIQ", 9, 9, 1)), "GGUF_CORRUPT", "an array of arrays"),
    "array count": (
        pairs(make.string("a") + struct.pack("<IIQ", 9, 8, 1 << 40)),
        "GGUF_CORRUPT",
        "elements; the limit",
    ),
    "array past the end": (
        pairs(make.string("a") + struct.pack("<IIQ", 9, 4, 1 << 20)),
        "GGUF_TRUNCATED",
        "is truncated in a:",
    ),
    "string length": (pairs(make.string("a") + struct.pack("<IQ", 8, 1 << 50)), "GGUF_CORRUPT", "beyond the limit of"),
    "string past the end": (pairs(make.string("a") + struct.pack("<IQ", 8, 1 << 20)), "GGUF_TRUNCATED", "in a:"),
    "string in an array": (
        pairs(make.string("a") + struct.pack("<IIQQ", 9, 8, 2, 1 << 63)),
        "GGUF_CORRUPT",
        "a: a string of 9223372036854775808 bytes",
    ),
    "alignment 0": (pairs(make.pair("general.alignment", 0)), "GGUF_CORRUPT", "alignment 0 is not a power of two"),
    "alignment 48": (pairs(make.pair("general.alignment", 48)), "GGUF_CORRUPT", "alignment 48 is not a power of two"),
    "alignment u64": (pairs(make.pair("general.alignment", (make.U64, 32))), "GGUF_CORRUPT", "value type 10, not u32"),
    "tensor name empty": (one_tensor("", (8,)), "GGUF_CORRUPT", "tensor 0 has a name of 0 bytes"),
    "tensor name long": (one_tensor("n" * 64, (8,)), "GGUF_CORRUPT", "tensor 0 has a name of 64 bytes"),
    "tensor name not UTF-8": (one_tensor(b"\xff", (8,)), "GGUF_CORRUPT", "the name of tensor 0 is not UTF-8"),
    "rank 0": (one_tensor("a", (8,), rank=0), "GGUF_CORRUPT", "tensor 'a' has 0 dimensions"),
    "rank 5": (one_tensor("a", (1, 1, 1, 1, 1)), "GGUF_CORRUPT", "tensor 'a' has 5 dimensions"),
    "rank 2^32-1": (one_tensor("a", (8,), rank=2**32 - 1), "GGUF_CORRUPT", "4294967295 dimensions"),
    "dim 0": (one_tensor("a", (8, 0)), "GGUF_CORRUPT", "the shape [8, 0]"),
    "dim overflow": (one_tensor("a", (2**42 + 1, 2**42)), "GGUF_CORRUPT", "which no model has"),
    "dim past the file": (one_tensor("a", (2**40,)), "GGUF_TRUNCATED", f"expected {2**42 + 64} bytes"),
    "half a block": (one_tensor("a", (33,), 2), "GGUF_CORRUPT", "rows of 33, not a multiple of the Q4_0 block 32"),
    "unknown type": (one_tensor("a", (32,), 77), "ARCH_UNSUPPORTED", "type 77, which is not known"),
    "removed type": (one_tensor("a", (32,), 31), "ARCH_UNSUPPORTED", "Q4_0_4_4, which llama.cpp has removed"),
    "offset": (one_tensor("a", (8,), offset=32), "GGUF_CORRUPT", "tensor 'a' has offset 32, expected 0"),
    "offset between": (two_tensors("b", 64), "GGUF_CORRUPT", "tensor 'b' has offset 64, expected 32"),
    "tensor twice": (two_tensors("a", 32), "GGUF_CORRUPT", "tensor 'a' occurs twice"),
    "layer": (one_tensor("blk.99999999.a", (8,)), "GGUF_CORRUPT", "belongs to layer 99999999"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_is_named(case: str, tmp_path: Path) -> None:
    data, code, message = CASES[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufError) as caught:
        read_summary(path)
    error = caught.value
    assert error.code == code
    assert error.message.startswith(f"{path}: ")
    assert message in error.message
    assert error.cure
    assert error.exit_code is ExitCode.FAILED


def test_a_directory_a_missing_file_and_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path, code, message in (
        (tmp_path, "NOT_GGUF", "is a directory, not a GGUF file"),
        (tmp_path / "absent.gguf", "FILE_MISSING", "cannot be opened: No such file or directory"),
        (tmp_path / "pipe.gguf", "NOT_GGUF", "is not a regular file"),
    ):
        with pytest.raises(GgufError, match=message) as caught:
            read_summary(path)
        assert caught.value.code == code


def test_a_source_of_unknown_size_that_ends_early() -> None:
    data = make.gguf_bytes(make.LLAMA, make.LLAMA_TENSORS)
    for cut in (10, 100, 3000, data.index(b"output.weight") + 20):
        with pytest.raises(GgufError, match=f"have {cut}\n") as caught:
            read_summary_from(Memory(data[:cut], sized=False))
        assert caught.value.code == "GGUF_TRUNCATED"


@pytest.mark.engine("smollm2")
@pytest.mark.parametrize("keep", [1000, 300_000, 1_700_000, 50_000_000])
def test_a_download_that_stopped(smollm2: Path, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.gguf"
    with smollm2.open("rb") as source:
        path.write_bytes(source.read(keep))
    with pytest.raises(GgufError, match=f"expected [0-9]+ bytes or more, have {keep}\n") as caught:
        read_summary(path)
    assert caught.value.code == "GGUF_TRUNCATED"
    assert "fetch the file again" in caught.value.cure


def _drop(paths: list[Path]) -> Path:
    paths[1].unlink()
    return paths[0]


def _second(paths: list[Path]) -> Path:
    return paths[1]


def _renamed(paths: list[Path]) -> Path:
    return paths[0].rename(paths[0].with_name("model.gguf"))


def _swapped(paths: list[Path]) -> Path:
    other = paths[1].read_bytes()
    paths[1].write_bytes(paths[2].read_bytes())
    paths[2].write_bytes(other)
    return paths[0]


def _fewer(paths: list[Path]) -> Path:
    paths[2].write_bytes(
        make.gguf_bytes({"split.no": (make.U16, 2), "split.count": (make.U16, 3)}, make.LLAMA_TENSORS[2:3])
    )
    return paths[0]


def _doubled(paths: list[Path]) -> Path:
    paths[2].write_bytes(
        make.gguf_bytes({"split.no": (make.U16, 2), "split.count": (make.U16, 3)}, make.LLAMA_TENSORS[1:3])
    )
    return paths[0]


def _of_another_set(paths: list[Path]) -> Path:
    paths[2].write_bytes(make.gguf_bytes({"split.no": (make.U16, 2), "split.count": (make.U16, 4)}))
    return paths[0]


def _renumbered(paths: list[Path]) -> Path:
    paths[0].write_bytes(paths[1].read_bytes())
    return paths[0]


def _piece(paths: list[Path]) -> Path:
    return paths[0].rename(paths[0].with_name("model.gguf.part1of2"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop, "shard 2 of 3 is missing: model-00002-of-00003.gguf"),
        (_second, "is shard 2 of 3; a model is named by its first shard"),
        (_renamed, "is one of 3 shards, but not named as one"),
        (_swapped, "model-00002-of-00003.gguf: says it is shard 3, its place is 2"),
        (_fewer, "promises 7 tensors, the 3 shards hold 6"),
        (_doubled, "tensor 'blk.0.attn_q.weight' is in more than one shard"),
        (_of_another_set, "model-00003-of-00003.gguf: says it is one of 4 shards, there are 3"),
        (_renumbered, "model-00001-of-00003.gguf: is shard 2 of 3"),
        (_piece, "is a piece of a file that was cut up"),
    ],
)
def test_a_broken_set_is_named(change: Callable[[list[Path]], Path], message: str, tmp_path: Path) -> None:
    path = change(split(tmp_path))
    with pytest.raises(GgufError) as caught:
        read_summary(path)
    assert caught.value.code == "SPLIT"
    assert message in caught.value.message
    assert caught.value.cure


def test_the_cure_names_the_first_shard(tmp_path: Path) -> None:
    paths = split(tmp_path)
    with pytest.raises(GgufError) as caught:
        shard_paths(paths[2])
    assert caught.value.cure == f"name {paths[0]}"
    assert shard_paths(paths[0]) == tuple(paths)
    assert shard_paths(tmp_path / "any.gguf") == (tmp_path / "any.gguf",)
    with pytest.raises(GgufError, match="calls itself shard 4 of 3"):
        shard_paths(tmp_path / "x-00004-of-00003.gguf")


SMALL = make.gguf_bytes(
    make.LLAMA
    | {
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(12)],
        "llama.heads": [8, 8],
        "llama.eps": 1e-5,
        "flags": [True, False],
    },
    [("token_embd.weight", (32, 4), 8), ("blk.0.attn_q.weight", (32, 2), 2), ("output_norm.weight", (8,), 0)],
)
_HEADER_END = SMALL.index(b"output_norm.weight") + 60


def _mutations() -> st.SearchStrategy[bytes]:
    flips = st.lists(st.tuples(st.integers(0, _HEADER_END), st.integers(0, 255)), min_size=1, max_size=4)

    def flip(changes: list[tuple[int, int]]) -> bytes:
        data = bytearray(SMALL)
        for at, value in changes:
            data[at] = value
        return bytes(data)

    def wide(change: tuple[int, int]) -> bytes:
        at, value = change
        return SMALL[:at] + struct.pack("<Q", value) + SMALL[at + 8 :]

    words = st.tuples(st.integers(0, _HEADER_END), st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 300)))
    cuts = st.integers(0, len(SMALL) - 1).map(lambda end: SMALL[:end])
    inserts = st.tuples(st.integers(0, _HEADER_END), st.binary(min_size=1, max_size=9)).map(
        lambda change: SMALL[: change[0]] + change[1] + SMALL[change[0] :]
    )
    return st.one_of(flips.map(flip), words.map(wide), cuts, inserts)


@settings(max_examples=1500, deadline=None)
@given(_mutations(), st.booleans())
def test_damage_raises_nothing_but_gguf_errors(data: bytes, sized: bool) -> None:
    error: GgufError | None = None
    try:
        read_summary_from(Memory(data, sized=sized))
    except GgufError as raised:
        error = raised
    assert error is None or (error.code and error.cure)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_mutations())
def test_damage_costs_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        read_summary_from(Memory(data))
    except GgufError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2 * MIB


@pytest.mark.parametrize("type_", [make.STRING, make.U8, make.U64])
def test_a_hostile_array_in_a_huge_sparse_file_costs_little(type_: int, tmp_path: Path) -> None:
    """64 Mi elements are allowed and really there (the file is sparse): they are passed over, not kept."""
    path = tmp_path / "model.gguf"
    count = 1 << 20
    path.write_bytes(header(0, 1, make.string("a") + struct.pack("<IIQ", 9, type_, count)))
    os.truncate(path, 1 << 30)
    tracemalloc.start()
    summary = read_summary(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert summary.arrays == {}
    assert peak < 20 * MIB


class _InitParams(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


@pytest.fixture(scope="module")
def libggml(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    """libggml-base beside the real llama-server, silent."""
    server: Path = request.getfixturevalue("llama_server")
    path = server.parent / "libggml-base.so"
    if not path.exists():
        pytest.skip(f"needs {path.name} beside llama-server")
    library = ctypes.CDLL(str(path))
    library.gguf_init_from_file.argtypes = [ctypes.c_char_p, _InitParams]
    library.gguf_init_from_file.restype = ctypes.c_void_p
    library.gguf_free.argtypes = [ctypes.c_void_p]
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    library.ggml_log_set(quiet, None)
    yield library
    library.ggml_log_set(None, None)  # while `quiet` still exists


@pytest.mark.engine("llama-server")
@settings(max_examples=800, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_mutations())
def test_what_is_accepted_llama_cpp_accepts_too(libggml: ctypes.CDLL, tmp_path: Path, data: bytes) -> None:
    """No header that passes here is refused by llama.cpp's own reader."""
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    try:
        read_summary(path)
    except GgufError:
        return
    context = libggml.gguf_init_from_file(os.fsencode(path), _InitParams(True, None))
    assert context
    libggml.gguf_free(context)


def test_a_projector_has_no_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(make.gguf_bytes({"general.architecture": "clip"}))
    with pytest.raises(GgufError, match="has no vocabulary") as caught:
        vocab_digest(path)
    assert caught.value.code == "NO_VOCAB"

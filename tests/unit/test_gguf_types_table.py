"""The size table against the two authorities there are: the gguf package, and libggml itself."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import pytest

from gezelctl.gguf.types_table import (
    FILE_TYPES,
    GGML_TYPES,
    WITHDRAWN_TYPES,
    GgmlType,
    file_type_name,
    row_bytes,
)

BY_NAME = {entry.name.lower(): entry for entry in GGML_TYPES.values()}


def test_sizes_agree_with_the_gguf_package() -> None:
    for type_, (block, size) in gguf.GGML_QUANT_SIZES.items():
        ours = GGML_TYPES[int(type_)]
        assert ours.name == type_.name
        # the package still counts Q8_1 with two f32 scales; libggml has had two f16 since 2024 (next test)
        if ours.name != "Q8_1":
            assert (ours.block, ours.size) == (block, size), type_.name


@pytest.mark.engine("llama-server")
def test_sizes_and_names_agree_with_libggml(llama_server: Path) -> None:
    library = llama_server.parent / "libggml-base.so"
    if not library.exists():
        pytest.skip(f"needs {library.name} beside llama-server")
    ggml = ctypes.CDLL(str(library))
    ggml.ggml_type_name.restype = ctypes.c_char_p
    ggml.ggml_blck_size.restype = ctypes.c_int64
    ggml.ggml_type_size.restype = ctypes.c_size_t
    for id_ in range(max(GGML_TYPES) + 1):
        name = ggml.ggml_type_name(id_).decode()
        if id_ in GGML_TYPES:
            theirs = GgmlType(name.upper(), ggml.ggml_blck_size(id_), ggml.ggml_type_size(id_))
            assert GGML_TYPES[id_]._replace(name=GGML_TYPES[id_].name.upper()) == theirs
        else:
            assert id_ in WITHDRAWN_TYPES
            assert "REMOVED" in name or name == "DEPRECATED"


def test_file_types_agree_with_the_gguf_package() -> None:
    for file_type in gguf.LlamaFileType:
        assert FILE_TYPES[int(file_type)] == file_type.name
    assert file_type_name(15) == "MOSTLY_Q4_K_M"
    assert file_type_name(99) == "UNKNOWN_99"


@pytest.mark.parametrize(
    ("name", "elements", "size"),
    [("q4_0", 4096, 2304), ("q6_k", 256, 210), ("mxfp4", 64, 34), ("bf16", 3, 6), ("q8_0", 1024, 1088)],
)
def test_row_bytes(name: str, elements: int, size: int) -> None:
    assert row_bytes(BY_NAME[name], elements) == size


def test_a_row_is_whole_blocks() -> None:
    with pytest.raises(ValueError, match="33 elements are not a multiple of the 32 of a Q4_0 block"):
        row_bytes(BY_NAME["q4_0"], 33)

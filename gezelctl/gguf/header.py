"""One GGUF file's header: key-value pairs without vocabularies, and the tensor table.

The limits are those of llama.cpp's gguf_init_from_reader where it has one, and stricter where it would allocate first.
"""

from __future__ import annotations

import math
import struct
from typing import Final, NamedTuple

import msgspec

from gezelctl.errors import GgufError
from gezelctl.gguf.filekind import SNIFF_BYTES, require_gguf, require_version
from gezelctl.gguf.source import ByteSource, Cursor
from gezelctl.gguf.types import Scalar, TensorInfo
from gezelctl.gguf.types_table import GGML_TYPES, WITHDRAWN_TYPES, row_bytes

MAX_KEYS: Final = 1 << 16
MAX_TENSORS: Final = 1 << 20
MAX_ARRAY: Final = 64 << 20
MAX_KEY_BYTES: Final = 65_535
MAX_TENSOR_NAME_BYTES: Final = 63
KEPT_ARRAY: Final = 4_096
KEPT_STRING: Final = 256

DEFAULT_ALIGNMENT: Final = 32
MIN_ALIGNMENT: Final = 32
"""ggml aborts on tensor data that is not aligned to 32 bytes (TENSOR_ALIGNMENT)."""

TOKENS_KEY: Final = "tokenizer.ggml.tokens"
TEMPLATE_KEY: Final = "tokenizer.chat_template"
ALIGNMENT_KEY: Final = "general.alignment"

_STRING: Final = 8
_ARRAY: Final = 9
_UINT32: Final = 4
_BOOL: Final = 7
_SCALARS: Final[dict[int, struct.Struct]] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}

_MIN_KEY_BYTES: Final = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES: Final = 8 + 1 + 4 + 8 + 4 + 8
_MAX_TENSOR_BYTES: Final = 8 + MAX_TENSOR_NAME_BYTES + 4 + 4 * 8 + 4 + 8

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_TYPE_OFFSET = struct.Struct("<IQ")
_DIMS: Final = tuple(struct.Struct(f"<{n}Q") for n in range(1, 5))


class TokenSpan(NamedTuple):
    """Where the strings of `tokenizer.ggml.tokens` begin, and how many they are."""

    offset: int
    total: int


class Header(msgspec.Struct):
    """What one file says; `data_end` is the least size of a complete file, `size` the real one when known."""

    name: str
    version: int
    size: int | None
    alignment: int = DEFAULT_ALIGNMENT
    values: dict[str, Scalar] = {}
    arrays: dict[str, tuple[int | float, ...]] = {}
    tokens: TokenSpan | None = None
    chat_template: str = ""
    tensors: list[TensorInfo] = []
    elements: int = 0
    data_end: int = 0

    def text(self, key: str) -> str:
        """The string `key`, "" when absent or of another type."""
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int | None:
        """The integer `key`, None when absent or of another type."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_header(source: ByteSource) -> Header:
    """Reads and checks the header of one file.

    Raises GgufError: NOT_GGUF, GGUF_VERSION, GGUF_CORRUPT, GGUF_TRUNCATED, ARCH_UNSUPPORTED (an unknown tensor type).
    """
    cursor = Cursor(source)
    head, _ = cursor.peek(SNIFF_BYTES)
    require_gguf(source.name, head[:SNIFF_BYTES])
    cursor.skip(4, "the magic")
    version = cursor.u32("the version")
    require_version(source.name, version)
    header = Header(name=source.name, version=version, size=source.size)
    tensors = _count(cursor, "tensors", MAX_TENSORS)
    keys = _count(cursor, "keys", MAX_KEYS)
    cursor.require(tensors * _MIN_TENSOR_BYTES + keys * _MIN_KEY_BYTES, f"a header of {tensors} tensors, {keys} keys")
    _read_pairs(cursor, header, keys)
    _read_tensors(cursor, header, tensors)
    return header


def _count(cursor: Cursor, what: str, limit: int) -> int:
    count = cursor.u64(f"the number of {what}")
    if count > limit:
        raise cursor.corrupt(f"says it has {count} {what}; the limit is {limit}")
    return count


def _read_pairs(cursor: Cursor, header: Header, count: int) -> None:
    seen: set[str] = set()
    for index in range(count):
        key = _read_key(cursor, index)
        if key in seen:
            raise cursor.corrupt(f"key {key!r} occurs twice")
        seen.add(key)
        type_ = cursor.u32(key)
        if key == ALIGNMENT_KEY and type_ != _UINT32:
            raise cursor.corrupt(f"{key} is of value type {type_}, not u32")
        if type_ == _STRING:
            _read_string(cursor, header, key)
        elif type_ == _ARRAY:
            _read_array(cursor, header, key)
        else:
            _read_scalar(cursor, header, key, type_)
    alignment = header.number(ALIGNMENT_KEY)
    if alignment is not None:
        if alignment < MIN_ALIGNMENT or alignment & (alignment - 1):
            raise cursor.corrupt(f"alignment {alignment} is not a power of two of {MIN_ALIGNMENT} or more")
        header.alignment = alignment


def _read_key(cursor: Cursor, index: int) -> str:
    what = f"key {index}"
    length = cursor.u64(what)
    if not 1 <= length <= MAX_KEY_BYTES:
        raise cursor.corrupt(f"{what} has a name of {length} bytes; 1 to {MAX_KEY_BYTES} are allowed")
    return _utf8(cursor, cursor.take(length, what), what)


def _utf8(cursor: Cursor, raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise cursor.corrupt(f"the name of {what} is not UTF-8: {raw[:32]!r}") from None


def _read_string(cursor: Cursor, header: Header, key: str) -> None:
    length = cursor.string_length(key)
    if key == TEMPLATE_KEY:
        header.chat_template = cursor.take(length, key).decode(errors="replace")
    elif length <= 4 * KEPT_STRING:
        value = cursor.take(length, key).decode(errors="replace")
        if len(value) <= KEPT_STRING:
            header.values[key] = value
    else:
        cursor.skip(length, key)


def _scalar(cursor: Cursor, key: str, type_: int) -> struct.Struct:
    layout = _SCALARS.get(type_)
    if layout is None:
        raise cursor.corrupt(f"key {key!r} has value type {type_}, which does not exist")
    return layout


def _read_scalar(cursor: Cursor, header: Header, key: str, type_: int) -> None:
    layout = _scalar(cursor, key, type_)
    (value,) = layout.unpack(cursor.take(layout.size, key))
    # JSON has no word for them, and no key that matters is ever one
    if not (isinstance(value, float) and not math.isfinite(value)):
        header.values[key] = value


def _read_array(cursor: Cursor, header: Header, key: str) -> None:
    type_ = cursor.u32(key)
    count = cursor.u64(key)
    if type_ == _ARRAY:
        raise cursor.corrupt(f"key {key!r} is an array of arrays, which llama.cpp does not read")
    if count > MAX_ARRAY:
        raise cursor.corrupt(f"key {key!r} has {count} elements; the limit is {MAX_ARRAY}")
    if type_ == _STRING:
        cursor.require(count * 8, key)
        if key == TOKENS_KEY:
            header.tokens = TokenSpan(cursor.position, count)
        cursor.skip_strings(count, key)
        return
    layout = _scalar(cursor, key, type_)
    if count > KEPT_ARRAY:
        cursor.skip(count * layout.size, key)
        return
    values = struct.unpack(f"<{count}{layout.format[1:]}", cursor.take(count * layout.size, key))
    if type_ == _BOOL:
        values = tuple(int(value) for value in values)
    if all(map(math.isfinite, values)):
        header.arrays[key] = values


def _read_tensors(cursor: Cursor, header: Header, count: int) -> None:
    offset = 0
    names: set[str] = set()
    tensors: list[TensorInfo] = []
    for index in range(count):
        tensor, elements = _read_tensor(cursor, index)
        if tensor.name in names:
            raise cursor.corrupt(f"tensor {tensor.name!r} occurs twice")
        if tensor.offset != offset:
            raise cursor.corrupt(f"tensor {tensor.name!r} has offset {tensor.offset}, expected {offset}")
        names.add(tensor.name)
        tensors.append(tensor)
        header.elements += elements
        header.data_end = offset + tensor.size_bytes
        offset = _padded(header.data_end, header.alignment)
    start = _padded(cursor.position, header.alignment) if tensors else cursor.position
    header.data_end += start
    header.tensors = tensors
    if header.size is not None and header.size < header.data_end:
        raise cursor.truncated(header.data_end, "the tensor data")


def _padded(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _read_tensor(cursor: Cursor, index: int) -> tuple[TensorInfo, int]:
    window, at = cursor.peek(_MAX_TENSOR_BYTES)
    try:
        (length,) = _U64.unpack_from(window, at)
        if not 1 <= length <= MAX_TENSOR_NAME_BYTES:
            raise cursor.corrupt(
                f"tensor {index} has a name of {length} bytes; 1 to {MAX_TENSOR_NAME_BYTES} are allowed"
            )
        name = _utf8(cursor, window[at + 8 : at + 8 + length], f"tensor {index}")
        after = at + 8 + length
        (rank,) = _U32.unpack_from(window, after)
        if not 1 <= rank <= len(_DIMS):
            raise cursor.corrupt(f"tensor {name!r} has {rank} dimensions; 1 to {len(_DIMS)} are allowed")
        dims: tuple[int, ...] = _DIMS[rank - 1].unpack_from(window, after + 4)
        type_, offset = _TYPE_OFFSET.unpack_from(window, after + 4 + 8 * rank)
    except struct.error:
        raise cursor.truncated(cursor.position + _MIN_TENSOR_BYTES, f"the entry of tensor {index}") from None
    cursor.skip(after + 16 + 8 * rank - at, name)
    type_name, size, elements = _measure(cursor, name, dims, type_)
    return TensorInfo(name, type_name, dims, offset, size), elements


def _measure(cursor: Cursor, name: str, dims: tuple[int, ...], type_: int) -> tuple[str, int, int]:
    """(type name, bytes, elements) of a tensor: row(type, ne0) * ne1 * ne2 * ne3, as ggml_nbytes counts."""
    ggml = GGML_TYPES.get(type_)
    if ggml is None:
        raise _unknown_type(cursor, name, type_)
    elements = math.prod(dims)
    if not 1 <= elements < 1 << 63:
        raise cursor.corrupt(f"tensor {name!r} has the shape {list(dims)}, which no model has")
    if dims[0] % ggml.block:
        raise cursor.corrupt(
            f"tensor {name!r} has rows of {dims[0]}, not a multiple of the {ggml.name} block {ggml.block}"
        )
    return ggml.name, row_bytes(ggml, dims[0]) * (elements // dims[0]), elements


def _unknown_type(cursor: Cursor, name: str, type_: int) -> GgufError:
    if type_ in WITHDRAWN_TYPES:
        what = f"tensor {name!r} is of type {WITHDRAWN_TYPES[type_]}, which llama.cpp has removed"
        cure = "fetch a quantisation made with a current llama.cpp (Q4_0 is repacked at load time instead)"
    else:
        what = f"tensor {name!r} is of type {type_}, which is not known"
        cure = "update gezelctl and the engine, or choose another quantisation; if it is old, the file is damaged"
    return GgufError(f"{cursor.source.name}: {what}", cure=cure, code="ARCH_UNSUPPORTED")

"""Reading a catalog file: bounded, UTF-8, decoded to plain data, with places that are looked up only for a finding."""

from __future__ import annotations

import re
from pathlib import Path as FilePath
from typing import Any

import msgspec

from gezelctl.catalog.findings import Path, fault, file_fault
from gezelctl.config.diagnostics import InvalidConfig, Place
from gezelctl.config.source import SourceText

MAX_BYTES = 8 << 20
"""Bound of one catalog file. The largest known manifest has about 20 KB, a listing of 47 models 220 KB."""

_TOKEN = re.compile(r'[ \t\r\n]*("(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+)', re.ASCII)
_BYTE = re.compile(r"\(byte (\d+)\)\Z")


class JsonDocument:
    """Decoded JSON. `data` is plain dicts, lists and scalars; `place` finds a value in the text again."""

    def __init__(self, source: SourceText, data: Any) -> None:
        self.data = data
        self.source = source

    def place(self, path: Path) -> Place:
        """Where the value at `path` stands; the nearest enclosing value when it is absent."""
        start, end = locate(self.source.text, path)
        place = self.source.place_at(start)
        return msgspec.structs.replace(place, end_column=place.column + end - start)


def read_bytes(path: FilePath, file: str) -> bytes:
    """The bytes of a catalog file of at most MAX_BYTES.

    Raises FileNotFoundError or NotADirectoryError when there is none, InvalidConfig E0201 for any other failure.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        cause = error.strerror or str(error)
        raise file_fault(file, f"the file cannot be read: {cause}", cure="make it a readable regular file") from error
    if len(data) > MAX_BYTES:
        raise file_fault(file, f"the file is larger than {MAX_BYTES >> 20} MiB", cure="split or shorten it")
    return data


def decode_text(data: bytes, file: str) -> str:
    """UTF-8 text, a byte order mark dropped. Raises InvalidConfig E0201 at the first bad byte."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        place = SourceText(file, before).place_at(len(before))
        raise fault("E0201", "the file is not UTF-8", cure="save it as UTF-8", place=place) from error


def read_json(path: FilePath, file: str) -> JsonDocument:
    """A JSON file whose top is an object.

    Raises FileNotFoundError or NotADirectoryError when there is none, else InvalidConfig E0201, E0202 or E0203.
    """
    return parse_json(decode_text(read_bytes(path, file), file), file)


def parse_json(text: str, file: str) -> JsonDocument:
    """JSON text whose top is an object. Raises InvalidConfig E0202 or E0203 with the place of the fault."""
    try:
        data = msgspec.json.decode(text)
    except RecursionError as error:
        raise file_fault(file, "the file is nested too deeply", code="E0202", cure="flatten it") from error
    except msgspec.DecodeError as error:
        raise _malformed(text, file, str(error)) from error
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a scalar"
        raise file_fault(file, f"the file must hold an object, not {kind}", code="E0203", cure="write { … } at the top")
    return JsonDocument(SourceText(file, text), data)


def _malformed(text: str, file: str, message: str) -> InvalidConfig:
    at = _BYTE.search(message)
    # msgspec counts bytes of the UTF-8 form; a truncated text is wrong at its end
    before = text.encode()[: int(at[1])].decode(errors="replace") if at else text
    what = "ends too early" if message == "Input data was truncated" else _BYTE.sub("", message).strip()
    what = what.removeprefix("JSON is malformed: ")
    place = SourceText(file, text).place_at(len(before))
    return fault("E0202", f"the file is not valid JSON: {what}", cure="correct the JSON at this place", place=place)


def locate(text: str, path: Path) -> tuple[int, int]:
    """Start and end offset of the first token of the value at `path` in well-formed JSON text."""
    start, end = _span(text, 0)
    for step in path:
        child = _child(text, start, step)
        if child < 0:
            break
        start, end = _span(text, child)
    return start, end


def _span(text: str, position: int) -> tuple[int, int]:
    token = _TOKEN.match(text, position)
    return (position, position) if token is None else token.span(1)


def _child(text: str, start: int, step: str | int) -> int:
    """Offset of the member `step` of the object or list at `start`; -1 when there is none."""
    opening, found, index = text[start : start + 1], -1, 0
    if opening != ("[" if isinstance(step, int) else "{"):
        return -1
    position = start + 1
    while (token := _TOKEN.match(text, position)) and token[1] not in "}]":
        if token[1] == ",":
            position = token.end()
            continue
        key: str | int = index
        if opening == "{":
            key = msgspec.json.decode(token[1])
            position = _span(text, token.end())[1]  # past the colon
        if key == step:
            found = position  # a repeated key: the last one wins, as in the decoder
        position = _skip(text, position)
        index += 1
    return found


def _skip(text: str, position: int) -> int:
    """Offset behind the value at `position`."""
    depth = 0
    while token := _TOKEN.match(text, position):
        position = token.end()
        if token[1] in "{[":
            depth += 1
        elif token[1] in "}]":
            depth -= 1
        if depth == 0:
            break
    return position

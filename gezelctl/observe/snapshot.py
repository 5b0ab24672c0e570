"""Observed state as a file: written on the machine, planned with elsewhere."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, Place
from gezelctl.observe.types import Observed, ServerFact, Snapshot

FORMAT_VERSION: Final = "1.0"
"""Minor versions only add; a reader ignores keys that it does not know, and refuses another major."""
_POSITION = re.compile(r"\(byte (\d+)\)")
_VERSION = re.compile(r"(\d+)\.\d+")


class _Head(msgspec.Struct, rename="camel"):
    kind: str = ""
    format_version: str = ""


def to_snapshot(observed: Observed, stack: str, tool: str, now: str, *, base_dir: str = "", home: str = "") -> Snapshot:
    """`now` is RFC 3339 UTC in seconds. The tokens that prove processes ours stay on the host."""
    return Snapshot(
        format_version=FORMAT_VERSION,
        kind="Snapshot",
        tool=tool,
        stack=stack,
        host=observed.facts.host,
        observed_at=now,
        observed=replace(observed, servers=tuple(map(_without_token, observed.servers))),
        base_dir=base_dir,
        home=home,
    )


def _without_token(fact: ServerFact) -> ServerFact:
    return replace(fact, record=replace(fact.record, token="")) if fact.record else fact


def read_snapshot(path: Path) -> Snapshot:
    """The snapshot in a JSON file.

    Raises InvalidConfig: E0501 cannot be read, E0502 not JSON (with line and column), E0503 not a snapshot, E0504
    another major version, E0505 a snapshot whose contents are damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _fault(
            "E0501", f"{path} cannot be read: {error.strerror}", "name a file of `gezelctl snapshot`"
        ) from error
    try:
        head = msgspec.json.decode(data, type=_Head)
    except msgspec.ValidationError as error:
        raise _not_one(path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _broken(path, data, str(error)) from error
    version = _VERSION.fullmatch(head.format_version)
    if head.kind != "Snapshot" or version is None:
        raise _not_one(path)
    if version[1] != FORMAT_VERSION.partition(".")[0]:
        summary = f"{path} has format version {head.format_version}; this gezelctl reads {FORMAT_VERSION}"
        raise _fault("E0504", summary, "take the snapshot and plan with the same gezelctl")
    try:
        snapshot = msgspec.json.decode(data, type=Snapshot)
    except msgspec.DecodeError as error:
        raise _fault("E0505", f"{path} is damaged: {error}", "take the snapshot again") from error
    if not _is_time(snapshot.observed_at):
        summary = f"{path} is damaged: observedAt is no RFC 3339 time in UTC: {snapshot.observed_at}"
        raise _fault("E0505", summary, "take the snapshot again")
    return snapshot


def _is_time(text: str) -> bool:
    """Whether the age of a snapshot of this moment can be told."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _not_one(path: Path) -> InvalidConfig:
    return _fault("E0503", f"{path} is not a snapshot", "make one with `gezelctl snapshot -f models.yaml -o json`")


def _broken(path: Path, data: bytes, message: str) -> InvalidConfig:
    match = _POSITION.search(message)
    offset = int(match[1]) if match else len(data)
    before = data[:offset]
    column = len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1
    place = Place(str(path), before.count(b"\n") + 1, column)
    return _fault("E0502", "is not complete JSON" if offset >= len(data) else "is not JSON", "take it again", place)


def _fault(code: str, summary: str, cure: str, place: Place | None = None) -> InvalidConfig:
    return InvalidConfig([Diagnostic(code=code, summary=summary, cure=cure, place=place)])

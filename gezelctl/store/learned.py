"""What starts have taught about a host: what took a build down, and memory that was measured.

The files may be deleted at any time; the next start learns again. Writers hold the stack's lock.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from gezelctl.store.files import StateError, encode, read_struct, write_atomic
from gezelctl.store.layout import Paths
from gezelctl.store.types import BrokenDrafter, MeasuredMemory, Starved

T = TypeVar("T")


def pair_key(engine_digest: str, what: str) -> str:
    """`<engine digest>/<what>`, where `what` is the sha256 of a drafter or of weights, or an architecture."""
    return f"{engine_digest}/{what}"


def read_broken(paths: Paths) -> dict[str, BrokenDrafter]:
    """Draft models that are not tried again, by `pair_key`. Raises StateError."""
    return _read(paths.broken_drafters, BrokenDrafter)


def add_broken(paths: Paths, key: str, broken: BrokenDrafter) -> None:
    """Remember that a draft model took an engine build down. Raises StateError."""
    _add(paths.broken_drafters, key, broken)


def read_starved(paths: Paths) -> dict[str, Starved]:
    """The last start of each model that ran out of device memory, by `pair_key`. Raises StateError."""
    return _read(paths.starved, Starved)


def add_starved(paths: Paths, key: str, starved: Starved) -> None:
    """Remember that a launch ran out of device memory. Raises StateError."""
    _add(paths.starved, key, starved)


def clear_broken(paths: Paths) -> frozenset[str]:
    """Give everything that took an engine build down another chance; returns the servers that go without."""
    broken, starved = _known(paths.broken_drafters, BrokenDrafter), _known(paths.starved, Starved)
    for path in (paths.broken_drafters, paths.starved):
        path.unlink(missing_ok=True)
    return frozenset({entry.server for entry in broken.values()} | {entry.server for entry in starved.values()})


def read_measured(paths: Paths) -> dict[str, MeasuredMemory]:
    """The last measured start by `pair_key`. Raises StateError."""
    return _read(paths.measured, MeasuredMemory)


def add_measured(paths: Paths, key: str, measured: MeasuredMemory) -> None:
    """Remember what a start took. Raises StateError."""
    _add(paths.measured, key, measured)


def _read(path: Path, kind: type[T]) -> dict[str, T]:
    return read_struct(path, dict[str, kind]) or {}  # type: ignore[valid-type] # a type made at run time


def _known(path: Path, kind: type[T]) -> dict[str, T]:
    """As `_read`; a damaged file is begun anew."""
    try:
        return _read(path, kind)
    except StateError:
        return {}


def _add(path: Path, key: str, entry: msgspec.Struct) -> None:
    write_atomic(path, encode({**_known(path, type(entry)), key: entry}))

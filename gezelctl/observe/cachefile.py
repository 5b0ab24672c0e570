"""Small JSON files under the cache folder: written atomically, safe to delete, and never worth failing for."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")
Stamp = tuple[str, int, int]
"""Path, size in bytes, mtime in nanoseconds; size -1 when there is no such file."""


def stamp(path: str) -> Stamp:
    """What tells that a file is still the same one; follows symlinks."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path object costs more than the call, and there are many
    except OSError:
        return path, -1, 0
    return path, found.st_size, found.st_mtime_ns


def read_cache(path: Path, kind: type[T]) -> T | None:
    """The value of `path`, or None when it is missing, unreadable or of another shape."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def write_cache(path: Path, value: object) -> None:
    """Replace `path`; a cache that cannot be written (read-only, full) is a cache that stays cold."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(value))
        temporary.replace(path)

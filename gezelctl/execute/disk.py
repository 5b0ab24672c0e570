"""Room on the disk: what must be free before a byte is written, and what a full disk is called."""

from __future__ import annotations

import shutil
from pathlib import Path

from gezelctl.errors import FetchError
from gezelctl.plan.capacity import disk_margin
from gezelctl.store.files import NO_SPACE


def require_space(directory: Path, need_bytes: int) -> None:
    """Raises FetchError DISK_FULL when the file system of `directory` (or its nearest existing parent) lacks room.

    A file system that cannot be measured is given the benefit of the doubt.
    """
    if need_bytes <= 0:
        return
    existing = next((p for p in (directory, *directory.parents) if p.exists()), None)
    try:
        free = shutil.disk_usage(existing).free if existing else None
    except OSError:
        return
    margin = disk_margin(need_bytes)
    required = need_bytes + margin
    if free is not None and free < required:
        raise FetchError(
            f"{existing}: not enough disk: {free:,} bytes free; {need_bytes:,} to write, {margin:,} to keep free",
            cure=f"free {required - free:,} bytes, or set store.path to a larger disk",
            code="DISK_FULL",
        )


def is_full(error: OSError) -> bool:
    return error.errno in NO_SPACE


def full_disk(path: Path, written_bytes: int, total_bytes: int) -> FetchError:
    """The disk filled up while `path` was written; `total_bytes` 0 = unknown."""
    missing = f"; {total_bytes - written_bytes:,} bytes are missing" if total_bytes > written_bytes else ""
    return FetchError(
        f"{path}: the disk is full after {written_bytes:,} bytes{missing}",
        cure="free some space, then apply again",
        code="DISK_FULL",
    )

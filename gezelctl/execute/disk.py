"""Room on the disk: what must be free before a byte is written, and what a full disk is called."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from gezelctl.errors import FetchError
from gezelctl.store.files import NO_SPACE

GIB: Final = 1 << 30
MARGIN_BYTES: Final = 2 * GIB
MARGIN_SHARE: Final = 50
"""The margin is one fiftieth (2 %) of the need where that is more."""


def margin_bytes(need_bytes: int) -> int:
    """What must stay free beside `need_bytes`: 2 GiB or 2 %, whichever is more; below 1 GiB twice the need.

    The small rule lets a 100 MB model onto a disk with 300 MB free; both rules meet at a need of 1 GiB.
    """
    return max(min(MARGIN_BYTES, 2 * need_bytes), -(-need_bytes // MARGIN_SHARE))


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
    margin = margin_bytes(need_bytes)
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

"""sha256 of files, remembered by (path, size, mtime, inode), so that an unchanged file is read once."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec

BLOCK_BYTES: Final = 1 << 22


class _Entry(msgspec.Struct, array_like=True):
    path: str
    size_bytes: int
    mtime_ns: int
    inode: int
    sha256: str


def file_sha256(path: Path, cache_dir: Path | None) -> str:
    """The digest of a regular file, 64 hex digits; from `cache_dir` when path, size, mtime and inode are unchanged.

    The cache may be deleted at any time, and a folder that cannot be written only costs time. Raises OSError.
    """
    real = path.resolve()
    if cache_dir is not None and (known := cached_sha256(real, cache_dir)):
        return known
    with real.open("rb", buffering=0) as stream:
        before = os.fstat(stream.fileno())
        digest = hashlib.sha256()
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
        after = os.fstat(stream.fileno())
    value = digest.hexdigest()
    if cache_dir is not None and _key(before) == _key(after):
        remember(real, after, value, cache_dir)
    return value


def cached_sha256(path: Path, cache_dir: Path) -> str:
    """The remembered digest of `path`, "" when there is none for the file as it stands. Raises OSError."""
    status = path.stat()
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        entry = msgspec.msgpack.decode(_place(path, cache_dir).read_bytes(), type=_Entry)
        if (entry.path, entry.size_bytes, entry.mtime_ns, entry.inode) == (str(path), *_key(status)):
            return entry.sha256
    return ""


def remember(path: Path, status: os.stat_result, sha256: str, cache_dir: Path) -> None:
    """Keep the digest of a file whose bytes were just hashed; `status` is of those very bytes."""
    entry = _Entry(str(path), *_key(status), sha256)
    place = _place(path, cache_dir)
    temporary = place.with_name(f"{place.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.msgpack.encode(entry))
        temporary.replace(place)


def _key(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _place(path: Path, cache_dir: Path) -> Path:
    name = hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
    return cache_dir / "digests" / name

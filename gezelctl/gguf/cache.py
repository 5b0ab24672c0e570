"""Summaries and vocabulary digests on disk, so that an unchanged file is parsed once.

An entry is one MessagePack file named after the model's path. It holds the key it was made for (reader version, and
path, size and mtime of each shard); an entry with another key, or one that cannot be read, is made anew. The directory
may be deleted at any time, and a directory that cannot be written only costs time. What parses is imported only to
parse.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from gezelctl.gguf.shards import shard_paths
from gezelctl.gguf.types import GgufSummary, VocabDigest

READER_VERSION: Final = 2
"""To be raised whenever the same bytes give another summary or digest."""

T = TypeVar("T", bound=msgspec.Struct)

_Key = tuple[int, tuple[tuple[str, int, int], ...]]


class _Entry(msgspec.Struct, Generic[T]):
    key: _Key
    value: T


def cached_summary(path: Path, cache_dir: Path) -> GgufSummary:
    """`read_summary(path)`, from `cache_dir` when the file and all its shards are unchanged."""
    return _cached(path, cache_dir, "summary", _Entry[GgufSummary], _read_summary)


def cached_vocab(path: Path, cache_dir: Path) -> VocabDigest:
    """`vocab_digest(path)`, from `cache_dir` when the file and all its shards are unchanged."""
    return _cached(path, cache_dir, "vocab", _Entry[VocabDigest], _read_vocab)


def _read_summary(path: Path) -> GgufSummary:
    from gezelctl.gguf.reader import read_summary

    return read_summary(path)


def _read_vocab(path: Path) -> VocabDigest:
    from gezelctl.gguf.vocab import vocab_digest

    return vocab_digest(path)


def _cached(path: Path, cache_dir: Path, kind: str, entry: type[_Entry[T]], read: Callable[[Path], T]) -> T:
    try:
        key = _key(path)
    except OSError:
        return read(path)  # which says what is wrong with the path
    name = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=16).hexdigest()
    file = cache_dir / f"{name}.{kind}"
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        found = msgspec.msgpack.decode(file.read_bytes(), type=entry)
        if found.key == key:
            return found.value
    value = read(path)
    with contextlib.suppress(OSError):
        _write(file, msgspec.msgpack.encode(_Entry(key, value)))
    return value


def _key(path: Path) -> _Key:
    shards = [(shard.stat(), shard.resolve()) for shard in shard_paths(path)]
    return READER_VERSION, tuple((str(shard), status.st_size, status.st_mtime_ns) for status, shard in shards)


def _write(file: Path, data: bytes) -> None:
    from tempfile import NamedTemporaryFile

    file.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as temporary:
        try:
            temporary.write(data)
            temporary.flush()
            Path(temporary.name).replace(file)
        except OSError:
            Path(temporary.name).unlink(missing_ok=True)
            raise

"""Sharded models: `X-00001-of-0000N.gguf` (llama_split_path) and the split.* keys inside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gezelctl.errors import GgufError

if TYPE_CHECKING:
    from gezelctl.gguf.header import Header

MAX_SHARDS: Final = 9_999
NO_KEY: Final = "split.no"
COUNT_KEY: Final = "split.count"
TENSORS_KEY: Final = "split.tensors.count"

_NAME: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_PIECE: Final = re.compile(r".*(?:\.part\d+of\d+|\.gguf-split-[a-z]+|\.gguf\.part-?\w+|\.split-[a-z]{2})", re.DOTALL)

_REFETCH: Final = "fetch all shards again from one revision, under their own names"


def shard_paths(path: Path) -> tuple[Path, ...]:
    """All files of the model that `path` begins, by its name alone: one, or every shard in order.

    Raises GgufError SPLIT when a shard is missing, when `path` is not the first one, or when it is a piece of a file
    that was cut into bytes (`.part1of2`, `.gguf-split-a`), which must be joined first.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        if _PIECE.fullmatch(path.name):
            raise _split(str(path), "is a piece of a file that was cut up", "join the pieces with `cat` in their order")
        return (path,)
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= MAX_SHARDS:
        raise _split(str(path), f"calls itself shard {number} of {count}", _REFETCH)
    paths = tuple(path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1))
    if number != 1:
        raise _not_first(str(path), number, count, str(paths[0]))
    if _exists(path):
        for i, shard in enumerate(paths, 1):
            if not _exists(shard):
                raise _split(str(path), f"shard {i} of {count} is missing: {shard.name}", f"fetch it to {shard.parent}")
    return paths


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


def _split(name: str, what: str, cure: str) -> GgufError:
    return GgufError(f"{name}: {what}", cure=cure, code="SPLIT")


def _not_first(name: str, number: int, count: int, first: str) -> GgufError:
    return _split(name, f"is shard {number} of {count}; a model is named by its first shard", f"name {first}")


def check_set(headers: Sequence[Header]) -> None:
    """Raises GgufError SPLIT unless the headers are all shards of one model, in order (llama_model_loader)."""
    for index, header in enumerate(headers):
        count = header.number(COUNT_KEY) or 1
        number = (header.number(NO_KEY) or 0) + 1
        if index == 0 and number != 1:
            raise _not_first(header.name, number, count, "the file ending in " + f"-00001-of-{count:05d}.gguf")
        if count != len(headers):
            raise _miscounted(header.name, count, len(headers))
        if number != index + 1:
            raise _split(header.name, f"says it is shard {number}, its place is {index + 1}", _REFETCH)
    expected = headers[0].number(TENSORS_KEY)
    found = sum(len(header.tensors) for header in headers)
    if len(headers) > 1 and expected is not None and expected != found:
        raise _split(headers[0].name, f"promises {expected} tensors, the {len(headers)} shards hold {found}", _REFETCH)


def _miscounted(name: str, count: int, have: int) -> GgufError:
    if have == 1:
        cure = f"name the file X-00001-of-{count:05d}.gguf and put the other shards beside it under their own names"
        return _split(name, f"is one of {count} shards, but not named as one", cure)
    return _split(name, f"says it is one of {count} shards, there are {have}", _REFETCH)

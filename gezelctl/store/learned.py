"""What starts have taught about a host: draft models that took a build down, and memory that was measured.

Both files may be deleted at any time; the next start learns again. Writers hold the stack's lock.
"""

from __future__ import annotations

import msgspec

from gezelctl.store.files import StateError, encode, read_struct, write_atomic
from gezelctl.store.layout import Paths
from gezelctl.store.types import BrokenDrafter, MeasuredMemory


class _Broken(msgspec.Struct, frozen=True, rename="camel"):
    pairs: dict[str, BrokenDrafter] = {}


class _Measured(msgspec.Struct, frozen=True, rename="camel"):
    starts: dict[str, MeasuredMemory] = {}


def pair_key(engine_digest: str, what: str) -> str:
    """`<engine digest>/<what>`, where `what` is a drafter's sha256 or an architecture."""
    return f"{engine_digest}/{what}"


def read_broken(paths: Paths) -> dict[str, BrokenDrafter]:
    """Draft models that are not tried again, by `pair_key`. Raises StateError."""
    found = read_struct(paths.broken_drafters, _Broken)
    return found.pairs if found else {}


def add_broken(paths: Paths, key: str, broken: BrokenDrafter) -> None:
    """Remember that a draft model took an engine build down; a damaged file is begun anew. Raises StateError."""
    try:
        known = read_broken(paths)
    except StateError:
        known = {}
    write_atomic(paths.broken_drafters, encode(_Broken({**known, key: broken})))


def clear_broken(paths: Paths) -> frozenset[str]:
    """Give every draft model another chance; returns the servers that had to go without theirs."""
    try:
        servers = frozenset(broken.server for broken in read_broken(paths).values())
    except StateError:
        servers = frozenset()
    paths.broken_drafters.unlink(missing_ok=True)
    return servers


def read_measured(paths: Paths) -> dict[str, MeasuredMemory]:
    """The last measured start by `pair_key`. Raises StateError."""
    found = read_struct(paths.measured, _Measured)
    return found.starts if found else {}


def add_measured(paths: Paths, key: str, measured: MeasuredMemory) -> None:
    """Remember what a start took; a damaged file is begun anew. Raises StateError."""
    try:
        known = read_measured(paths)
    except StateError:
        known = {}
    write_atomic(paths.measured, encode(_Measured({**known, key: measured})))

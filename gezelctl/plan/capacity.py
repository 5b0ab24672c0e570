"""Does it fit: bytes on disk. Ports are settled by the server changes themselves."""

from __future__ import annotations

from collections.abc import Iterable

from gezelctl.observe.types import Observed
from gezelctl.plan.payloads import store_disk
from gezelctl.plan.types import Capacity, Change

GIB = 1 << 30


def disk_margin(need_bytes: int) -> int:
    """Bytes to keep free beside a download: max(2 GiB, 2 %), but never more than the need itself for small ones.

    The rule for large payloads is the reference behaviour's; a payload below 2 GiB keeps as much again free, so that
    a 100 MB model still installs on a small disk.
    """
    return min(max(2 * GIB, -(-need_bytes * 2 // 100)), need_bytes)


def disk_capacity(changes: Iterable[Change], observed: Observed) -> tuple[Capacity, ...]:
    """The store's disk before and after the downloads and copies; empty when nothing is written or it is unknown."""
    need = sum(
        a.size_bytes for c in changes if c.action in {"fetch", "link"} for a in c.files if a.how in {"download", "copy"}
    )
    disk = store_disk(observed)
    if disk is None or need == 0:
        return ()
    used = disk.total_bytes - disk.free_bytes
    return (
        Capacity(
            resource="disk",
            before=used,
            after=used + need,
            limit=disk.total_bytes,
            fits=need + disk_margin(need) <= disk.free_bytes,
        ),
    )

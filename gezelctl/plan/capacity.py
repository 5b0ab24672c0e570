"""Does it fit: bytes on disk. Ports are settled by the server changes themselves."""

from __future__ import annotations

from collections.abc import Iterable

from gezelctl.observe.types import Observed
from gezelctl.plan.payloads import store_disk
from gezelctl.plan.types import Capacity, Change

GIB = 1 << 30
MARGIN_BYTES = 2 * GIB
MARGIN_SHARE = 50
"""The margin is one fiftieth (2 %) of the need where that is more."""


def disk_margin(need_bytes: int) -> int:
    """What must stay free beside `need_bytes`: 2 GiB or 2 %, whichever is more; below 1 GiB twice the need.

    The rule for large payloads is the reference behaviour's. The small one lets a 100 MB model onto a disk with 300 MB
    free; both meet at a need of 1 GiB.
    """
    return max(min(MARGIN_BYTES, 2 * need_bytes), -(-need_bytes // MARGIN_SHARE))


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

"""File systems as hard links see them: which one a path is on, and whether it can link at all. Nothing is written.

link(2) refuses to link between two mounts even when they show the same device (bind mounts, container volumes), so a
file system is told by its device and its mount together. Whether it can hard-link is read from its type on Linux, and
from pathconf's PC_LINK_MAX elsewhere: FAT and its like, and most object-store mounts, cannot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from gezelctl.observe.types import Disk

_NO_LINKS = frozenset(
    {
        "vfat",
        "msdos",
        "exfat",
        "fuse.gcsfuse",
        "fuse.s3fs",
        "fuse.rclone",
        "fuse.goofys",
        "fuse.blobfuse2",
        "fuse.sshfs",
    }
)
_ESCAPE = re.compile(r"\\([0-7]{3})")
_MOUNT_BITS = 20


class _Mount(NamedTuple):
    id: int
    point: str
    type: str


class Mounts:
    """The mount table as it was when first asked; `table` is proc_pid_mountinfo(5)."""

    def __init__(self, table: Path = Path("/proc/self/mountinfo")) -> None:
        self._table = table

    @cached_property
    def _mounts(self) -> Sequence[_Mount]:
        """Deepest mount point first; of two on one point the later one hides the earlier."""
        try:
            lines = self._table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except OSError:
            return ()
        found = []
        for order, line in enumerate(lines):
            left, _, right = line.partition(" - ")
            fields = left.split()
            point = _ESCAPE.sub(lambda m: chr(int(m[1], 8)), fields[4])
            found.append(
                (-len(point.rstrip("/")), -order, _Mount(int(fields[0]), f"{point.rstrip('/')}/", right.split()[0]))
            )
        return [mount for _, _, mount in sorted(found)]

    def file_system(self, path: Path) -> int:
        """A number that is equal for two paths only if a hard link between them can work; 0 when there is no `path`."""
        try:
            device = path.stat().st_dev
        except OSError:
            return 0
        mount = self._of(path)
        return device << _MOUNT_BITS | ((mount.id if mount else 0) & ((1 << _MOUNT_BITS) - 1))

    def hard_links(self, path: Path) -> bool:
        """Whether the file system of an existing path can hold hard links; True when it does not tell."""
        mount = self._of(path)
        if mount:
            return mount.type not in _NO_LINKS
        try:
            return os.pathconf(path, "PC_LINK_MAX") != 1
        except (OSError, ValueError):
            return True

    def disk(self, path: Path) -> Disk:
        """The disk under `path`, or under its nearest existing parent; free bytes are those an ordinary user gets."""
        existing = nearest_existing(path)
        try:
            status = os.statvfs(existing)
        except OSError:
            return Disk(path=str(path), free_bytes=0, total_bytes=0, file_system=0)
        return Disk(
            path=str(path),
            free_bytes=status.f_bavail * status.f_frsize,
            total_bytes=status.f_blocks * status.f_frsize,
            file_system=self.file_system(existing),
            hard_links=self.hard_links(existing),
        )

    def _of(self, path: Path) -> _Mount | None:
        real = f"{path.resolve()}/"
        return next((mount for mount in self._mounts if real.startswith(mount.point)), None)


def nearest_existing(path: Path) -> Path:
    """`path` or the nearest of its parents that exists."""
    return next((p for p in (path, *path.parents) if p.exists()), Path(path.anchor))

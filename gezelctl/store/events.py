"""events.jsonl: one event a line, appended with one write each, rotated by size, free of secrets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from gezelctl import __version__
from gezelctl.store.files import StateError, access_fault
from gezelctl.store.layout import Paths
from gezelctl.store.types import Event

FORMAT_VERSION: Final = "1.0"
ROTATE_BYTES: Final = 10 * 1024 * 1024
KEEP: Final = 3
MAX_MESSAGE_CHARS: Final = 4000

Detail = dict[str, str | int | float | bool]


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class EventLog:
    """Appends to the stack's event log. Call under the stack lock: rotation assumes one writer.

    `mask` cleans every text of secrets before it is written.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        stack: str,
        host: str,
        run_id: str,
        mask: Callable[[str], str],
        now: Callable[[], datetime],
        rotate_bytes: int = ROTATE_BYTES,
    ) -> None:
        self._path = paths.events
        self._stack, self._host, self._run_id = stack, host, run_id
        self._mask = mask
        self._now = now
        self._rotate_bytes = rotate_bytes

    def write(
        self,
        kind: str,
        *,
        address: str = "",
        action: str = "",
        reason: str = "",
        message: str = "",
        level: Literal["info", "warning", "error"] = "info",
        duration_ms: int = 0,
        detail: Detail | None = None,
    ) -> Event:
        """Append one event and return it as written. Raises StateError when the log cannot be written."""
        event = Event(
            ts=timestamp(self._now()),
            type=kind,
            stack=self._stack,
            host=self._host,
            run_id=self._run_id,
            address=address,
            action=action,
            reason=reason,
            message=self._mask(message)[:MAX_MESSAGE_CHARS],
            level=level,
            duration_ms=duration_ms,
            detail={k: self._mask(v) if isinstance(v, str) else v for k, v in (detail or {}).items()},
        )
        try:
            self._append(event)
        except OSError as error:
            raise StateError(
                f"{self._path}: cannot be written: {error.strerror}",
                cure="check the state folder and its disk",
                code="STATE_ACCESS",
            ) from error
        return event

    def _append(self, event: Event) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size >= self._rotate_bytes:
                rotate(self._path, KEEP)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            data = _line(event)
            if size == 0:
                data = _line(self._version(event.ts)) + data
            elif os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # a writer died in the middle of its line
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def _version(self, ts: str) -> Event:
        return Event(
            ts=ts,
            type="version",
            stack=self._stack,
            host=self._host,
            message=f"gezelctl {__version__}",
            detail={"format": FORMAT_VERSION},
        )


def _line(event: Event) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def rotate(path: Path, keep: int) -> None:
    """`x` becomes `x.1`, `x.1` becomes `x.2`, up to `x.<keep>`; the oldest goes."""
    for number in range(keep, 0, -1):
        source = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
        if source.exists():
            source.replace(path.with_name(f"{path.name}.{number}"))


def read_events(paths: Paths) -> Iterator[Event]:
    """The events of the current log, oldest first; a torn or unknown line is passed over. Raises StateError."""
    try:
        lines = paths.events.read_bytes().splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise access_fault("read", paths.events, error) from error
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=Event)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue

"""The status table (ux contract 3.9): text, wide, JSON and names of the same rows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gezelctl.cli.terminal import Stream
from gezelctl.errors import UsageFault
from gezelctl.plan.render_json import encode_json
from gezelctl.plan.status import StatusRow
from gezelctl.plan.units import format_bytes, format_time

STATUS_FORMATS = ("text", "wide", "json", "name")
_HEADER = ("NAME", "SYNC", "HEALTH", "MODEL", "PORT", "PID", "SINCE", "WHY")
_WIDE = ("BACKEND", "CONTEXT", "SLOTS", "MEMORY")
_GREEN, _YELLOW, _RED = "32", "33", "31"
_COLORS = {
    "Synced": _GREEN,
    "Ready": _GREEN,
    "Starting": _YELLOW,
    "Loading": _YELLOW,
    "OutOfSync": _YELLOW,
    "Drifted": _YELLOW,
    "Degraded": _YELLOW,
    "Unknown": _YELLOW,
    "Failed": _RED,
    "Stopped": _RED,
}


class StatusDocument(msgspec.Struct, frozen=True, rename="camel"):
    """`status -o json`."""

    format_version: str
    kind: str
    stack: str
    host: str
    servers: tuple[StatusRow, ...]


def render_status(rows: Sequence[StatusRow], kind: str, stream: Stream, *, stack: str = "", host: str = "") -> str:
    """The rows in one of STATUS_FORMATS, ending with a newline; colour and escaping are the stream's.

    Raises UsageFault for another format.
    """
    if kind == "json":
        document = StatusDocument("1.0", "Status", stack, host, tuple(rows))
        return msgspec.json.format(encode_json(document), indent=2).decode() + "\n"
    if kind == "name":
        return "".join(f"{row.address}\n" for row in rows)
    if kind not in {"text", "wide"}:
        raise UsageFault(f"status has no format {kind}", cure=f"Formats: {', '.join(STATUS_FORMATS)}.")
    if not rows:
        return "No servers: none is wanted here and none is running.\n"
    wide = kind == "wide"
    header = (*_HEADER[:-1], *_WIDE, _HEADER[-1]) if wide else _HEADER
    return _table([header, *(_cells(row, wide, stream) for row in rows)], stream)


def _cells(row: StatusRow, wide: bool, stream: Stream) -> tuple[str, ...]:
    numbers = (str(row.port) if row.port else "-", str(row.pid) if row.pid else "-")
    since = format_time(row.since) if row.since else "-"
    cells = (row.name, row.sync, row.health, row.model or "-", *numbers, since)
    more = (row.backend or "-", str(row.context_tokens or "-"), _slots(row), _memory(row)) if wide else ()
    return tuple(stream.safe(cell).replace("\n", "\\n") for cell in (*cells, *more, row.why))


def _slots(row: StatusRow) -> str:
    return f"{row.slots_busy}/{row.slots}" if row.slots else "-"


def _memory(row: StatusRow) -> str:
    """Measured against planned; a dash for what is not known."""
    if not row.memory_measured_bytes and not row.memory_planned_bytes:
        return "-"
    measured = format_bytes(row.memory_measured_bytes) if row.memory_measured_bytes else "-"
    return f"{measured} (planned {format_bytes(row.memory_planned_bytes)})" if row.memory_planned_bytes else measured


def _table(rows: Sequence[tuple[str, ...]], stream: Stream) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        padded[1:3] = [_painted(cell, stream) for cell in padded[1:3]]
        lines.append("  ".join([*padded[:-1], row[-1]]).rstrip())
    return "\n".join(lines) + "\n"


def _painted(cell: str, stream: Stream) -> str:
    sgr = _COLORS.get(cell.strip())
    return stream.paint(sgr, cell) if sgr else cell

"""The memory that a started llama.cpp server really took, read back from its log.

At `-lv 4` llama.cpp prints one line a buffer. What is loaded twice (an attempt to fit, then the real load) prints
twice, so the last value of a (model, component, cache, buffer) counts. A draft model is a model of its own, and a
sliding-window cache prints under the same name as the full one beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gezelctl.observe.types import MemoryReading

_LINE = re.compile(r"(\w+): +(\S+) +(model|KV|RS|output|compute) buffer size = +([\d.]+) MiB")
_DRAFT = re.compile(r"loading draft model")
_MAIN = re.compile(r"load_model: loading model")
_CACHE = re.compile(r"creating +(non-SWA|SWA|recurrent|attention) ", re.IGNORECASE)
_READY = re.compile(rb"server(?: is listening on|: listening on) ")
_HOST = re.compile(r"(CPU|BLAS|AMX)(_\w+)?$|.*_Host$")
_DEVICE_SUFFIX = re.compile(r"_(Mapped|Private|Shared|Split)$")
_FIELD: Final = {
    "model": "weights_bytes",
    "KV": "context_bytes",
    "RS": "context_bytes",
    "compute": "compute_bytes",
    "output": "output_bytes",
}
_MIB = 1024 * 1024
_ROUNDING_BYTES = _MIB // 200 + 1
_READ_LIMIT_BYTES = 4 * _MIB
HOST: Final = "host"


def device_of(buffer: str) -> str:
    """`host` for CPU, CPU_*, BLAS and *_Host buffers, else the device: CUDA0, MTL0 for MTL0_Mapped, …"""
    return HOST if _HOST.match(buffer) else _DEVICE_SUFFIX.sub("", buffer)


def parse_memory(lines: Iterable[str], resident_bytes: int = 0) -> MemoryReading | None:
    """Bytes by device and kind, the draft model's included; None when no line tells any.

    llama.cpp prints MiB with two decimals, so a value is right to 0.005 MiB.
    """
    values: dict[tuple[str, str, str, str, str], float] = {}
    model, cache = "main", ""
    for line in lines:
        if match := _LINE.search(line):
            component, buffer, kind, size = match.groups()
            values[(model, component, cache if kind == "KV" else "", buffer, kind)] = float(size)
        elif _DRAFT.search(line):
            model, cache = "draft", ""
        elif _MAIN.search(line):
            model, cache = "main", ""
        elif match := _CACHE.search(line):
            cache = match[1].lower()
    if not values:
        return None
    totals: dict[str, dict[str, int]] = {field: {} for field in _FIELD.values()}
    for (_, _, _, buffer, kind), mebibytes in values.items():
        of_kind = totals[_FIELD[kind]]
        device = device_of(buffer)
        of_kind[device] = of_kind.get(device, 0) + round(mebibytes * _MIB)
    rounded = sum(kind in {"KV", "RS"} for *_, kind in values)
    return MemoryReading(**totals, resident_bytes=resident_bytes, context_rounding_bytes=rounded * _ROUNDING_BYTES)


def read_memory(log: Path, offset: int, resident_bytes: int = 0) -> MemoryReading | None:
    """`parse_memory` of one start's output: at most 4 MiB from `offset`; None when there is no such log."""
    return parse_memory(_lines(log, offset), resident_bytes)


def _lines(log: Path, offset: int) -> Iterator[str]:
    """Up to the line that says the server listens: what follows is about requests."""
    try:
        with log.open("rb") as stream:
            stream.seek(offset)
            left = _READ_LIMIT_BYTES
            while left > 0 and (line := stream.readline(left)):
                left -= len(line)
                yield line.decode("utf-8", "replace")
                if _READY.search(line):
                    return
    except OSError:
        return


def log_tail(log: Path, offset: int, count: int = 20) -> tuple[str, ...]:
    """The last lines of one start's output, at most 64 KiB of it; () when there is no such log."""
    try:
        with log.open("rb") as stream:
            end = stream.seek(0, 2)
            stream.seek(max(offset, end - 65536))
            data = stream.read(65536)
    except OSError:
        return ()
    return tuple(data.decode("utf-8", "replace").splitlines()[-count:])

"""Which processes are ours. One is known by its pid, its start time and the random token in its environment."""

from __future__ import annotations

import os
import re
import time
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from gezelctl.store.types import RunRecord

TOKEN_VARIABLE = "GEZELCTL_TOKEN"  # noqa: S105 - the variable's name
"""Set in the environment of every started server; its value is the run record's `token`."""
STACK_VARIABLE = "GEZELCTL_STACK"
SERVER_VARIABLE = "GEZELCTL_SERVER"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_START_TOLERANCE_S = 2.0
"""The kernel's boot time, which start times are counted from, moves with clock corrections."""
_SETTLE_S = 0.2
_PROC = Path("/proc")
LINUX: bool = os.uname().sysname == "Linux"
"""Elsewhere psutil is asked; its import is not worth it where /proc is."""


class Identity(NamedTuple):
    """`started` is in epoch seconds; `token` is "" when the environment holds none or may not be read."""

    started: float
    token: str


class ProcessState(NamedTuple):
    """`unproven`: the recorded pid lives, and only one of start time and token agrees, or the token may not be read."""

    state: Literal["running", "gone", "unproven", "none"]
    pid: int = 0


def process_identity(pid: int) -> Identity | None:
    """Start time and token of a live process; None when there is none, or only a zombie is left of it."""
    if pid <= 0:
        return None
    if not LINUX:
        return _psutil_identity(pid)
    deadline = time.monotonic() + _SETTLE_S
    while _between_programs(pid) and time.monotonic() < deadline:
        time.sleep(0.002)
    return _linux_identity(pid)


def process_state(record: RunRecord | None) -> ProcessState:
    """Whether the process of a run record lives and is proven ours.

    A record without a pid was written by a start that did not get to its second write: its process, if it was
    spawned, is found by the token.
    """
    if record is None:
        return ProcessState("none")
    if record.pid == 0:
        found = find_by_token(record.token)
        return ProcessState("running", found) if found else ProcessState("gone")
    identity = process_identity(record.pid)
    if identity is None:
        return ProcessState("gone")
    same_start = abs(identity.started - record.process_started) <= _START_TOLERANCE_S
    if same_start and identity.token == record.token:
        return ProcessState("running", record.pid)
    if not same_start and identity.token != record.token:
        return ProcessState("gone")
    return ProcessState("unproven", record.pid)


def find_by_token(token: str) -> int:
    """The lowest pid whose environment holds the token, 0 when there is none. A server's children inherit it."""
    if not token:
        return 0
    look = _linux_identity if LINUX else _psutil_identity
    return next((pid for pid in all_pids() if (found := look(pid)) and found.token == token), 0)


def started_as(pid: int) -> str:
    """ "server.chat of stack lab" by what every started server has in its environment; "" for any other process."""
    found = [_variable(pid, name) for name in (TOKEN_VARIABLE, STACK_VARIABLE, SERVER_VARIABLE)]
    if not all(_NAME.fullmatch(text) for text in found):
        return ""
    return f"server.{found[2]} of stack {found[1]}"


def _variable(pid: int, name: str) -> str:
    if LINUX:
        return _entry(_read(_PROC / str(pid) / "environ"), name)
    import psutil

    try:
        return str(psutil.Process(pid).environ().get(name, ""))
    except (psutil.Error, OSError):
        return ""


def all_pids() -> list[int]:
    """Every process that this user may list, ascending."""
    if LINUX:
        return sorted(int(name) for name in os.listdir(_PROC) if name.isdecimal())  # noqa: PTH208 - names only, often
    import psutil

    return sorted(psutil.pids())


def command_line(pid: int) -> tuple[str, ...]:
    """The arguments of a process; () when it is gone or may not be read."""
    if LINUX:
        data = _read(_PROC / str(pid) / "cmdline")
        return tuple(part.decode("utf-8", "replace") for part in data.split(b"\0") if part)
    import psutil

    try:
        return tuple(psutil.Process(pid).cmdline())
    except (psutil.Error, OSError):
        return ()


def resident_bytes(pid: int) -> int:
    """Resident set of a process, bytes; 0 when it is gone or may not be read."""
    if LINUX:
        for line in _read(_PROC / str(pid) / "status").splitlines():
            if line.startswith(b"VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, OSError):
        return 0


def _between_programs(pid: int) -> bool:
    """Whether the process is inside execve(2): its parent goes on before the kernel has put the environment in place.

    Kernel threads have no environment for good; they have no program either.
    """
    try:
        return not (_PROC / str(pid) / "environ").read_bytes() and (_PROC / str(pid) / "exe").exists()
    except OSError:
        return False


def _linux_identity(pid: int) -> Identity | None:
    """proc(5): field 22 of stat is the start in clock ticks since boot; the command in field 2 may hold anything."""
    fields = _read(_PROC / str(pid) / "stat").rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    started = _boot_time() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return Identity(started, _token(_read(_PROC / str(pid) / "environ")))


def _token(environment: bytes) -> str:
    return _entry(environment, TOKEN_VARIABLE)


def _entry(environment: bytes, name: str) -> str:
    prefix = name.encode() + b"="
    found = (entry for entry in environment.split(b"\0") if entry.startswith(prefix))
    return next(found, b"").removeprefix(prefix).decode("ascii", "replace")


@cache
def _boot_time() -> float:
    for line in _read(_PROC / "stat").splitlines():
        if line.startswith(b"btime "):
            return float(line.split()[1])
    return 0.0


def _psutil_identity(pid: int) -> Identity | None:
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        started = process.create_time()
    except psutil.Error:
        return None
    try:
        return Identity(started, process.environ().get(TOKEN_VARIABLE, ""))
    except (psutil.Error, OSError):
        return Identity(started, "")


def _read(path: Path) -> bytes:
    """A /proc file; b"" when the process is gone or not ours to read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""

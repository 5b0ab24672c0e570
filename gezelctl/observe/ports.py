"""Who listens on the ports that are wanted. Nobody else's ports are looked at."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gezelctl.config.redact import MASK, is_secret_key, mask_tokens
from gezelctl.observe.processes import LINUX, all_pids, command_line
from gezelctl.observe.types import PortHolder

_LISTEN = "0A"
_COMMAND_CHARS = 240
_SECRET_FLAGS = frozenset({"-hft"})
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Listener(NamedTuple):
    """One listening TCP socket; `inode` is Linux's name of it, "" elsewhere; pid 0 = not known."""

    port: int
    host: str
    inode: str = ""
    pid: int = 0


def port_holders(ports: Iterable[int], servers: Mapping[int, str]) -> tuple[PortHolder, ...]:
    """Holders of the wanted ports, by port, then address. `servers` maps the pids of our own servers to their names.

    A socket whose owner may not be seen (another user's) has pid 0 and no command.
    """
    wanted = frozenset(ports)
    listeners = list(_linux_listeners(wanted) if LINUX else _other_listeners(wanted))
    owners = _owners({item.inode for item in listeners if item.inode}, servers)
    found = {_holder(item, owners.get(item.inode, item.pid), servers) for item in listeners}
    return tuple(sorted(found, key=lambda h: (h.port, h.host, h.pid)))


def mask_command(arguments: Iterable[str]) -> str:
    """A command line for people: one line, at most 240 characters, the values of secret options replaced."""
    shown: list[str] = []
    hide = False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        secret = flag in _SECRET_FLAGS or is_secret_key(flag)
        if hide:
            shown.append(MASK)
        else:
            shown.append(f"{flag}={MASK}" if secret and equals else mask_tokens(argument))
        hide = not hide and secret and not equals and flag.startswith("-")
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(shown))
    return text if len(text) <= _COMMAND_CHARS else f"{text[: _COMMAND_CHARS - 1]}…"


def _holder(item: Listener, pid: int, servers: Mapping[int, str]) -> PortHolder:
    command = mask_command(command_line(pid)) if pid else ""
    return PortHolder(port=item.port, host=item.host, pid=pid, command=command, server=servers.get(pid, ""))


def _linux_listeners(wanted: frozenset[int]) -> Iterator[Listener]:
    """proc(5) /proc/net/tcp: local address in hex, words in host byte order; state 0A = LISTEN; inode in field 9."""
    if not wanted:
        return
    for name in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, _, port = fields[1].partition(":")
            if fields[3] == _LISTEN and int(port, 16) in wanted:
                yield Listener(int(port, 16), _address(address), fields[9])


def _address(hexadecimal: str) -> str:
    words = [int(hexadecimal[i : i + 8], 16) for i in range(0, len(hexadecimal), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)


def _owners(inodes: set[str], servers: Mapping[int, str]) -> dict[str, int]:
    """Socket inode → pid. Our own servers are looked at first, so that a host in order needs no look at any other."""
    found: dict[str, int] = {}
    for pid in (*servers, *(() if not inodes else _others(servers))):
        if len(found) == len(inodes):
            break
        for inode in _sockets(pid) & inodes:
            found.setdefault(inode, pid)
    return found


def _others(servers: Mapping[int, str]) -> Iterator[int]:
    yield from (pid for pid in all_pids() if pid not in servers)


def _sockets(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    found: set[str] = set()
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names only, for every process
    except OSError:
        return found
    for name in names:
        try:
            match = _SOCKET.fullmatch(os.readlink(f"{folder}/{name}"))  # noqa: PTH115 - as above
        except OSError:
            continue
        if match:
            found.add(match[1])
    return found


def _other_listeners(wanted: frozenset[int]) -> Iterator[Listener]:
    """macOS gives a user the sockets of their own processes; for others it takes a bind attempt to know."""
    import psutil

    seen: set[int] = set()
    for pid in all_pids():
        try:
            connections = psutil.Process(pid).net_connections("tcp")
        except (psutil.Error, OSError):
            continue
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port in wanted:
                seen.add(connection.laddr.port)
                yield Listener(connection.laddr.port, connection.laddr.ip, pid=pid)
    yield from (Listener(port, "") for port in sorted(wanted - seen) if _taken(port))


def _taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0

"""Who listens on the ports that are wanted. Nobody else's ports are looked at."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from gezelctl.config.redact import MASK, is_secret_key, mask_tokens
from gezelctl.observe.processes import LINUX, all_pids, command_line
from gezelctl.observe.sockdiag import Listener, listeners
from gezelctl.observe.types import PortHolder

_COMMAND_CHARS = 120
_SECRET_FLAGS = frozenset({"-hft"})
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def port_holders(ports: Iterable[int], servers: Mapping[int, str]) -> tuple[PortHolder, ...]:
    """Holders of the wanted ports, by port, then address. `servers` maps the pids of our own servers to their names.

    A socket whose owner may not be seen (another user's) has pid 0 and no command.
    """
    wanted = frozenset(ports)
    if not wanted:
        return ()
    held = [item for item in (listeners() if LINUX else _other_listeners(wanted)) if item.port in wanted]
    owners = _owners({item.inode for item in held if item.inode}, servers)
    found = {_holder(item, owners.get(item.inode, item.pid), servers) for item in held}
    return tuple(sorted(found, key=lambda h: (h.port, h.host, h.pid)))


def mask_command(arguments: Iterable[str]) -> str:
    """A command line for people: one line, at most 120 characters, the values of secret options replaced."""
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


def _owners(inodes: set[str], servers: Mapping[int, str]) -> dict[str, int]:
    """Socket inode → pid. Our own servers are looked at first, so that a host in order needs no look at any other."""
    found: dict[str, int] = {}
    for pid in chain(servers, _others(servers)):
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

"""Listening TCP sockets of Linux, from the kernel's socket diagnosis (sock_diag(7)), else from /proc/net/tcp.

Reading /proc/net/tcp makes the kernel walk its table of all connections, which takes 10 ms and more on a machine with
much memory. The netlink question for sockets in state LISTEN takes well under one.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x1 | 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_TCP_LISTEN = 10
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48x")
_ANSWER = struct.Struct("=BBBB2s2s16s16sI8sIIIII")
_TIMEOUT_S = 2.0


class Listener(NamedTuple):
    """One listening socket; `inode` names it in /proc/<pid>/fd ("" where there is none), pid 0 = not known."""

    port: int
    host: str
    inode: str = ""
    pid: int = 0


def listeners() -> list[Listener]:
    """Every listening TCP socket of this network namespace, whoever owns it."""
    try:
        return [*_asked(socket.AF_INET), *_asked(socket.AF_INET6)]
    except (OSError, struct.error):
        return [*read_table(Path("/proc/net/tcp")), *read_table(Path("/proc/net/tcp6"))]


def _asked(family: int) -> Iterator[Listener]:
    """inet_diag_req_v2 with a dump flag; answers are inet_diag_msg. Raises OSError where the kernel refuses it."""
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _TCP_LISTEN)
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(_TIMEOUT_S)
        link.send(header + body)
        while data := link.recv(65536):
            for kind, message in _messages(data):
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    raise OSError("the kernel does not answer socket diagnosis")
                yield _listener(message)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : length]
        data = data[(length + 3) & ~3 :]


def _listener(message: bytes) -> Listener:
    family, _, _, _, port, _, source, *_, inode = _ANSWER.unpack_from(message)
    address = source[:4] if family == socket.AF_INET else source
    return Listener(int.from_bytes(port, "big"), socket.inet_ntop(family, address), str(inode))


def read_table(path: Path) -> Iterator[Listener]:
    """proc(5) /proc/net/tcp and tcp6: address in hex, words in host byte order; state 0A = LISTEN; inode in field 9."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        address, _, port = fields[1].partition(":")
        if int(fields[3], 16) == _TCP_LISTEN:
            yield Listener(int(port, 16), _address(address), fields[9])


def _address(hexadecimal: str) -> str:
    words = [int(hexadecimal[i : i + 8], 16) for i in range(0, len(hexadecimal), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)

"""Is a server's port free to bind, right now; and if not, who has it."""

from __future__ import annotations

import errno
import socket

from gezelctl.errors import EngineError, RefusedError
from gezelctl.observe.ports import port_holders
from gezelctl.observe.processes import LINUX


def port_is_free(host: str, port: int) -> bool:
    """A bind test on every address that `host` stands for. Raises EngineError when `host` is none of this machine."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        cure = "set host to an address of this machine"
        raise EngineError(f"host {host} cannot be resolved: {error.strerror}", cure=cure, code="BAD_HOST") from error
    return all(_binds(family, address[:2], port) for family, _, _, _, address in addresses)


def _binds(family: int, address: tuple[object, ...], port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # without it, connections of the server that was just stopped (TIME_WAIT) would look like a holder
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # engines bind the IPv6 wildcard for IPv4 as well
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        try:
            probe.bind((str(address[0]), port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise _unbindable(address[0], port, error) from error
    # elsewhere an exact address can be bound beside a listening wildcard
    return LINUX or not _answers(family, address, port)


def _unbindable(host: object, port: int, error: OSError) -> EngineError:
    if error.errno in {errno.EACCES, errno.EPERM}:
        cure = "use a port above 1023"
        return EngineError(f"port {port} may not be bound by this user", cure=cure, code="PORT_FORBIDDEN")
    cure = "set host to an address of this machine"
    return EngineError(f"{host} cannot be bound: {error.strerror}", cure=cure, code="BAD_HOST")


def _answers(family: int, address: tuple[object, ...], port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        return probe.connect_ex((str(address[0]), port)) == 0


def require_port(host: str, port: int) -> None:
    """Raises RefusedError PORT_IN_USE that names the holder's pid and command."""
    if port_is_free(host, port):
        return
    holders = port_holders([port], {})
    known = next((h for h in holders if h.pid), None)
    who = f"pid {known.pid} ({known.command})" if known else "a process of another user"
    raise RefusedError(
        f"port {port} is in use by {who}", cure="stop that process, or give the server another port", code="PORT_IN_USE"
    )

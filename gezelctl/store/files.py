"""Small files that are whole or absent: written beside themselves, synced, renamed; read with one decoder."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from gezelctl.errors import GezelctlError

T = TypeVar("T")

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class StateError(GezelctlError):
    """A file of ours that cannot be read or written."""


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write `data` to `path`: a reader sees the old bytes or the new ones, also after a power cut.

    The temporary file stands beside it as `.<name>.tmp`, which the next write replaces if a crash leaves it; so the
    caller holds the lock of what it writes. Raises StateError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            _write(temporary, data, mode)
            os.replace(temporary, path)  # noqa: PTH105 - crash tests wrap os.replace by name
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise access_fault("written", path, error) from error


def create_exclusive(path: Path, data: bytes, *, mode: int = 0o644) -> bool:
    """Write `path` as `write_atomic` does, unless it exists already; True when this call made it. Needs no lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            _write(temporary, data, mode)
            os.link(temporary, path)  # fails where rename would replace
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise access_fault("written", path, error) from error
    return True


def _write(path: Path, data: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, mode), "wb") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def read_struct(path: Path, kind: type[T]) -> T | None:
    """The decoded JSON file, None when it does not exist. Raises StateError when it is unreadable or not a `kind`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise access_fault("read", path, error) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StateError(
            f"{path} is damaged: {error}", cure="move it away and apply again", code="STATE_DAMAGED"
        ) from error


def encode(value: object) -> bytes:
    """JSON with an indent and a newline at the end, for files that people read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def sync_directory(directory: Path) -> None:
    """Make renames in `directory` durable. File systems that cannot sync a folder are left alone."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def access_fault(verb: str, path: Path, error: OSError) -> StateError:
    """What to say of a state file that the system does not let us use."""
    if error.errno in NO_SPACE:
        return StateError(
            f"{path}: cannot be {verb}: the disk is full", cure="free some space, then apply again", code="DISK_FULL"
        )
    return StateError(
        f"{path}: cannot be {verb}: {error.strerror or error}",
        cure=f"check that the user who runs gezelctl may use {path.parent}",
        code="STATE_ACCESS",
    )

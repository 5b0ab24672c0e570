"""One exclusive flock for each stack and host. The kernel drops it when its holder dies, so nothing is ever stale."""

from __future__ import annotations

import errno
import fcntl
import getpass
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from gezelctl.errors import LockedError, RefusedError
from gezelctl.store.files import StateError, access_fault, encode, read_struct, write_atomic
from gezelctl.store.layout import Paths

SILENT_S: Final = 0.4
REPEAT_S: Final = 10.0
POLL_S: Final = 0.05
_BUSY: Final = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})


class LockHolder(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Who holds the lock. It informs only: whether the lock is held is the kernel's word, not this file's."""

    pid: int
    user: str
    host: str
    operation: str
    started: str
    plan_digest: str = ""

    def __str__(self) -> str:
        plan = f", plan {self.plan_digest[:12]}" if self.plan_digest else ""
        return f"{self.operation} by {self.user}@{self.host}, pid {self.pid}, since {self.started}{plan}"


class StackLock:
    """`with StackLock(paths, "apply", timeout_s=30, on_wait=line): …`.

    Silent for the first 400 ms of waiting, then `on_wait` gets one line with the holder, and one more every 10 s.
    Raises LockedError after `timeout_s` (0 fails at once) and RefusedError where the file system has no flock. The
    descriptor is not inherited by children (PEP 446), so a started server never keeps the lock.
    """

    def __init__(
        self,
        paths: Paths,
        operation: str,
        *,
        timeout_s: float = 30.0,
        on_wait: Callable[[str], None] | None = None,
        plan_digest: str = "",
    ) -> None:
        self._paths = paths
        self._operation = operation
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        self._plan_digest = plan_digest
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._descriptor = self._open()
        try:
            self._wait()
            write_atomic(self._paths.lock_holder, encode(self._me()))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._paths.lock_holder.unlink(missing_ok=True)
        self._close()

    def _open(self) -> int:
        try:
            self._paths.state.mkdir(parents=True, exist_ok=True)
            # the file stays: removing it would let two holders lock two inodes
            return os.open(self._paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise StateError(
                f"{self._paths.lock}: {error.strerror}",
                cure="check that the user who runs gezelctl owns the state folder, or set GEZELCTL_STATE_DIR",
                code="STATE_ACCESS",
            ) from error

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _wait(self) -> None:
        begun = time.monotonic()
        next_line = SILENT_S
        while not try_flock(self._descriptor, str(self._paths.lock)):
            waited = time.monotonic() - begun
            if waited >= self._timeout_s:
                raise LockedError(
                    f"stack {self._paths.state.name} is locked: {_holder_words(self._paths)}",
                    cure="wait for it to end, or queue longer with --lock-timeout",
                    code="LOCKED",
                )
            if waited >= next_line and self._on_wait is not None:
                self._on_wait(f"waiting for the lock: {_holder_words(self._paths)}")
                next_line += REPEAT_S
            time.sleep(min(POLL_S, max(self._timeout_s - waited, 0.001)))

    def _me(self) -> LockHolder:
        return LockHolder(
            pid=os.getpid(),
            user=_user(),
            host=socket.gethostname(),
            operation=self._operation,
            started=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            plan_digest=self._plan_digest,
        )


def try_flock(descriptor: int, path: str) -> bool:
    """Take the exclusive lock if it is free. Raises RefusedError when the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise RefusedError(
            f"{path}: the file system cannot lock files ({error.strerror})",
            cure="put the state on a local file system: set GEZELCTL_STATE_DIR",
            code="NO_FLOCK",
        ) from error
    return True


@contextmanager
def directory_lock(directory: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the flock of a folder itself, made if missing; wait for as long as another process holds it.

    `on_wait` is called once when the wait begins. A file system without flock on folders (NFS) gives no protection
    here; the stack lock, which refuses such a file system, still stands. Raises StateError.
    """
    descriptor = _lock_directory(directory, on_wait)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock_directory(directory: Path, on_wait: Callable[[], None]) -> int:
    told = False
    while True:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise StateError(
                f"{directory}: {error.strerror}", cure="check the store's permissions", code="STORE_ACCESS"
            ) from error
        try:
            held = try_flock(descriptor, str(directory))
        except RefusedError:
            return descriptor
        # the last holder may have removed the folder again: a lock on a removed folder is no lock
        if held and _same(descriptor, directory):
            return descriptor
        os.close(descriptor)
        if not held:
            if not told:
                on_wait()
                told = True
            time.sleep(POLL_S)


def _same(descriptor: int, directory: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), directory.stat())
    except OSError:
        return False


def current_holder(paths: Paths) -> LockHolder | None:
    """Who holds the lock now; None when it is free, whatever the holder file says. A holder that did not say who it
    is has pid 0. Raises StateError when the lock cannot be looked at."""
    try:
        descriptor = os.open(paths.lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise access_fault("read", paths.lock, error) from error
    try:
        if try_flock(descriptor, str(paths.lock)):
            return None
    finally:
        os.close(descriptor)
    return _read_holder(paths) or LockHolder(0, "?", "?", "?", "?")


def _read_holder(paths: Paths) -> LockHolder | None:
    try:
        return read_struct(paths.lock_holder, LockHolder)
    except StateError:
        return None


def _holder_words(paths: Paths) -> str:
    holder = _read_holder(paths)
    return str(holder) if holder else "by a holder that did not say who it is"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())

"""The stack lock, with real processes: one holder, named to those who wait, gone with its holder."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gezelctl.errors import ExitCode, LockedError, RefusedError
from gezelctl.store.layout import Paths
from gezelctl.store.lock import StackLock, current_holder
from tests.executing import make_paths

HOLDER = """
import sys
from pathlib import Path
from gezelctl.store.lock import StackLock
from tests.executing import make_paths
with StackLock(make_paths(Path(sys.argv[1])), "destroy", plan_digest="abcdef0123456789"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return make_paths(tmp_path)


@contextmanager
def holder(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until it is told, or killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield child
        child.kill()


def test_a_second_apply_waits_then_fails_and_names_the_holder(paths: Paths, tmp_path: Path) -> None:
    lines: list[str] = []
    with holder(tmp_path) as child:
        begun = time.monotonic()
        with pytest.raises(LockedError) as caught, StackLock(paths, "apply", timeout_s=0.7, on_wait=lines.append):
            pass
        assert 0.7 <= time.monotonic() - begun < 2
        held = current_holder(paths)
        assert held is not None
        assert held.pid == child.pid
    assert caught.value.exit_code == ExitCode.LOCKED
    for text in ("destroy by ", f"pid {child.pid}", "plan abcdef012345", "stack lab"):
        assert text in caught.value.message
    assert len(lines) == 1, "one line after 400 ms; the next would come after 10 s"
    assert f"pid {child.pid}" in lines[0]


def test_short_waits_are_silent(paths: Paths, tmp_path: Path) -> None:
    lines: list[str] = []
    with holder(tmp_path), pytest.raises(LockedError), StackLock(paths, "apply", timeout_s=0.2, on_wait=lines.append):
        pass
    assert lines == []


def test_zero_fails_at_once(paths: Paths, tmp_path: Path) -> None:
    with holder(tmp_path):
        begun = time.monotonic()
        with pytest.raises(LockedError), StackLock(paths, "apply", timeout_s=0):
            pass
        assert time.monotonic() - begun < 0.3


def test_a_waiter_goes_on_when_the_holder_ends(paths: Paths, tmp_path: Path) -> None:
    with holder(tmp_path) as child:
        assert child.stdin is not None

        def release(_: str) -> None:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()

        with StackLock(paths, "apply", timeout_s=20, on_wait=release):
            held = current_holder(paths)
            assert held is not None
            assert (held.pid, held.operation) == (os.getpid(), "apply")
    assert current_holder(paths) is None


def test_a_killed_holder_frees_the_lock_at_once(paths: Paths, tmp_path: Path) -> None:
    with holder(tmp_path) as child:
        child.kill()
        child.wait()
        assert paths.lock_holder.exists(), "the file still names it"
        assert current_holder(paths) is None, "and is not believed"
        with StackLock(paths, "apply", timeout_s=0):
            pass


def test_a_child_does_not_inherit_the_lock(paths: Paths) -> None:
    with StackLock(paths, "apply"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with StackLock(paths, "apply", timeout_s=0):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_file_system_without_flock_is_refused(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file system here lacks flock, so the system call answers as one that does."""

    def missing(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(RefusedError, match="cannot lock files") as caught, StackLock(paths, "apply"):
        pass
    assert "GEZELCTL_STATE_DIR" in caught.value.cure


def test_the_lock_is_free_after_a_failure_inside(paths: Paths) -> None:
    with pytest.raises(ZeroDivisionError), StackLock(paths, "apply"):
        _ = 1 // 0
    assert current_holder(paths) is None
    assert not paths.lock_holder.exists()

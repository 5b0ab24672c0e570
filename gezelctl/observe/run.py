"""Runs a program that is only asked about itself: no input, bounded output, bounded time, nothing left behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gezelctl.errors import EngineError

if TYPE_CHECKING:
    import subprocess

_LIMIT = 1 << 20
_LOADER = re.compile(
    r"error while loading shared libraries|Library not loaded|GLIBC(XX)?_\S+. not found|cannot open shared object"
)
_SPECIFIC = re.compile(
    rf"{_LOADER.pattern}|\berror\b|Error:|terminate called|Illegal instruction|No module named", re.IGNORECASE
)
SCRUBBED = re.compile(r"LLAMA_ARG_|LLAMA_API_KEY$|HF_TOKEN$")
"""Variables that an engine reads as options or secrets (common_params_parse: every flag has a LLAMA_ARG_ twin)."""


_live: set[subprocess.Popen[bytes]] = set()
"""Programs that nobody has waited for yet. A run that is interrupted leaves its worker threads behind, and they die
with the interpreter: `_end_all` ends what they asked."""


class Output(NamedTuple):
    """What it printed (at most 1 MiB of each) and its exit status; negative = killed by that signal."""

    stdout: str
    stderr: str
    status: int

    @property
    def text(self) -> str:
        return f"{self.stdout}\n{self.stderr}"


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what would change an engine's answer, with the backend's own on top."""
    kept = {name: value for name, value in os.environ.items() if not SCRUBBED.match(name)}
    return {**kept, "GGML_NO_BACKTRACE": "1", **extra}


def ask(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Output:
    """Run to the end and return what it printed, whatever its exit status.

    Raises EngineError with the code ENGINE_MISSING, ENGINE_NOT_EXECUTABLE, or ENGINE_HANGS.
    """
    process = _spawn(command, env)
    try:
        texts = _read(process, time.monotonic() + timeout_s)
        if texts is None:
            raise EngineError(
                f"{' '.join(command)} did not end within {timeout_s:g} s",
                cure="run it by hand to see what it waits for, or name another build",
                code="ENGINE_HANGS",
            )
        return Output(*texts, process.returncode)
    finally:
        _end(process)


def _spawn(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    import subprocess

    program, process = command[0], None
    try:
        with _undisturbed():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                start_new_session=True,
            )
            _live.add(process)
    except (KeyboardInterrupt, SystemExit):
        if process is not None:  # it came while the child was made
            _end(process)
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise missing(program) from error
    except PermissionError as error:
        cure = f"run `chmod +x {program}`, or look whether its file system is mounted noexec"
        raise EngineError(f"{program} may not be executed", cure=cure, code="ENGINE_NOT_EXECUTABLE") from error
    except OSError as error:
        raise EngineError(
            f"{program} is not a program for this machine ({error.strerror})",
            cure="name a build for this operating system and processor",
            code="ENGINE_NOT_EXECUTABLE",
        ) from error
    else:
        return process


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """SIGINT and SIGTERM wait until the end, so that none of them comes between a fork and the note of its child.

    Python runs signal handlers in its main thread alone; elsewhere there is nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    previous = {
        number: signal.signal(number, lambda caught, _frame: waiting.append(caught))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for caught in waiting:
            signal.raise_signal(caught)


@atexit.register
def _end_all() -> None:
    for process in tuple(_live):
        if process.poll() is None:  # its pipes are closed by the thread that reads them
            _kill_group(process)
            process.wait()


def missing(program: str) -> EngineError:
    """The error for a program that is not there (or is a script whose interpreter is not)."""
    if os.path.lexists(program):
        what = f"{program} points to nothing, or its interpreter is missing"
    else:
        what = f"{program} does not exist"
    return EngineError(what, cure="install the build there, or correct the backend's path", code="ENGINE_MISSING")


def _read(process: subprocess.Popen[bytes], deadline: float) -> tuple[str, str] | None:
    """Both streams up to the limit; None when the deadline passes first. Too much output ends the program."""
    import selectors
    import subprocess

    parts: dict[str, bytearray] = {"out": bytearray(), "err": bytearray()}
    with selectors.DefaultSelector() as selector:
        for name, stream in (("out", process.stdout), ("err", process.stderr)):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, name)
        while selector.get_map():
            left = deadline - time.monotonic()
            events = selector.select(left) if left > 0 else []
            if not events:
                return None
            for key, _ in events:
                chunk = os.read(key.fd, 65536)
                parts[key.data] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
            if max(map(len, parts.values())) > _LIMIT:
                _kill_group(process)
                break
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    return parts["out"].decode("utf-8", "replace"), parts["err"].decode("utf-8", "replace")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """The program and what it started; it leads its own group, so nothing else is in it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        _kill_group(process)
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    _live.discard(process)


def describe_status(status: int) -> str:
    """`exit code 3` or `signal SIGILL`; a shell's 128+N counts as the signal."""
    number = -status if status < 0 else status - 128
    if number > 0:
        try:
            return f"signal {signal.Signals(number).name}"
        except ValueError:
            pass
    return f"exit code {status}"


def died(command: Sequence[str], output: Output) -> EngineError:
    """The ENGINE_DIES error: how it ended, its first specific line, and what to do about that."""
    ended = describe_status(output.status)
    line = first_specific_line(output)
    message = f"{' '.join(command)} ended with {ended}" + (f": {line}" if line else "")
    if _LOADER.search(line):
        cure = "install the library that it names, or keep the folder of the build whole"
    elif ended == "signal SIGILL":
        cure = "name a build for this processor: this one uses instructions that it does not have"
    else:
        cure = "run it by hand, and name a build that runs here"
    return EngineError(message, cure=cure, code="ENGINE_DIES")


def first_specific_line(output: Output) -> str:
    """The first line that names a cause, else the first line; at most 300 characters, without control characters."""
    lines = [line.strip() for line in (*output.stderr.splitlines(), *output.stdout.splitlines()) if line.strip()]
    line = next((line for line in lines if _SPECIFIC.search(line)), lines[0] if lines else "")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line[:300])

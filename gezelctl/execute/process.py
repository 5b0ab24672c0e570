"""Start and stop servers. A started server lives in its own session and outlives gezelctl; only what is proven ours
by pid, start time and token is ever signalled."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from gezelctl.config.redact import is_secret_key
from gezelctl.config.secrets import Secret, secret_mac
from gezelctl.engines.types import LaunchSpec
from gezelctl.errors import EngineError, RefusedError
from gezelctl.execute.ports import port_is_free, require_port
from gezelctl.observe.processes import (
    SERVER_VARIABLE,
    STACK_VARIABLE,
    TOKEN_VARIABLE,
    find_by_token,
    process_identity,
    process_state,
)
from gezelctl.store.events import rotate, timestamp
from gezelctl.store.files import write_atomic
from gezelctl.store.layout import Paths, UnsafePathError
from gezelctl.store.records import PRIVATE, hmac_key, new_token, remove_record, write_record
from gezelctl.store.types import RunRecord

LOG_ROTATE_BYTES: Final = 10 * 1024 * 1024
GRACE_S: Final = 10.0
KILL_WAIT_S: Final = 10.0
PORT_WAIT_S: Final = 5.0
POLL_S: Final = 0.02

_ENGINE_VARIABLES: Final = re.compile(r"(LLAMA|GGML|MLX|HF|HUGGINGFACE|HUGGING_FACE|GEZELCTL)_")
_DEVICE_CHOICE: Final = re.compile(r"(^|_)VISIBLE_DEVICES$")


@dataclass
class Child:
    """A server that this process started. `process` is there for its exit status; nobody else waits for it."""

    process: subprocess.Popen[bytes]
    record: RunRecord

    def exit_code(self) -> int | None:
        """None while it runs; negative = killed by that signal."""
        return self.process.poll()

    def detach(self) -> None:
        """Let it live on: Popen would warn about a child that nobody waited for."""
        if self.process.poll() is None:
            self.process.returncode = 0


UNSEEN_EXIT: Final = 1000
"""Stands for the exit code of a server that is not our child: only its parent is told, and that one is gone."""


@dataclass
class Rejoined:
    """A running server that an earlier gezelctl started and did not live to prove."""

    record: RunRecord

    def exit_code(self) -> int | None:
        """None while it runs, then UNSEEN_EXIT."""
        return None if process_state(self.record).state == "running" else UNSEEN_EXIT


def server_environment(
    spec: LaunchSpec, token: str, stack: str, secrets: Mapping[str, Secret], parent: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a server.

    From `parent`, without what engines read as options (every llama-server flag has a LLAMA_ARG_ twin), without
    anything named like a secret, but with the choice of visible devices, which the probe of the engine saw as well.
    The program's folder leads PATH and the library path when libraries stand in it: builds are moved as folders.
    """
    env = {k: v for k, v in parent.items() if _inherits(k)}
    folder = Path(spec.program).parent
    if _holds_libraries(folder):
        for name in ("PATH", "LD_LIBRARY_PATH"):
            env[name] = os.pathsep.join(part for part in (str(folder), env.get(name, "")) if part)
    env |= {"GGML_NO_BACKTRACE": "1", "HF_HUB_OFFLINE": "1"}
    env |= spec.env
    env |= {name: secret.reveal() for name, secret in secrets.items()}
    return env | {TOKEN_VARIABLE: token, STACK_VARIABLE: stack, SERVER_VARIABLE: spec.server}


def _inherits(name: str) -> bool:
    if _DEVICE_CHOICE.search(name):
        return True
    return not (_ENGINE_VARIABLES.match(name) or is_secret_key(name) or name.endswith("_KEY"))


def _holds_libraries(folder: Path) -> bool:
    try:
        return any(p.suffix in {".so", ".dylib"} or ".so." in p.name for p in folder.iterdir())
    except OSError:
        return False


def start(
    paths: Paths,
    spec: LaunchSpec,
    *,
    stack: str,
    secrets: Mapping[str, Secret],
    parent_env: Mapping[str, str],
    now: datetime,
    plan_digest: str,
) -> Child:
    """Start one server and record it, before the spawn (pid 0 and the token) and after it.

    Raises RefusedError PORT_IN_USE, and EngineError when the program cannot be started; no record stays then.
    """
    require_port(spec.host, spec.port)
    _write_configs(paths, spec)
    if any(str(paths.slots(spec.server)) in argument for argument in spec.argv):
        # the engine writes saved slots, which hold what people asked, with the default mode
        paths.slots(spec.server).mkdir(mode=0o700, parents=True, exist_ok=True)
    log = _prepare_log(paths.log(spec.server))
    key = hmac_key(paths) if secrets else b""
    record = RunRecord(
        server=spec.server,
        token=new_token(),
        launch=msgspec.Raw(msgspec.json.encode(spec)),
        started_at=timestamp(now),
        log=str(log),
        log_offset=log.stat().st_size,
        secret_macs={name: secret_mac(secret, key) for name, secret in secrets.items()},
        plan_digest=plan_digest,
    )
    write_record(paths, record)
    try:
        process = _spawn(paths, spec, log, server_environment(spec, record.token, stack, secrets, parent_env))
    except OSError as error:
        remove_record(paths, spec.server)
        raise _unstartable(spec.program, error) from error
    identity = process_identity(process.pid)
    record = replace(record, pid=process.pid, process_started=identity.started if identity else time.time())
    write_record(paths, record)
    return Child(process, record)


def rejoin(paths: Paths, record: RunRecord) -> Rejoined:
    """The running server of a record that an earlier gezelctl left unproven: it was killed, or the proof failed.

    Its pid is filled in when that gezelctl died between spawn and record. Raises EngineError STALE_PLAN when the
    server has ended, and RefusedError UNPROVEN when it cannot be told to be ours.
    """
    pid = _proven_pid(record)
    identity = process_identity(pid)
    if identity is None:
        raise EngineError(f"server {record.server} has ended meanwhile", cure="apply again", code="STALE_PLAN")
    if pid != record.pid:
        record = replace(record, pid=pid, process_started=identity.started)
        write_record(paths, record)
    return Rejoined(record)


def _spawn(paths: Paths, spec: LaunchSpec, log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("ab", buffering=0) as stream:
        return subprocess.Popen(
            [spec.program, *spec.argv],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=paths.state,
            start_new_session=True,
            close_fds=True,
        )


def _unstartable(program: str, error: OSError) -> EngineError:
    if isinstance(error, FileNotFoundError):
        cure = "install the build there, or correct the backend's path"
        return EngineError(f"{program} does not exist, or its interpreter is missing", cure=cure, code="ENGINE_MISSING")
    if isinstance(error, PermissionError):
        cure = f"run `chmod +x {program}`, or look whether its file system is mounted noexec"
        return EngineError(f"{program} may not be executed", cure=cure, code="ENGINE_NOT_EXECUTABLE")
    return EngineError(
        f"{program} cannot be started: {error.strerror}",
        cure="name a build for this machine",
        code="ENGINE_NOT_EXECUTABLE",
    )


def _write_configs(paths: Paths, spec: LaunchSpec) -> None:
    for file in spec.config_files:
        if Path(file.path) != paths.config(spec.server):
            raise UnsafePathError(
                f"{file.path} is not the place of {spec.server}'s configuration", cure="make a new plan"
            )
        write_atomic(paths.config(spec.server), file.content.encode(), mode=PRIVATE)


def _prepare_log(log: Path) -> Path:
    """The log file, rotated to `.1` when it has grown large; never rotated while its server runs."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_ROTATE_BYTES:
        rotate(log, keep=1)
    log.touch(mode=PRIVATE)
    return log


Stopped = Literal["gone", "stopped", "killed"]


def stop(record: RunRecord, launch: LaunchSpec | None, *, grace_s: float = GRACE_S) -> Stopped:
    """Stop the process of a run record: SIGTERM to its group, after `grace_s` SIGKILL; wait until all of it is gone
    and its port is free again.

    Raises RefusedError UNPROVEN for a live process with the recorded pid that may not be ours: it gets no signal.
    """
    pid = _proven_pid(record)
    outcome: Stopped = "gone"
    if pid:
        outcome = "stopped"
        _signal_group(pid, signal.SIGTERM)
        if not _wait_gone(record, grace_s):
            outcome = "killed"
            if pid := _proven_pid(record):
                _signal_group(pid, signal.SIGKILL)
            if not _wait_gone(record, KILL_WAIT_S):
                raise _immortal(record, pid)
    _kill_rest(record.token)
    if launch is not None and outcome != "gone":
        _wait_port(launch)
    return outcome


def _proven_pid(record: RunRecord) -> int:
    """The pid of the running server, 0 when it is gone. Raises RefusedError when it cannot be told."""
    state, pid = process_state(record)
    if state == "unproven":
        raise RefusedError(
            f"pid {pid} may not be server {record.server} any more: start time and token do not both agree",
            cure=f"look at it with `ps -p {pid}`, stop it yourself if it is the server, then apply again",
            code="UNPROVEN",
        )
    if state != "running":
        return 0
    return pid if record.pid else _leader(pid, record.token)


def _leader(pid: int, token: str) -> int:
    """The server itself for a process found by its token, which the server's children carry too."""
    try:
        leader = os.getsid(pid)
    except ProcessLookupError:
        return pid
    identity = process_identity(leader)
    return leader if identity and identity.token == token else pid


def _signal_group(pid: int, number: signal.Signals) -> None:
    """The process and its group, which it leads since it was started in its own session."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def _wait_gone(record: RunRecord, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process_state(record).state == "running":
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    if record.pid:  # our own child leaves a zombie until somebody asks
        with contextlib.suppress(ChildProcessError):
            os.waitpid(record.pid, os.WNOHANG)
    return True


def _kill_rest(token: str) -> None:
    """Kill what the server itself started and left behind: it carries the same token."""
    deadline = time.monotonic() + KILL_WAIT_S
    while (pid := find_by_token(token)) and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def _wait_port(launch: LaunchSpec) -> None:
    deadline = time.monotonic() + PORT_WAIT_S
    while not port_is_free(launch.host, launch.port) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _immortal(record: RunRecord, pid: int) -> EngineError:
    return EngineError(
        f"server {record.server}, pid {pid}, does not end even after SIGKILL: it waits in the kernel (disk or driver)",
        cure="look at `dmesg`; the machine may need a restart",
        code="UNKILLABLE",
    )

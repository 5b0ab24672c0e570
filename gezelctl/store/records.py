"""State of one stack: lineage and serial, run records, the host's HMAC key, consumed plans. All writes are atomic."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from gezelctl.catalog.names import SHA256, STORE_ID
from gezelctl.errors import StalePlan, UnknownHost
from gezelctl.store.files import StateError, create_exclusive, encode, read_struct, write_atomic
from gezelctl.store.layout import Paths
from gezelctl.store.types import RunRecord, StackState

KEY_BYTES = 32
PRIVATE = 0o600


def read_state(paths: Paths) -> StackState | None:
    """The stack's state, None before the first plan. Raises StateError."""
    return read_struct(paths.state_file, StackState)


def ensure_state(paths: Paths, stack: str) -> StackState:
    """The stack's state; the first caller makes the lineage, and two first callers agree on one."""
    state = read_state(paths)
    if state is None:
        create_exclusive(paths.state_file, encode(StackState(stack=stack, lineage=str(uuid.uuid4()))))
        state = read_state(paths)
    if state is None or state.stack != stack:
        raise StateError(
            f"{paths.state_file} belongs to stack {state.stack if state else '?'}, not {stack}",
            cure="choose another state folder for this stack",
            code="STATE_FOREIGN",
        )
    return state


def write_state(paths: Paths, state: StackState) -> None:
    write_atomic(paths.state_file, encode(state))


def read_record(paths: Paths, server: str) -> RunRecord | None:
    """The run record of a server, None when gezelctl started none. Raises StateError."""
    return read_struct(paths.run_record(server), RunRecord)


def read_records(paths: Paths) -> tuple[tuple[RunRecord, ...], tuple[str, ...]]:
    """All run records sorted by server, and one line for each file that cannot be read.

    Raises UnknownHost when the folder itself cannot be read: that is not the same as a host without servers.
    """
    records: list[RunRecord] = []
    problems: list[str] = []
    for path in _record_files(paths):
        try:
            record = read_struct(path, RunRecord)
        except StateError as error:
            problems.append(f"{error.message}; {error.cure}")
            continue
        if record is not None and record.server == path.stem:
            records.append(record)
        elif record is not None:
            problems.append(f"{path}: speaks of server {record.server}")
    return tuple(records), tuple(problems)


def _record_files(paths: Paths) -> list[Path]:
    try:
        return sorted(p for p in paths.runs.iterdir() if p.suffix == ".json" and STORE_ID.match(p.stem))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UnknownHost(
            f"{paths.runs} cannot be read: {error.strerror}: what runs here is not known",
            cure="Run gezelctl as the user who applied, or set GEZELCTL_STATE_DIR to your own state folder.",
        ) from error


def write_record(paths: Paths, record: RunRecord) -> None:
    """The record holds the token that proves a process ours, so only its owner may read it."""
    write_atomic(paths.run_record(record.server), encode(record), mode=PRIVATE)


def remove_record(paths: Paths, server: str) -> None:
    paths.run_record(server).unlink(missing_ok=True)


def new_token() -> str:
    """128 random bits in hex, put into a server's environment."""
    return os.urandom(16).hex()


def hmac_key(paths: Paths) -> bytes:
    """This host's key for comparing secrets, 32 bytes; made once, mode 0600. Raises StateError."""
    if not paths.hmac_key.exists():
        create_exclusive(paths.hmac_key, os.urandom(KEY_BYTES), mode=PRIVATE)
    try:
        key = paths.hmac_key.read_bytes()
    except OSError as error:
        raise StateError(
            f"{paths.hmac_key}: {error.strerror}", cure="make it readable for its owner", code="STATE_ACCESS"
        ) from error
    if len(key) != KEY_BYTES:
        raise StateError(
            f"{paths.hmac_key} is damaged: {len(key)} bytes instead of {KEY_BYTES}",
            cure="remove it; servers with secrets are then restarted once",
            code="STATE_DAMAGED",
        )
    return key


def consume_plan(paths: Paths, checksum: str) -> None:
    """Mark a saved plan as carried out. Raises StalePlan when it was already."""
    if not SHA256.match(checksum):
        raise StalePlan("the saved plan has no valid checksum", cure="make a new plan with --out", code="PLAN_CHECKSUM")
    if not create_exclusive(paths.plans / checksum, b""):
        raise StalePlan(
            "this saved plan was carried out before", cure="make a new plan with --out", code="PLAN_CONSUMED"
        )

"""Reading back what a run record says of a process."""

from __future__ import annotations

import hashlib

import msgspec

from gezelctl.engines.types import LaunchSpec
from gezelctl.observe.types import ServerFact
from gezelctl.store.types import RunRecord


def recorded_launch(record: RunRecord) -> LaunchSpec | None:
    """The launch that a run record holds; None when it was written by an incompatible version."""
    try:
        return msgspec.json.decode(record.launch, type=LaunchSpec)
    except msgspec.MsgspecError:
        return None


def fingerprint(fact: ServerFact | None) -> str:
    """A short name of what was observed of a server, for the stale check of a saved plan."""
    if fact is None or fact.record is None:
        return ""
    launch = msgspec.json.format(fact.record.launch, indent=-1)  # a snapshot writes the same record in lines
    text = f"{fact.process}\n{fact.pid}\n{fact.record.process_started}\n".encode() + launch
    return hashlib.sha256(text).hexdigest()[:16]

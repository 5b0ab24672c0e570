"""What `status` says of each server: wanted against running (sync), and how it serves (health), with reasons.

Two axes that are never merged, and conditions that explain them (ux contract 3.9). Unknown is never good: what could
not be observed is Unknown, not as wanted and not ready.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gezelctl.engines.types import LaunchSpec
from gezelctl.errors import ExitCode
from gezelctl.observe.types import Live, MemoryReading, Observed, ServerFact
from gezelctl.plan.measured import deviations, measured_sums, measured_total
from gezelctl.plan.types import Change, Plan
from gezelctl.store.types import PlannedMemory

Sync = Literal["Synced", "OutOfSync", "Drifted", "Unknown"]
Health = Literal["Starting", "Loading", "Ready", "Degraded", "Failed", "Stopped", "Unknown"]
Truth = Literal["True", "False", "Unknown"]
GOOD: dict[str, Truth] = {
    "ModelReady": "True",
    "Stalled": "False",
    "Healthy": "True",
    "Drifted": "False",
    "DraftModelUsable": "True",
    "MemoryAsPlanned": "True",
    "Ready": "True",
}
"""Every condition type with its good status, in the order in which a bad one explains a row: causes first."""


ADVISORY = frozenset({"DraftModelUsable", "MemoryAsPlanned"})
"""Conditions that are worth knowing of a server which serves as wanted: they never make it unready."""


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One named aspect of a server. `reason` is a code, `message` says it in words."""

    type: str
    status: Truth
    reason: str
    message: str = ""

    @property
    def good(self) -> bool:
        return self.status == GOOD[self.type]


class StatusRow(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One server. Times are RFC 3339; memory is bytes on host and devices together, 0 when unknown.

    `wanted` is false for a server of ours that models.yaml does not name; its health then concerns nobody.
    """

    address: str
    name: str
    sync: Sync
    health: Health
    wanted: bool = True
    model: str = ""
    backend: str = ""
    url: str = ""
    port: int = 0
    pid: int = 0
    since: str = ""
    why: str = ""
    context_tokens: int = 0
    slots: int = 0
    slots_busy: int = 0
    memory_planned_bytes: int = 0
    memory_measured_bytes: int = 0
    memory_planned: PlannedMemory | None = None
    """What the running process was planned to take, by purpose."""
    memory_measured: MemoryReading | None = None
    """What it took by its own log, by purpose and device."""
    conditions: tuple[Condition, ...] = ()


def status_rows(plan: Plan, observed: Observed) -> tuple[StatusRow, ...]:
    """One row for each server that is wanted or ours, sorted by name."""
    changes = {c.address: c for c in plan.changes}
    facts = {f"server.{s.name}": s for s in observed.servers}
    addresses = {a for a in changes if a.startswith("server.")} | {a for a, f in facts.items() if f.record}
    lost = {d.address: d.lost for d in plan.decisions}
    return tuple(_row(a, changes.get(a), facts.get(a), changes, lost.get(a, "")) for a in sorted(addresses))


def status_exit_code(rows: tuple[StatusRow, ...]) -> ExitCode:
    """What `status --check` leaves with: 8 unknown, else 3 unhealthy, else 2 not as wanted, else 0."""
    wanted = [row for row in rows if row.wanted]
    if any(row.sync == "Unknown" for row in rows) or any(row.health == "Unknown" for row in wanted):
        return ExitCode.UNKNOWN
    if any(row.health != "Ready" for row in wanted):
        return ExitCode.UNHEALTHY
    return ExitCode.CHANGES if any(row.sync != "Synced" for row in rows) else ExitCode.OK


def _row(
    address: str, change: Change | None, fact: ServerFact | None, changes: dict[str, Change], lost: str
) -> StatusRow:
    record = fact.record if fact else None
    running = _recorded(fact)
    launch = running or (change.launch if change else None)
    live = fact.live if fact else None
    planned = record.planned_memory if record else None
    conditions = _conditions(change, fact, running, changes, lost)
    first_bad = next((c for c in conditions if not c.good), None)
    return StatusRow(
        address=address,
        name=address.partition(".")[2],
        sync=_sync(change, fact),
        health=_health(fact, running),
        wanted=change is None or change.action not in {"keep", "delete"},
        model=_model(launch) if launch else "",
        backend=launch.backend if launch else "",
        url=launch.base_url if launch else "",
        port=launch.port if launch else 0,
        pid=fact.pid if fact and fact.process == "running" else 0,
        since=record.started_at if record and fact and fact.process == "running" else "",
        why=(first_bad.message or first_bad.reason) if first_bad else "",
        context_tokens=live.context_tokens if live else launch.expect.context_tokens if launch else 0,
        slots=live.slots if live else launch.expect.slots if launch else 0,
        slots_busy=live.slots_busy if live else 0,
        memory_planned_bytes=planned.total_bytes if planned else change.memory_after_bytes if change else 0,
        memory_measured_bytes=_measured(fact),
        memory_planned=planned,
        memory_measured=fact.memory if fact else None,
        conditions=conditions,
    )


def _model(launch: LaunchSpec) -> str:
    """The model id of `payload.<engine>.<id>`; what the server calls it when it has no payload."""
    kind, _, rest = launch.payload_id.partition(".")
    return rest.partition(".")[2] if kind == "payload" else launch.payload_id or launch.expect.model_id


def _measured(fact: ServerFact | None) -> int:
    """What the engine's log names; the resident size when it names nothing, as MLX does."""
    reading = fact.memory if fact else None
    return measured_total(reading) or (reading.resident_bytes if reading else 0)


def _recorded(fact: ServerFact | None) -> LaunchSpec | None:
    """The launch of the running process; None when nothing runs or its record cannot be read."""
    if fact is None or fact.record is None:
        return None
    try:
        return msgspec.json.decode(fact.record.launch, type=LaunchSpec)
    except msgspec.MsgspecError:
        return None


def _sync(change: Change | None, fact: ServerFact | None) -> Sync:
    if change is None or change.reason.endswith("_unknown") or (fact and fact.process == "unproven"):
        return "Unknown"
    if change.action == "noop":
        return "Synced"
    drifted = change.reason == "drifted" or any(f.drift for f in change.fields)
    return "Drifted" if drifted or (fact and fact.process == "gone") else "OutOfSync"


def _health(fact: ServerFact | None, running: LaunchSpec | None) -> Health:
    if fact is None or fact.process == "none":
        return "Stopped"
    if fact.process != "running":
        return "Failed" if fact.process == "gone" else "Unknown"
    proved = fact.record is not None and fact.record.proved
    if fact.live is None or fact.live.health == "Unknown":
        return "Unknown" if proved else "Starting"
    if fact.live.health != "Ready":
        return fact.live.health
    return "Ready" if proved and not _mismatch(fact.live, running) else "Degraded"


def _mismatch(live: Live, launch: LaunchSpec | None) -> str:
    """What a serving server reports otherwise than it was launched for; "" when all that was asked agrees."""
    if launch is None:
        return "its run record cannot be read"
    expect = launch.expect
    if expect.model_id and live.model_ids and expect.model_id not in live.model_ids:
        return f"serves {', '.join(live.model_ids)}, not {expect.model_id}"
    if expect.model_path and live.model_path and live.model_path != expect.model_path:
        return f"serves {live.model_path}, not {expect.model_path}"
    if expect.context_tokens and live.context_tokens and live.context_tokens != expect.context_tokens:
        return f"context is {live.context_tokens}, not {expect.context_tokens}"
    if expect.slots and live.slots and live.slots != expect.slots:
        return f"{live.slots} slots, not {expect.slots}"
    if expect.speculation is not None and live.speculation is not None and live.speculation != expect.speculation:
        return f"speculation is {'on' if live.speculation else 'off'}"
    return ""


def _conditions(
    change: Change | None,
    fact: ServerFact | None,
    running: LaunchSpec | None,
    changes: dict[str, Change],
    lost: str,
) -> tuple[Condition, ...]:
    found = [_model_ready(change, changes), _healthy(fact, running)]
    found += (
        [Condition("Stalled", "True", change.reason, change.cause)] if change and change.action == "blocked" else []
    )
    drift = _drifted(change, fact)
    found += [drift] if drift else []
    found += [Condition("DraftModelUsable", "False", "DraftModelBroken", lost)] if lost else []
    memory = _memory(fact)
    found += [memory] if memory else []
    order = list(GOOD)
    found.sort(key=lambda c: order.index(c.type))
    bad = [c for c in found if not c.good and c.type not in ADVISORY]
    worst: Truth = "Unknown" if any(c.status == "Unknown" for c in bad) else "False" if bad else "True"
    if bad:
        ready = Condition("Ready", worst, bad[0].reason, bad[0].message)
    elif change is not None and change.action != "noop":
        ready = Condition("Ready", "False", change.reason or "OutOfSync", change.cause)
    else:
        ready = Condition("Ready", "True", "AsWanted")
    return (*found, ready)


def _model_ready(change: Change | None, changes: dict[str, Change]) -> Condition:
    if change is None:
        return Condition("ModelReady", "Unknown", "NotCompared", "outside what was compared")
    for address in change.depends_on:
        payload = changes.get(address)
        if payload and payload.action in {"fetch", "link", "blocked"}:
            message = f"{address}: {payload.cause or payload.reason}"
            return Condition("ModelReady", "False", payload.reason, message)
    return Condition("ModelReady", "True", "Fetched")


def _healthy(fact: ServerFact | None, running: LaunchSpec | None) -> Condition:
    if fact is None or fact.process == "none":
        return Condition("Healthy", "False", "Stopped", "not running")
    if fact.process == "gone":
        last = fact.log_tail[-1] if fact.log_tail else ""
        return Condition("Healthy", "False", "ProcessGone", "its process has ended" + (f": {last}" if last else ""))
    if fact.process == "unproven":
        return Condition("Healthy", "Unknown", "Unproven", f"pid {fact.pid} cannot be proven to be ours")
    live = fact.live
    proved = fact.record is not None and fact.record.proved
    if live is None or live.health == "Unknown":
        reason, word = ("ProbeTimeout", "does not answer") if proved else ("Starting", "does not answer yet")
        return Condition("Healthy", "Unknown", reason, (live.message if live else "") or word)
    if live.health == "Loading":
        return Condition("Healthy", "False", "LoadingModel", live.message or "loading the model")
    if live.health == "Failed":
        return Condition("Healthy", "False", "ServesNot", live.message or "answers, but does not serve")
    mismatch = _mismatch(live, running)
    if mismatch:
        return Condition("Healthy", "False", "Mismatch", mismatch)
    if not proved:
        return Condition("Healthy", "False", "NotProven", "serves, but no generation has proven it yet")
    return Condition("Healthy", "True", "Probed")


def _memory(fact: ServerFact | None) -> Condition | None:
    """Whether the running server took what was planned; None when one of the two is not known."""
    planned = fact.record.planned_memory if fact and fact.record else None
    if fact is None or planned is None or fact.memory is None or not measured_sums(fact.memory)[0]:
        return None
    found = deviations(planned, fact.memory)
    if found:
        return Condition("MemoryAsPlanned", "False", "MemoryDeviates", "; ".join(found))
    return Condition("MemoryAsPlanned", "True", "Measured")


def _drifted(change: Change | None, fact: ServerFact | None) -> Condition | None:
    if fact and fact.process == "gone":
        return Condition("Drifted", "True", "ProcessGone", "its process ended without us")
    fields = [f.path for f in change.fields if f.drift] if change else []
    if fields:
        return Condition("Drifted", "True", "FieldsDiffer", f"changed on this host: {', '.join(fields)}")
    return None

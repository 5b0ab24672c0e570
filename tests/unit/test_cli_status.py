"""Status rows from plan and observation, their table, and the exit code of a check."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any, get_args

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from gezelctl.cli.status_view import render_status
from gezelctl.cli.terminal import Stream
from gezelctl.engines.types import Expectation, LaunchSpec
from gezelctl.errors import ExitCode, UsageFault
from gezelctl.observe.types import Facts, Live, MemoryReading, Observed, ServerFact
from gezelctl.plan.status import GOOD, Health, StatusRow, Sync, status_exit_code, status_rows
from gezelctl.plan.types import Change, Field, Plan
from gezelctl.store.types import RunRecord
from tests import planmake

FACTS = Facts(
    host="lab-gpu-03", os="linux", os_version="", arch="x86_64", cpus=8, memory_total_bytes=1, memory_available_bytes=1
)
READY = Live(health="Ready", model_ids=("m",), context_tokens=8192, slots=4, slots_busy=1, speculation=False)


def launch(name: str, port: int = 8081) -> LaunchSpec:
    expect = Expectation(model_id="m", context_tokens=8192, slots=4, speculation=False)
    return msgspec.structs.replace(planmake.launch(name, port), expect=expect)


def fact(name: str, *, proved: bool = True, **more: Any) -> ServerFact:
    record = RunRecord(
        server=name,
        token="t",
        launch=msgspec.Raw(msgspec.json.encode(launch(name))),
        pid=4711,
        started_at="2026-01-12T13:00:00Z",
        proved=proved,
    )
    base = ServerFact(name=name, record=record, process="running", pid=4711, live=READY)
    return msgspec.structs.replace(base, **more)


def rows(plan: Plan, *facts: ServerFact) -> tuple[StatusRow, ...]:
    return status_rows(plan, Observed(facts=FACTS, servers=facts))


def one(change: Change | None, seen: ServerFact | None) -> StatusRow:
    plan = planmake.plan(*([change] if change else []))
    (row,) = rows(plan, *([seen] if seen else []))
    return row


NOOP = planmake.noop("chat")
CREATE = msgspec.structs.replace(planmake.create("chat"), launch=launch("chat"))
RESTART = planmake.restart("chat")
DRIFT = msgspec.structs.replace(RESTART, fields=(Field(path="slots", before=8, after=4, drift=True),))
PLAIN = msgspec.structs.replace(RESTART, fields=(Field(path="slots", before=8, after=4),))
BLOCKED = planmake.blocked("chat")

CASES: dict[str, tuple[Change | None, ServerFact | None, Sync, Health, str]] = {
    "as wanted": (NOOP, fact("chat"), "Synced", "Ready", ""),
    "never started": (CREATE, None, "OutOfSync", "Stopped", "not running"),
    "edited": (PLAIN, fact("chat"), "OutOfSync", "Ready", "context, slots differ"),
    "drifted": (DRIFT, fact("chat"), "Drifted", "Ready", "changed on this host: slots"),
    "died": (
        CREATE,
        fact("chat", process="gone", pid=0, live=None, log_tail=("loading", "out of memory")),
        "Drifted",
        "Failed",
        "its process has ended: out of memory",
    ),
    "pid reused": (
        CREATE,
        fact("chat", process="unproven"),
        "Unknown",
        "Unknown",
        "pid 4711 cannot be proven to be ours",
    ),
    "not asked": (NOOP, fact("chat", live=None), "Synced", "Unknown", "does not answer"),
    "silent": (NOOP, fact("chat", live=Live(health="Unknown")), "Synced", "Unknown", "does not answer"),
    "starting": (NOOP, fact("chat", live=None, proved=False), "Synced", "Starting", "does not answer yet"),
    "loading": (NOOP, fact("chat", live=Live(health="Loading")), "Synced", "Loading", "loading the model"),
    "broken": (NOOP, fact("chat", live=Live(health="Failed", message="HTTP 500")), "Synced", "Failed", "HTTP 500"),
    "not proven": (
        NOOP,
        fact("chat", proved=False),
        "Synced",
        "Degraded",
        "serves, but no generation has proven it yet",
    ),
    "other model": (
        NOOP,
        fact("chat", live=msgspec.structs.replace(READY, model_ids=("x",))),
        "Synced",
        "Degraded",
        "serves x, not m",
    ),
    "smaller context": (
        NOOP,
        fact("chat", live=msgspec.structs.replace(READY, context_tokens=4096)),
        "Synced",
        "Degraded",
        "context is 4096, not 8192",
    ),
    "fewer slots": (
        NOOP,
        fact("chat", live=msgspec.structs.replace(READY, slots=1)),
        "Synced",
        "Degraded",
        "1 slots, not 4",
    ),
    "speculates": (
        NOOP,
        fact("chat", live=msgspec.structs.replace(READY, speculation=True)),
        "Synced",
        "Degraded",
        "speculation is on",
    ),
    "port taken": (BLOCKED, None, "OutOfSync", "Stopped", "port 8082 is held by pid 912 (nginx)"),
    "not compared": (None, fact("chat"), "Unknown", "Ready", "outside what was compared"),
    "engine not seen": (
        msgspec.structs.replace(BLOCKED, reason="engine_unknown", cause="this backend was not observed"),
        fact("chat"),
        "Unknown",
        "Ready",
        "this backend was not observed",
    ),
    "left over": (
        planmake.kept("chat"),
        fact("chat"),
        "OutOfSync",
        "Ready",
        "ours and running as pid 77, but not in models.yaml: kept, since pruning is off",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_row(name: str) -> None:
    change, seen, sync, health, why = CASES[name]
    row = one(change, seen)
    assert (row.sync, row.health, row.why) == (sync, health, why)


@pytest.mark.parametrize("name", CASES)
def test_ready_follows_the_other_conditions(name: str) -> None:
    change, seen, sync, health, _ = CASES[name]
    row = one(change, seen)
    ready = next(c for c in row.conditions if c.type == "Ready")
    assert ready.good == (sync == "Synced" and health == "Ready")
    others = [c for c in row.conditions if c.type != "Ready"]
    if any(c.status == "Unknown" for c in others):
        assert ready.status == "Unknown"
    assert {c.type for c in row.conditions} <= GOOD.keys()


def test_a_missing_payload_is_the_reason() -> None:
    payload = planmake.download("chat")
    row = rows(planmake.plan(payload, CREATE))[0]
    assert row.why == "payload.llama-cpp.chat: not in the store; 2 files"
    assert row.conditions[0].type == "ModelReady"


def test_the_model_is_the_id_of_its_payload() -> None:
    spec = msgspec.structs.replace(launch("chat"), payload_id="payload.llama-cpp.qwen3.5-4b-q4")
    assert one(msgspec.structs.replace(CREATE, launch=spec), None).model == "qwen3.5-4b-q4"


def test_a_record_of_another_version_is_not_called_ready() -> None:
    seen = fact("chat")
    assert seen.record is not None
    record = msgspec.structs.replace(seen.record, launch=msgspec.Raw(b'{"not": "a launch"}'))
    row = one(NOOP, msgspec.structs.replace(seen, record=record))
    assert row.health == "Degraded"
    assert row.why == "its run record cannot be read"


def make_row(sync: str, health: str, wanted: bool = True) -> StatusRow:
    return StatusRow(address="server.a", name="a", sync=sync, health=health, wanted=wanted)  # type: ignore[arg-type]  # drawn from the same literals


@pytest.mark.parametrize(("sync", "health"), list(itertools.product(get_args(Sync), get_args(Health))))
def test_exit_code_of_one_row(sync: str, health: str) -> None:
    code = status_exit_code((make_row("Synced", "Ready"), make_row(sync, health)))
    if "Unknown" in {sync, health}:
        assert code == ExitCode.UNKNOWN
    elif health != "Ready":
        assert code == ExitCode.UNHEALTHY
    else:
        assert code == (ExitCode.OK if sync == "Synced" else ExitCode.CHANGES)


def test_the_worst_row_wins() -> None:
    drift, failed, unknown = make_row("Drifted", "Ready"), make_row("Synced", "Failed"), make_row("Synced", "Unknown")
    assert status_exit_code((drift, failed)) == ExitCode.UNHEALTHY
    assert status_exit_code((unknown, drift, failed)) == ExitCode.UNKNOWN
    assert status_exit_code(()) == ExitCode.OK


def test_the_health_of_what_is_not_wanted_concerns_nobody() -> None:
    assert status_exit_code((make_row("OutOfSync", "Failed", wanted=False),)) == ExitCode.CHANGES


def table() -> tuple[StatusRow, ...]:
    reading = MemoryReading(
        weights_bytes={"host": planmake.GIB},
        context_bytes={"CUDA0": planmake.GIB // 2},
        compute_bytes={"CUDA0": 1 << 20},
    )
    changes = (
        msgspec.structs.replace(planmake.noop("chat"), memory_after_bytes=2 * planmake.GIB),
        msgspec.structs.replace(PLAIN, address="server.coder"),
        msgspec.structs.replace(CREATE, address="server.embed"),
        planmake.kept("old"),
    )
    return rows(
        planmake.plan(*changes),
        fact("chat", memory=reading),
        fact("coder", process="unproven"),
        fact("old", live=Live(health="Failed", message="bad \x1b[2J\nline")),
    )


@pytest.mark.parametrize("kind", ["text", "wide", "json", "name"])
def test_table(kind: str, snapshot: SnapshotAssertion) -> None:
    stream = Stream(io.StringIO(), color=False)
    assert render_status(table(), kind, stream, stack="lab", host="lab-gpu-03") == snapshot


def test_unknown_is_never_green() -> None:
    stream = Stream(io.StringIO(), color=True)
    for sync, health in itertools.product(get_args(Sync), get_args(Health)):
        text = render_status((make_row(sync, health),), "text", stream)
        greens = {"Synced", "Ready"} & {sync, health}
        assert text.count("\x1b[32m") == len(greens)
        assert "\x1b[32mUnknown" not in text


def test_json_is_what_the_rows_say() -> None:
    document = json.loads(render_status(table(), "json", Stream(io.StringIO(), color=False), stack="lab", host="h"))
    assert document["kind"] == "Status"
    assert [s["name"] for s in document["servers"]] == ["chat", "coder", "embed", "old"]
    again = msgspec.json.decode(json.dumps(document["servers"]), type=tuple[StatusRow, ...])
    assert again == table()


def test_no_servers_and_unknown_formats() -> None:
    stream = Stream(io.StringIO(), color=False)
    assert render_status((), "text", stream).startswith("No servers")
    with pytest.raises(UsageFault):
        render_status((), "html", stream)

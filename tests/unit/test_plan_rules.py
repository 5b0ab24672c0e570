"""Rules of the planner: purity, order, narrowing, and what makes a change."""

from __future__ import annotations

import builtins
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gezelctl.observe.types import Live
from gezelctl.plan.inputs import PlanInputs, PlanOptions
from gezelctl.plan.planner import make_plan, summarise
from gezelctl.plan.render_json import plan_json
from gezelctl.plan.render_markdown import render_markdown
from gezelctl.plan.render_text import render_text
from gezelctl.plan.types import Plan
from tests.plancase import CASES, PlanCase, after
from tests.simulate import converged


def first(name: str, folder: Path) -> tuple[Plan, PlanInputs]:
    _, plan, given_inputs = next(PlanCase(CASES / f"{name}.yaml").plans(folder))
    return plan, given_inputs


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every way to reach the world from Python fails, once the modules are loaded."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError(f"the planner reached the world: {args[:1]}")

    with monkeypatch.context() as patch:
        for owner, names in (
            (builtins, ("open",)),
            (os, ("open", "stat", "lstat", "scandir", "listdir", "getenv", "fork", "posix_spawn", "urandom")),
            (socket, ("socket", "create_connection")),
            (subprocess, ("Popen",)),
            (time, ("time", "monotonic", "sleep", "time_ns")),
        ):
            for name in names:
                patch.setattr(owner, name, refuse)
        yield


@pytest.mark.parametrize("name", [p.stem for p in sorted(CASES.glob("*.yaml"))])
def test_planning_and_rendering_touch_nothing(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    plan, given_inputs = first(name, tmp_path)
    render_text(plan), render_markdown(plan), plan_json(plan)  # imports happen here
    request.getfixturevalue("guard")
    again = make_plan(given_inputs)
    texts = (render_text(again), render_markdown(again), plan_json(again))
    request.getfixturevalue("monkeypatch").undo()
    assert texts == (render_text(plan), render_markdown(plan), plan_json(plan))


def test_the_planner_modules_import_no_effector() -> None:
    code = "import sys, gezelctl.plan.planner; print([m for m in sys.modules if m.startswith('gezelctl.execute')])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_order_of_what_is_given_changes_no_byte(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    plan, given_inputs = first("local-three", tmp_path_factory.mktemp("case"))
    shuffle = random.Random(seed).sample
    mixed = replace(
        given_inputs,
        resolved=tuple(shuffle(given_inputs.resolved, len(given_inputs.resolved))),
        observed=replace(
            given_inputs.observed,
            sources=dict(shuffle(sorted(given_inputs.observed.sources.items()), len(given_inputs.observed.sources))),
        ),
    )
    assert plan_json(make_plan(mixed)) == plan_json(plan)


def test_the_summary_counts_what_the_changes_say(tmp_path: Path) -> None:
    for path in sorted(CASES.glob("*.yaml")):
        for title, plan, _ in PlanCase(path).plans(tmp_path):
            assert plan.summary == summarise(plan.changes), title
            acting = [c for c in plan.changes if c.action not in {"noop", "keep", "blocked"}]
            assert plan.summary.changes == len(acting), title


def test_only_narrows_and_is_not_complete(tmp_path: Path) -> None:
    _, given_inputs = first("local-three", tmp_path)
    plan = make_plan(replace(given_inputs, options=PlanOptions(only=("server.beta",))))
    assert [c.address for c in plan.changes] == ["payload.llama-cpp.beta", "server.beta"]
    assert not plan.complete


def test_a_narrowed_plan_never_prunes(tmp_path: Path) -> None:
    plan, given_inputs = first("local-three", tmp_path)
    settled = replace(given_inputs, observed=converged(plan, given_inputs.observed))
    fewer = replace(
        settled,
        desired=replace(settled.desired, servers=settled.desired.servers[:1]),
        resolved=settled.resolved[:1],
        options=PlanOptions(excluded=("server.beta",), prune=True),
    )
    assert make_plan(fewer).summary.delete == 0


def test_a_server_that_was_started_but_never_proven_is_proven(tmp_path: Path) -> None:
    plan, given_inputs = first("local-three", tmp_path)
    observed = converged(plan, given_inputs.observed)
    servers = tuple(
        replace(s, record=replace(s.record, proved=False)) if s.record and s.name == "beta" else s
        for s in observed.servers
    )
    again = make_plan(replace(given_inputs, observed=replace(observed, servers=servers)))
    assert [(c.address, c.action, c.reason) for c in again.changes if c.action != "noop"] == [
        ("server.beta", "update", "unproven")
    ]


@pytest.mark.parametrize(
    ("health", "expected"),
    [("Ready", []), ("Loading", []), ("Unknown", []), ("Failed", [("server.beta", "restart", "unhealthy")])],
)
def test_only_a_failed_server_is_restarted_for_its_health(health: Any, expected: list[Any], tmp_path: Path) -> None:
    plan, given_inputs = first("local-three", tmp_path)
    observed = converged(plan, given_inputs.observed)
    servers = tuple(replace(s, live=Live(health=health)) if s.name == "beta" else s for s in observed.servers)
    again = make_plan(replace(given_inputs, observed=replace(observed, servers=servers)))
    assert [(c.address, c.action, c.reason) for c in again.changes if c.action != "noop"] == expected


def test_a_process_that_is_gone_is_created_again(tmp_path: Path) -> None:
    plan, given_inputs = first("local-three", tmp_path)
    observed = converged(plan, given_inputs.observed)
    servers = tuple(replace(s, process="gone", live=None) if s.name == "alpha" else s for s in observed.servers)
    again = make_plan(replace(given_inputs, observed=replace(observed, servers=servers)))
    change = next(c for c in again.changes if c.address == "server.alpha")
    assert (change.action, change.reason) == ("create", "process_gone")
    assert "pid 1003" in change.cause


def test_a_payload_file_of_another_size_is_brought_again_and_its_server_restarted(tmp_path: Path) -> None:
    plan, given_inputs = first("local-three", tmp_path)
    observed = converged(plan, given_inputs.observed)
    installed = tuple(replace(p, damaged=("beta.gguf",)) if p.manifest.id == "beta" else p for p in observed.installed)
    again = make_plan(replace(given_inputs, observed=replace(observed, installed=installed)))
    assert [(c.address, c.action, c.reason) for c in again.changes if c.action != "noop"] == [
        ("payload.llama-cpp.beta", "link", "payload_damaged"),
        ("server.beta", "restart", "payload_changed"),
    ]


def test_requested_restart_is_a_planned_action(tmp_path: Path) -> None:
    plan, given_inputs = first("local-three", tmp_path)
    settled = replace(given_inputs, observed=converged(plan, given_inputs.observed))
    again = make_plan(replace(settled, options=PlanOptions(restart=("server.alpha",))))
    assert [(c.address, c.action, c.reason) for c in again.changes if c.action != "noop"] == [
        ("server.alpha", "restart", "requested")
    ]
    assert after(again, settled).summary.changes == 0


def test_a_source_that_the_snapshot_never_saw_is_not_refused_for_a_guessed_size(tmp_path: Path) -> None:
    _, given_inputs = first("local-three", tmp_path)
    facts = replace(given_inputs.observed.facts, memory_total_bytes=4 << 30, memory_available_bytes=4 << 30)
    plan = make_plan(replace(given_inputs, observed=replace(given_inputs.observed, sources={}, facts=facts)))
    assert {c.action for c in plan.changes if c.address.startswith("server.")} == {"create"}

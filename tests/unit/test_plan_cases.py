"""Every plan case: its text, its command lines, and the rules that hold for all of them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from gezelctl.plan.render_json import plan_from_json, plan_json
from gezelctl.plan.render_text import render_text
from gezelctl.plan.types import Plan
from tests.plancase import CASES, PlanCase, after

FILES = sorted(CASES.glob("*.yaml"))


def shown(title: str, plan: Plan) -> str:
    """What a snapshot holds: the text of the plan and the command line and files of each launch."""
    parts = [f"## {title}", render_text(plan, width=100)]
    for spec in plan.launches:
        parts.append(f"$ {shlex.join((spec.program, *spec.argv))}")
        parts += [f"{f.path}:\n{f.content}" for f in spec.config_files]
    return "\n".join(parts)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_case_reads_as_recorded(path: Path, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    assert "\n".join(shown(t, p) for t, p, _ in PlanCase(path).plans(tmp_path)) == snapshot


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_plan_after_its_own_apply_is_empty(path: Path, tmp_path: Path) -> None:
    for title, plan, given in PlanCase(path).plans(tmp_path):
        if not plan.applyable or any(c.reason == "engine_missing" for c in plan.changes):
            continue
        again = after(plan, given)
        assert again.summary.changes == 0, title


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_equal_inputs_give_equal_bytes_and_json_reads_back(path: Path, tmp_path: Path) -> None:
    first = [plan_json(p) for _, p, _ in PlanCase(path).plans(tmp_path)]
    second = [plan_json(p) for _, p, _ in PlanCase(path).plans(tmp_path)]
    assert first == second
    assert [plan_json(plan_from_json(text)) for text in first] == first

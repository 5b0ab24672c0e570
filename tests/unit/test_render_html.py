"""The HTML report: recorded once, and no foreign text becomes markup."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from gezelctl.cli.data import data_text
from gezelctl.plan.render_html import render_html
from tests.plancase import CASES, PlanCase

TEMPLATE = data_text("templates/plan.html.j2")


@pytest.mark.parametrize("name", ["local-three", "blocked"])
def test_report_reads_as_recorded(name: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    plans = list(PlanCase(CASES / f"{name}.yaml").plans(tmp_path))
    assert render_html(plans[-1][1], TEMPLATE) == snapshot


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><img src=x>', "{{ 7 * 7 }}", "</table>"])
def test_foreign_text_stays_text(hostile: str, tmp_path: Path) -> None:
    _, plan, _ = next(PlanCase(CASES / "local-three.yaml").plans(tmp_path))
    change = replace(plan.changes[0], cause=hostile, address=f"payload.llama-cpp.{hostile}")
    page = render_html(replace(plan, host=hostile, changes=(change,)), TEMPLATE)
    assert "<script" not in page
    assert "<img" not in page
    assert "49" not in page.replace(plan.digest, "")
    assert page.count("</table>") == 1

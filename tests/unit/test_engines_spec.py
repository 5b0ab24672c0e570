"""Speculative decoding is resolved as the table says; the cases are data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gezelctl.engines.llama_cpp.spec import NEEDS_DRAFT, SpecRequest, needs_draft, resolve_spec

CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "engines" / "spec.yaml").read_text(encoding="utf-8")
)
TYPES = ["none", "draft-simple", "draft-mtp", "draft-dflash", "ngram-mod", "draft-simple,ngram-mod"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_table(case: dict[str, Any]) -> None:
    plan = resolve_spec(msgspec.convert(case["request"], SpecRequest))
    expected = {"n_max": None, **case["plan"]}
    found = {"types": list(plan.types), "draft_model": plan.draft_model, "n_max": plan.n_max}
    assert found == expected, plan
    assert len(plan.problems) == case.get("problems", 0), plan.problems


@given(
    base=st.fixed_dictionaries({}, optional={"type": st.sampled_from(TYPES), "nMax": st.integers(1, 9)}),
    overlay=st.none() | st.fixed_dictionaries({"type": st.sampled_from(TYPES)}),
    operator=st.none() | st.sampled_from(TYPES),
    sidecar=st.sampled_from(["", "/m/d.gguf"]),
    nextn=st.none() | st.integers(0, 1),
)
def test_no_plan_without_problems_lacks_its_drafter(
    base: dict[str, object], overlay: dict[str, object] | None, operator: str | None, sidecar: str, nextn: int | None
) -> None:
    table = {"byBackend": {"cpu": overlay}} if overlay else {}
    asked = SpecRequest(
        backend="cpu", base={**base, **table}, operator_type=operator, sidecar=sidecar, target_nextn=nextn
    )
    plan = resolve_spec(asked)
    if not plan.problems and needs_draft(plan.types):
        assert plan.draft_model
    if not any(name in NEEDS_DRAFT or name == "draft-mtp" for name in plan.types):
        assert not plan.draft_model
    if operator == "none":
        assert plan.types == ()

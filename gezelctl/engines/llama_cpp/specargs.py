"""The --spec-… part of the llama-server command line."""

from __future__ import annotations

from msgspec.structs import replace

from gezelctl.engines.launch import Choices, LaunchRequest
from gezelctl.engines.llama_cpp.builder import Builder
from gezelctl.engines.llama_cpp.spec import SpecPlan, resolve_spec
from gezelctl.engines.llama_cpp.specinput import spec_request
from gezelctl.engines.types import Value


def _located(plan: SpecPlan, request: LaunchRequest) -> SpecPlan:
    """A sidecar is named by its file in the payload; here its folder is known."""
    named = plan.draft_model
    return replace(plan, draft_model=f"{request.payload_dir}/{named}") if named and "/" not in named else plan


def put_spec(request: LaunchRequest, choices: Choices, builder: Builder) -> SpecPlan:
    """Put the --spec-… flags; a plan with problems puts none and reports them."""
    plan = _located(request.spec or resolve_spec(spec_request(request)), request)
    for note in plan.notes:
        builder.report.note(note)
    for problem in plan.problems:
        builder.report.error(problem.code, problem.field, problem.summary, problem.cure)
    if plan.types and not plan.problems:
        for name, flag, value in _wanted(plan):
            field = f"spec.{name}"
            choices.put(Value(field, value, plan.origin, place=request.server.places.get(field)))
            builder.value(flag, value, field)
    return plan


def _wanted(plan: SpecPlan) -> list[tuple[str, str, str | int]]:
    """(field, flag, value). Of the ngram algorithms only ngram-mod takes token counts, by flags of its own."""
    drafting = any(name.startswith("draft-") for name in plan.types)
    family = "--spec-draft" if drafting else "--spec-ngram-mod"
    found: list[tuple[str, str, str | int]] = [("type", "--spec-type", ",".join(plan.types))]
    if plan.draft_model:
        found.append(("draftModel", "--spec-draft-model", plan.draft_model))
    if drafting or "ngram-mod" in plan.types:
        counts = (("nMax", "n-max", plan.n_max), ("nMin", "n-min", plan.n_min))
        found += [(name, f"{family}-{word}", count) for name, word, count in counts if count is not None]
    return found

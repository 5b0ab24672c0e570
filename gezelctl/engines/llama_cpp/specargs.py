"""The --spec-… part of the llama-server command line."""

from __future__ import annotations

from msgspec.structs import replace

from gezelctl.engines.launch import Choices, LaunchRequest
from gezelctl.engines.llama_cpp.builder import Builder
from gezelctl.engines.llama_cpp.spec import SpecPlan, SpecRequest, resolve_spec
from gezelctl.engines.types import Value
from gezelctl.gguf.types import GgufSummary


def _nextn(gguf: GgufSummary | None) -> int | None:
    return None if gguf is None else gguf.integer("nextn_predict_layers")


def _spec_request(request: LaunchRequest) -> SpecRequest:
    wanted = request.server.spec
    draft = (wanted.draft_model if wanted else None) or ""
    is_path = "/" in draft or draft.endswith(".gguf")
    accelerator = request.server.backend.accelerator
    sidecar = next(
        (f for f in request.files if f.role == "draft" and accelerator in (f.backends or (accelerator,))), None
    )
    return SpecRequest(
        backend=accelerator,
        base=request.model.spec,
        operator_type=wanted.type if wanted else None,
        operator_draft=draft if is_path else request.drafts.get(draft, ""),
        unresolved_draft="" if is_path or not draft or draft in request.drafts else draft,
        operator_n_max=wanted.n_max if wanted else None,
        operator_n_min=wanted.n_min if wanted else None,
        sidecar=f"{request.payload_dir}/{sidecar.name}" if sidecar else "",
        drafts=request.drafts,
        target_nextn=_nextn(request.gguf),
        sidecar_nextn=_nextn(request.draft_gguf),
    )


def _located(plan: SpecPlan, request: LaunchRequest) -> SpecPlan:
    """The planner names a sidecar by its file in the payload; here its folder is known."""
    named = plan.draft_model
    return replace(plan, draft_model=f"{request.payload_dir}/{named}") if named and "/" not in named else plan


def put_spec(request: LaunchRequest, choices: Choices, builder: Builder) -> SpecPlan:
    """Put the --spec-… flags; a plan with problems puts none and reports them."""
    plan = _located(request.spec, request) if request.spec else resolve_spec(_spec_request(request))
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

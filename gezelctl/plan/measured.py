"""Planned memory beside what a start really took, and where the two are further apart than they may be."""

from __future__ import annotations

from gezelctl.engines.llama_cpp.context import ContextRequest, plan_context
from gezelctl.engines.llama_cpp.geometry import read_geometry
from gezelctl.engines.llama_cpp.layout import lay_out
from gezelctl.engines.llama_cpp.memory import Extras, estimate, mtp_context
from gezelctl.engines.llama_cpp.planner import LaunchAnswer, LaunchQuestion
from gezelctl.engines.llama_cpp.planner.settings import Settings
from gezelctl.engines.llama_cpp.planner.speculation import loads_mtp
from gezelctl.observe.types import MemoryReading, Observed
from gezelctl.plan.units import format_bytes
from gezelctl.store.types import PlannedMemory

WEIGHTS_TOLERANCE_PERCENT = 1
"""Alignment and small tensors; context must be equal, and compute is an upper bound (memory notes 13.8)."""


def planned_memory(question: LaunchQuestion, answer: LaunchAnswer) -> PlannedMemory | None:
    """What a launch should print of itself; None where the plan was not made from the file's own header."""
    found, gguf = answer.estimate, question.gguf
    if found is None or gguf is None or found.basis != "header":
        return None
    figures = found.figures
    weights, context = _draft_parts(question, answer)
    return PlannedMemory(
        architecture=gguf.architecture,
        weights_bytes=figures.weights_bytes + weights,
        context_bytes=figures.context_bytes + context,
        compute_bytes=figures.compute_bytes + figures.draft_bytes - weights - context,
        total_bytes=found.total_bytes,
        exact=read_geometry(gguf).exact,
    )


def _draft_parts(question: LaunchQuestion, answer: LaunchAnswer) -> tuple[int, int]:
    """(weights, context) of the draft model, or of the MTP context, which has no weights of its own."""
    found, gguf, draft = answer.estimate, question.gguf, question.draft_gguf
    if found is None or gguf is None or not found.figures.draft_bytes:
        return 0, 0
    unified = Settings(question).flag("kvUnified", default=False)
    request = ContextRequest(slot_tokens=found.context, slots=found.slots, unified=unified)
    if loads_mtp(answer.spec):
        rows = mtp_context(lay_out(gguf, request), Extras(prompt_cache_bytes=0))
        return 0, sum(row["context_bytes"] for row in rows.values())
    if draft is None:
        return 0, 0
    total = plan_context(request, 0).n_ctx
    own = estimate(draft, ContextRequest(n_ctx=total, slots=found.slots, unified=unified), Extras(prompt_cache_bytes=0))
    return own.weights_bytes, own.context_bytes


def measured_sums(reading: MemoryReading) -> tuple[int, int, int]:
    """(weights, context, compute with output) over host and devices, in bytes."""
    compute = sum(reading.compute_bytes.values()) + sum(reading.output_bytes.values())
    return sum(reading.weights_bytes.values()), sum(reading.context_bytes.values()), compute


def measured_total(reading: MemoryReading | None) -> int:
    """All buffers that the engine's log names, host and devices together; 0 when it was not read."""
    return sum(measured_sums(reading)) if reading else 0


def deviations(planned: PlannedMemory, reading: MemoryReading) -> tuple[str, ...]:
    """Where a start took other memory than planned, one phrase each with both numbers; () when all is as it must be."""
    weights, context, compute = measured_sums(reading)
    found = []
    if context and planned.exact and abs(context - planned.context_bytes) > reading.context_rounding_bytes:
        found.append(_both("context", context, planned.context_bytes))
    if weights and abs(weights - planned.weights_bytes) * 100 > planned.weights_bytes * WEIGHTS_TOLERANCE_PERCENT:
        found.append(_both("weights", weights, planned.weights_bytes))
    if compute > planned.compute_bytes:
        found.append(_both("compute", compute, planned.compute_bytes))
    return tuple(found)


def measured_note(question: LaunchQuestion, observed: Observed) -> tuple[str, ...]:
    """What the last start of this architecture on this build took beside its plan; () when none was measured."""
    digest = question.probe.digest if question.probe else ""
    key = f"{digest}/{question.gguf.architecture}" if question.gguf else ""
    found = observed.measured.get(key)
    if found is None:
        return ()
    planned = found.planned
    parts = (
        ("context", found.context_bytes, planned.context_bytes),
        ("weights", found.weights_bytes, planned.weights_bytes),
        ("compute", found.compute_bytes, planned.compute_bytes),
    )
    words = ", ".join(f"{what} {format_bytes(took)} (planned {format_bytes(said)})" for what, took, said in parts)
    return (f"measured on this build for {planned.architecture}, server {found.server}: {words}",)


def _both(what: str, measured: int, planned: int) -> str:
    if format_bytes(measured) == format_bytes(planned):
        return f"{what} took {measured} bytes, planned were {planned}"
    return f"{what} took {format_bytes(measured)}, planned were {format_bytes(planned)}"

"""All servers of a host planned for memory together, before any of them is rendered."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from gezelctl.catalog.servers import Resolved
from gezelctl.catalog.types import Model, Payload, PayloadFile
from gezelctl.engines.llama_cpp.planner import (
    Held,
    HostPlan,
    LaunchAnswer,
    LaunchQuestion,
    Running,
    decide,
    host_memory,
)
from gezelctl.engines.llama_cpp.planner.moe import launched_experts, planned_experts
from gezelctl.engines.llama_cpp.planner.placement import engine_names
from gezelctl.engines.llama_cpp.planner.refuse import DOES_NOT_FIT, TOGETHER
from gezelctl.engines.types import LaunchSpec, Scalar
from gezelctl.observe.types import EngineProbe, Observed, ServerFact
from gezelctl.plan.drafters import draft_digests, draft_paths, launched_spec, with_drafter
from gezelctl.plan.headers import companion_header, header
from gezelctl.plan.inputs import PlanInputs
from gezelctl.plan.measured import measured_total
from gezelctl.plan.payloads import effective_files, installed_of
from gezelctl.plan.records import recorded_launch
from gezelctl.plan.types import Capacity
from gezelctl.plan.units import format_bytes
from gezelctl.store.types import Starved

MEMORY_REFUSALS = frozenset({DOES_NOT_FIT, TOGETHER})
"""Refusals for want of memory; the others say that a launch is impossible as it is written."""
_HOST = "host"


class MemoryPlan(msgspec.Struct, frozen=True):
    """The launch planner's answers for the servers of a host, and what it was asked, both by server name."""

    host: HostPlan
    questions: dict[str, LaunchQuestion]
    answers: dict[str, LaunchAnswer]


def plan_memory(inputs: PlanInputs) -> MemoryPlan:
    """The launch planner's answer for every server of this host whose model is resolved, selected or not."""
    asked = {item.server.name: q for item in inputs.resolved if (q := _question(item, inputs))}
    held = _held(inputs)
    budget = inputs.desired.memory_budget_bytes
    plan = decide(tuple(asked.values()), host_memory(inputs.observed.facts, held, budget))
    return MemoryPlan(plan, asked, {answer.server: answer for answer in plan.answers})


def refusal_words(item: Resolved, answer: LaunchAnswer) -> tuple[str, str] | None:
    """(cause, cure) when a server does not fit: where it is set, and what would fit instead; None when it fits.

    This is not a finding about the file, which may be right for another host: the plan is refused, not invalid.
    """
    refusal = answer.refusal
    if refusal is None:
        return None
    rows = [
        f"{row.slots} x {row.context} tokens, {row.kv_cache}: {format_bytes(row.total_bytes)}" for row in refusal.table
    ]
    place = item.server.place(refusal.field)
    cause = f"{refusal.summary} ({place.short})" if place else refusal.summary
    return cause, refusal.cure + (f" It would fit as {'; '.join(rows)}." if rows else "")


def memory_capacity(plan: HostPlan, observed: Observed) -> tuple[Capacity, ...]:
    """Each memory pool of the host: measured use of our servers now, planned use, and what may be planned with."""
    now = sum(measured_total(f.memory) for f in observed.servers if f.process == "running")
    single = len(plan.pools) == 1
    return tuple(
        Capacity(
            resource=f"memory:{pool.pool}",
            before=now if single else 0,
            after=pool.planned_bytes,
            limit=pool.limit_bytes,
            fits=pool.planned_bytes <= pool.limit_bytes,
            basis="estimate",
        )
        for pool in plan.pools
        if pool.planned_bytes
    )


def _question(item: Resolved, inputs: PlanInputs) -> LaunchQuestion | None:
    if item.model is None or item.payload is None or any(d.severity == "error" for d in item.diagnostics):
        return None
    observed = inputs.observed
    files = effective_files(item.files, observed)
    probe = observed.engines.get(item.server.backend_name)
    usable = probe if probe and not probe.pending and not probe.error else None
    fact = observed.servers_by_name.get(item.server.name)
    weights = next((f for f in files if f.role in {"weights", "shard"}), None)
    anew = item.server.address in inputs.options.restart  # what restarts anyway need not stay as it is
    launch = (None if anew else _live_launch(fact)) or inputs.preferred.get(item.server.name)
    starved = observed.starved.get(f"{usable.digest}/{weights.sha256}") if usable and weights else None
    gguf = header(weights, item, observed)
    if gguf is None and not item.payload.approx_size_bytes and not any(f.size_bytes for f in files):
        return None  # a file that this observation has never seen: to refuse it for a guessed size helps nobody
    question = LaunchQuestion(
        server=item.server,
        model=_with_shape(item.model, item.payload, observed),
        payload=item.payload,
        files=files,
        probe=usable,
        gguf=gguf,
        draft_gguf=companion_header(next((f for f in files if f.role == "draft"), None), observed),
        mmproj_gguf=companion_header(next((f for f in files if f.role == "mmproj"), None), observed),
        drafts=draft_paths(item, observed, inputs.locations[item.server.name]),
        starved=starved,
        running=None if _starves(launch, starved) else _settled(launch, item, files, usable, observed),
    )
    return with_drafter(question, item, observed) if item.payload.engine == "llama-cpp" else question


def _with_shape(model: Model, payload: Payload, observed: Observed) -> Model:
    """An MLX model with what its config.json says of window and cache, where the catalog is silent."""
    if payload.engine != "mlx" or not observed.mlx_shapes:
        return model
    have = installed_of(payload, observed)
    folders = [have.path if have else "", *(f.origin.path for f in payload.files if f.origin.kind == "path")]
    shape = next((observed.mlx_shapes[folder] for folder in folders if folder in observed.mlx_shapes), None)
    if shape is None:
        return model
    return replace(
        model,
        context_window=model.context_window or shape.context_tokens,
        kv_bytes_per_token_f16=model.kv_bytes_per_token_f16 or shape.kv_bytes_per_token,
    )


def _starves(launch: LaunchSpec | None, starved: Starved | None) -> bool:
    """Whether a launch that was shown or saved is the one that ran out of device memory."""
    placed = planned_experts(launch.values) if launch else None
    return placed is not None and starved is not None and placed == launched_experts(starved)


def _settled(
    launch: LaunchSpec | None,
    item: Resolved,
    files: tuple[PayloadFile, ...],
    probe: EngineProbe | None,
    observed: Observed,
) -> Running | None:
    """How the server runs now, or was to be started: of worth for the same files on the same build."""
    if launch is None or probe is None or launch.engine_digest != probe.digest:
        return None
    if launch.payload != {f.name: f.sha256 for f in files} | draft_digests(launch, files, item, observed):
        return None
    return Running(values=planner_values(launch), spec_types=launched_spec(launch).types)


def planner_values(launch: LaunchSpec) -> dict[str, Scalar]:
    """The values of a launch that the planner chose."""
    return {v.name: v.value for v in launch.values if v.origin == "planner"}


def _live_launch(fact: ServerFact | None) -> LaunchSpec | None:
    return recorded_launch(fact.record) if fact and fact.record and fact.process == "running" else None


def _held(inputs: PlanInputs) -> Held:
    """What our running servers hold, which a new plan may use again; not those that it leaves running unplanned.

    Host weights are left out: they are mapped files, and the system already counts their pages as available.
    """
    cards = host_memory(inputs.observed.facts).cards
    gpu: dict[str, int] = {}
    ram = 0
    goes = inputs.options.prune or inputs.desired.prune
    wanted = {s.name for s in inputs.desired.servers}
    for fact in inputs.observed.servers:
        launch = _live_launch(fact)
        if launch is None or fact.memory is None or not (goes or fact.name in wanted):
            continue
        probe = inputs.observed.engines.get(launch.backend)
        names = dict(zip(engine_names(cards, probe.devices), cards, strict=False)) if probe else {}
        reading = fact.memory
        for kind in (reading.weights_bytes, reading.context_bytes, reading.compute_bytes, reading.output_bytes):
            for device, size in kind.items():
                if device in names:
                    gpu[names[device].id] = gpu.get(names[device].id, 0) + size
                elif device == _HOST and kind is not reading.weights_bytes:
                    ram += size
    return Held(gpu_bytes=gpu, ram_bytes=ram)

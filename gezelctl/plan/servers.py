"""What happens to each server: created, restarted, changed in place, left alone, kept, deleted or blocked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from gezelctl.catalog.servers import Resolved
from gezelctl.catalog.types import Payload
from gezelctl.config.diagnostics import Diagnostic
from gezelctl.engines.launch import LaunchRequest, Rendered, render
from gezelctl.engines.llama_cpp.planner import LaunchAnswer, LaunchQuestion
from gezelctl.engines.llama_cpp.upgrade import engine_changes
from gezelctl.engines.types import LaunchSpec, SecretEnv
from gezelctl.observe.types import EngineProbe, Observed, PortHolder, ServerFact
from gezelctl.plan.diff import diff_launch
from gezelctl.plan.drafters import draft_digests, draft_paths, launched_spec
from gezelctl.plan.headers import companion_header, header
from gezelctl.plan.inputs import Locations, PlanInputs
from gezelctl.plan.measured import measured_note, measured_total, planned_memory
from gezelctl.plan.memory import MEMORY_REFUSALS, refusal_words
from gezelctl.plan.payloads import effective_files, payload_address, source_problem
from gezelctl.plan.records import fingerprint, recorded_launch
from gezelctl.plan.types import Change, Field
from gezelctl.store.types import RunRecord


class ServerPlan(msgspec.Struct, frozen=True):
    """The change of one server (None = nothing to do), with the launch it would run and what was found on the way."""

    address: str
    change: Change | None
    launch: LaunchSpec | None
    diagnostics: tuple[Diagnostic, ...] = ()
    notes: tuple[str, ...] = ()
    lost: str = ""
    """What the launch goes without for having failed with it, "" for nothing."""


class _Verdict(msgspec.Struct, frozen=True):
    action: Literal["create", "update", "restart"]
    reason: str
    cause: str = ""
    fields: tuple[Field, ...] = ()


def plan_server(
    item: Resolved,
    inputs: PlanInputs,
    planned: Mapping[str, Change],
    answer: LaunchAnswer | None,
    question: LaunchQuestion | None = None,
) -> ServerPlan:
    """Decide one server.

    `planned` holds the engine and payload changes of this plan by address, `answer` what the launch planner says to
    `question`.
    """
    server = item.server
    depends = [planned[a] for a in _needed(item, item.payload) if a in planned] if item.payload else []
    stopped = _stopped(item, inputs, depends)
    if stopped:
        return ServerPlan(server.address, stopped, None, item.diagnostics)
    probe = inputs.observed.engines.get(server.backend_name)
    if probe is None or probe.pending:
        return _pending_engine(item, inputs, depends)
    refused = refusal_words(item, answer) if answer else None
    if refused and answer and answer.refusal:
        if answer.refusal.code not in MEMORY_REFUSALS or not _runs(item, inputs.observed):
            reason = "does_not_fit" if answer.refusal.code in MEMORY_REFUSALS else "invalid"
            blocked = _blocked(server.address, reason, *refused)
            return ServerPlan(server.address, blocked, None, item.diagnostics, answer.notes)
        answer = _as_it_runs(answer, item, inputs.observed)
    rendered = render_server(item, inputs, probe, answer)
    upgrade = _engine_changes(item, rendered, probe, inputs.observed)
    diagnostics = (*item.diagnostics, *rendered.diagnostics, *upgrade)
    if rendered.spec is None or any(d.severity == "error" for d in rendered.diagnostics):
        blocked = _invalid(server.address, rendered.diagnostics)
        return ServerPlan(server.address, blocked, None, diagnostics, rendered.notes)
    external = draft_digests(rendered.spec, effective_files(item.files, inputs.observed), item, inputs.observed)
    spec = replace(rendered.spec, payload={**rendered.spec.payload, **external})
    change = _change(item, spec, inputs, depends)
    if change and change.action != "blocked" and answer and answer.estimate:
        fact = _fact(server.name, inputs.observed)
        change = replace(
            change,
            memory_before_bytes=measured_total(fact.memory) if fact else 0,
            memory_after_bytes=answer.estimate.total_bytes,
            planned_memory=planned_memory(question, answer) if question else None,
        )
    known = measured_note(question, inputs.observed) if question else ()
    notes = tuple(dict.fromkeys((*(answer.notes if answer else ()), *rendered.notes, *known)))
    return ServerPlan(server.address, change, spec, diagnostics, notes, _lost(question, answer))


def _stopped(item: Resolved, inputs: PlanInputs, depends: Iterable[Change]) -> Change | None:
    """What blocks a server before its launch is looked at: no model, something it needs is blocked, its drafter."""
    address = item.server.address
    if item.payload is None or any(d.severity == "error" for d in item.diagnostics):
        return _invalid(address, item.diagnostics)
    for dependency in depends:
        if dependency.action == "blocked":
            cause = f"{dependency.address} is blocked: {dependency.cause}"
            return _blocked(address, dependency.reason, cause, dependency.cure)
    return _drafter_problem(item, inputs.observed)


def _engine_changes(
    item: Resolved, rendered: Rendered, probe: EngineProbe, observed: Observed
) -> tuple[Diagnostic, ...]:
    """Before a server moves to another engine build: every flag that breaks, and every default that changes."""
    fact = _fact(item.server.name, observed)
    old = recorded_launch(fact.record) if fact and fact.record else None
    if old is None or old.engine != "llama-cpp" or probe.engine != old.engine or old.engine_digest == probe.digest:
        return ()
    known = observed.former_flags.get(old.engine_digest, ())
    after = rendered.spec.argv if rendered.spec else ()
    cure = "The command line of the plan is made for the new build; set what you rely on in engineOptions or extraArgs."
    return tuple(
        Diagnostic(
            code="E0315",
            summary=summary,
            cure=cure,
            severity="warning",
            place=item.server.place("backend"),
            address=item.server.address,
        )
        for summary in engine_changes(old.argv, after, probe, known)
    )


def _needed(item: Resolved, payload: Payload) -> tuple[str, ...]:
    """Addresses of what a server cannot start without."""
    named = item.drafter.payload if item.drafter else None
    return (
        f"engine.{item.server.backend_name}",
        payload_address(payload),
        *([payload_address(named)] if named else []),
    )


def _drafter_problem(item: Resolved, observed: Observed) -> Change | None:
    """A draft model given by its path that cannot be used."""
    if item.drafter is None or item.drafter.payload is not None:
        return None
    path = item.drafter.name
    found = source_problem(item.drafter.files[0], observed.sources.get(path))
    place = item.server.place("spec.draftModel")
    where = f" ({place.short})" if place else ""
    cure = found.cure.replace("source.path", "spec.draftModel") if found else ""
    return _blocked(item.server.address, found.reason, f"{found.cause}{where}", cure) if found else None


def _lost(question: LaunchQuestion | None, answer: LaunchAnswer | None) -> str:
    """The drafter that is left out because it took this build down."""
    if question is None or answer is None or not question.broken_drafter or answer.spec.draft_model:
        return ""
    return f"runs without its draft model, which took this engine build down: {question.broken_drafter}"


def _as_it_runs(answer: LaunchAnswer, item: Resolved, observed: Observed) -> LaunchAnswer:
    """What a running server was started with, where the host has no room for it any more."""
    fact = _fact(item.server.name, observed)
    launch = recorded_launch(fact.record) if fact and fact.record else None
    if launch is None:
        return answer
    values = tuple(v for v in launch.values if v.origin == "planner")
    return replace(answer, values=values, spec=launched_spec(launch))


def render_server(item: Resolved, inputs: PlanInputs, probe: EngineProbe, answer: LaunchAnswer | None) -> Rendered:
    """The launch of one resolved server on the observed host, with what the launch planner chose for it."""
    if item.payload is None or item.model is None:
        raise ValueError(f"{item.server.address} is not resolved")
    place: Locations = inputs.locations[item.server.name]
    files = effective_files(item.files, inputs.observed)
    weights = next((f for f in files if f.role in {"weights", "shard"}), None)
    draft = next((f for f in files if f.role == "draft"), None)
    return render(
        LaunchRequest(
            server=item.server,
            model=item.model,
            payload=item.payload,
            files=files,
            payload_dir=place.payload_dir,
            digests={f.name: f.sha256 for f in files},
            gguf=header(weights, item, inputs.observed),
            draft_gguf=companion_header(draft, inputs.observed),
            mmproj_gguf=companion_header(next((f for f in files if f.role == "mmproj"), None), inputs.observed),
            probe=probe,
            slots_dir=place.slots_dir,
            config_path=place.config_path,
            drafts=draft_paths(item, inputs.observed, place),
            planned=answer.values if answer else (),
            spec=answer.spec if answer and item.payload.engine == "llama-cpp" else None,
        )
    )


def plan_leftover(fact: ServerFact, *, prune: bool, destroy: bool) -> Change | None:
    """A server of ours that models.yaml no longer names: kept, or deleted under --prune."""
    if fact.record is None:
        return None
    state = f"running as pid {fact.pid}" if fact.process == "running" else "not running"
    if prune or destroy:
        return Change(
            address=f"server.{fact.name}",
            action="delete",
            reason="requested" if destroy else "not_in_config",
            cause=state if destroy else f"not in models.yaml; {state}",
            observed_fingerprint=fingerprint(fact),
        )
    return Change(
        address=f"server.{fact.name}",
        action="keep",
        reason="prune_off",
        cause=f"ours and {state}, but not in models.yaml: kept, since pruning is off",
        cure="remove it with --prune",
    )


def _runs(item: Resolved, observed: Observed) -> bool:
    """A server that runs is never blocked for memory: it has what it needs, whatever else the host does by now."""
    fact = _fact(item.server.name, observed)
    return fact is not None and fact.process == "running"


def _invalid(address: str, diagnostics: tuple[Diagnostic, ...]) -> Change:
    """Blocked by the first error that was found; all of them are shown at their places."""
    first = next((d for d in diagnostics if d.severity == "error"), None)
    return _blocked(
        address, "invalid", first.summary if first else "nothing can be launched", first.cure if first else ""
    )


def _blocked(address: str, reason: str, cause: str, cure: str = "") -> Change:
    return Change(address=address, action="blocked", reason=reason, cause=cause, cure=cure)


def _pending_engine(item: Resolved, inputs: PlanInputs, depends: list[Change]) -> ServerPlan:
    fact = _fact(item.server.name, inputs.observed)
    running = fact is not None and fact.process == "running"
    change = Change(
        address=item.server.address,
        action="restart" if running else "create",
        reason="engine_missing",
        cause="the engine is fetched first; flags are checked against it then",
        depends_on=tuple(d.address for d in depends),
        observed_fingerprint=fingerprint(fact),
    )
    return ServerPlan(item.server.address, change, None, item.diagnostics)


def _fact(name: str, observed: Observed) -> ServerFact | None:
    return observed.servers_by_name.get(name)


def _change(item: Resolved, spec: LaunchSpec, inputs: PlanInputs, depends: list[Change]) -> Change | None:
    observed = inputs.observed
    fact = _fact(item.server.name, observed)
    conflict = _port_conflict(item, spec, fact, inputs)
    if conflict:
        return conflict
    missing = _missing_secret(item.server.name, spec, observed)
    if missing:
        cause = f"the secret for {missing.name} cannot be read from {_secret_place(missing)}"
        return _blocked(item.server.address, "secret_missing", cause, "set it on the host")
    verdict = _verdict(item, spec, fact, inputs)
    payload = next((d for d in depends if d.address.startswith("payload.")), None)
    if verdict is None and payload:
        verdict = _Verdict("restart", "payload_changed", payload.cause)
    if verdict is None:
        return None
    action, fields = verdict.action, verdict.fields
    record = fact.record if fact else None
    return Change(
        address=item.server.address,
        action=action,
        reason=verdict.reason,
        cause=verdict.cause,
        fields=fields,
        unchanged_count=max(0, len(spec.values) - len(fields)) if action in {"restart", "update"} else 0,
        depends_on=tuple(d.address for d in depends),
        downtime_s=_downtime(action, record),
        launch=spec,
        argv_before=old.argv if (old := recorded_launch(record) if record else None) else (),
        observed_fingerprint=fingerprint(fact),
    )


def _verdict(item: Resolved, spec: LaunchSpec, fact: ServerFact | None, inputs: PlanInputs) -> _Verdict | None:
    """What to do with one server; None when nothing changes."""
    if fact is None or fact.record is None:
        return _Verdict("create", "not_present", "")
    record = fact.record
    if fact.process != "running":
        gone = (
            f"recorded as pid {record.pid}, which is no longer running" if record.pid else "its start was interrupted"
        )
        return _Verdict("create", "process_gone", gone)
    old = recorded_launch(record)
    if old is None:
        return _Verdict("restart", "spec_changed", "the run record is from an incompatible version")
    macs = {k.partition("/")[2]: v for k, v in inputs.observed.secrets.items() if k.startswith(f"{spec.server}/")}
    fields = diff_launch(old, spec, old_macs=record.secret_macs, new_macs=macs)
    if item.server.address in inputs.options.restart:
        return _Verdict("restart", "requested", "asked for with --restart", fields)
    if any(f.effect != "live" for f in fields):
        names = [f.path for f in fields if f.effect != "live"]
        return _Verdict(
            "restart", "needs_restart", f"{', '.join(names[:4])} differ{'s' if len(names) == 1 else ''}", fields
        )
    if fact.live and fact.live.health == "Failed":
        return _Verdict("restart", "unhealthy", fact.live.message or "it answers, but does not serve", fields)
    if not record.proved:
        return _Verdict("update", "unproven", "started, but not yet proven to serve", fields)
    if fields:
        return _Verdict("update", "spec_changed", "changes without a restart", fields)
    return None


def _port_conflict(item: Resolved, spec: LaunchSpec, fact: ServerFact | None, inputs: PlanInputs) -> Change | None:
    """The wanted port is held by somebody else: a foreign process, or a server of ours that this plan leaves there."""
    holder = next((p for p in inputs.observed.ports if p.port == spec.port), None)
    if holder is None or holder.server == item.server.name:
        return None
    if fact and fact.process == "running" and holder.pid == fact.pid:
        return None
    if not holder.server:
        return _blocked(item.server.address, "port_taken", *_foreign(holder))
    options, other = inputs.options, f"server.{holder.server}"
    wanted = any(s.name == holder.server for s in inputs.desired.servers)
    if options.selects(other) if wanted else options.prune or inputs.desired.prune:
        return None  # it leaves the port in this very plan
    cause = f"port {spec.port} is held by {other}, which this plan leaves running"
    cure = f"select {other} too" if wanted else "let it go with --prune, or choose another port"
    return _blocked(item.server.address, "port_taken", cause, cure)


def _foreign(holder: PortHolder) -> tuple[str, str]:
    """(cause, cure) for a port that no server of this stack's records holds."""
    if holder.started_as:
        cause = f"port {holder.port} is held by pid {holder.pid}, {holder.started_as}, whose run record is not here"
        return cause, f"if no other state folder keeps it, stop it with kill {holder.pid}; or choose another port"
    who = f"pid {holder.pid} ({holder.command})" if holder.pid else "a process of another user"
    return f"port {holder.port} is held by {who}", "stop that process or choose another port"


def _missing_secret(name: str, spec: LaunchSpec, observed: Observed) -> SecretEnv | None:
    """The first secret that was looked for on the host and could not be read."""
    return next((s for s in spec.secret_env if observed.secrets.get(f"{name}/{s.name}") == "missing"), None)


def _secret_place(secret: SecretEnv) -> str:
    return f"environment variable {secret.from_env}" if secret.from_env else f"file {secret.from_file}"


def _downtime(action: str, record: RunRecord | None) -> int | None:
    if action == "update":
        return 0
    if action == "create":
        return None
    return max(1, round(record.load_seconds)) if record and record.load_seconds else None

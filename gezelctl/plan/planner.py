"""(desired, catalog, observed) → Plan. Pure: equal inputs give equal bytes, and nothing here can change a host."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from gezelctl.catalog.servers import Resolved
from gezelctl.config.diagnostics import Diagnostic
from gezelctl.config.model import Backend
from gezelctl.config.redact import public_url
from gezelctl.observe.types import EngineProbe, Observed
from gezelctl.plan.capacity import disk_capacity
from gezelctl.plan.devices import with_engine_devices
from gezelctl.plan.inputs import PlanInputs
from gezelctl.plan.memory import memory_capacity, plan_memory
from gezelctl.plan.payloads import PayloadNeed, needs, plan_payload
from gezelctl.plan.render_json import plan_digest
from gezelctl.plan.servers import ServerPlan, plan_leftover, plan_server
from gezelctl.plan.types import FORMAT_VERSION, Capacity, Change, Decision, Plan, Summary


def make_plan(inputs: PlanInputs) -> Plan:
    """The ordered, explained list of changes from the observed to the desired state of one host."""
    named = (with_engine_devices(r, inputs.observed) for r in inputs.resolved)
    resolved = tuple(sorted(named, key=lambda r: r.server.name))
    inputs = replace(inputs, resolved=resolved)
    selected = () if inputs.options.destroy else tuple(r for r in resolved if inputs.options.selects(r.server.address))
    before: list[Change] = [*_engines(selected, inputs.observed), *_payloads(selected, inputs)]
    by_address = {c.address: c for c in before}
    memory = plan_memory(inputs)
    servers = [
        plan_server(r, inputs, by_address, memory.answers.get(r.server.name), memory.questions.get(r.server.name))
        for r in selected
    ]
    changes = [*before, *(s.change for s in servers if s.change), *_leftovers(inputs)]
    idle = [
        Change(address=s.address, action="noop", reason="in_sync", launch=s.launch) for s in servers if not s.change
    ]
    pools = memory_capacity(memory.host, inputs.observed) if selected else ()
    capacity = (*disk_capacity(changes, inputs.observed), *pools)
    return _plan(inputs, (*changes, *idle), servers, capacity, _diagnostics(selected, servers))


def _plan(
    inputs: PlanInputs,
    changes: tuple[Change, ...],
    servers: Iterable[ServerPlan],
    capacity: tuple[Capacity, ...],
    diagnostics: tuple[Diagnostic, ...],
) -> Plan:
    state, options = inputs.observed.state, inputs.options
    stopped = any(c.action == "blocked" for c in changes) or any(d.severity == "error" for d in diagnostics)
    return Plan(
        format_version=FORMAT_VERSION,
        kind="Plan",
        tool=inputs.tool,
        stack=inputs.desired.stack,
        host=inputs.desired.host,
        digest=plan_digest(changes),
        source=inputs.source,
        against=inputs.against,
        lineage=state.lineage if state else "",
        serial=state.serial if state else 0,
        complete=options.complete,
        applyable=not stopped and all(c.fits for c in capacity),
        summary=summarise(changes),
        changes=changes,
        capacity=capacity,
        diagnostics=diagnostics,
        decisions=tuple(
            Decision(address=s.address, values=s.launch.values, notes=s.notes, lost=s.lost) for s in servers if s.launch
        ),
        only=options.only,
        excluded=options.excluded,
        restart=options.restart,
        prune=options.prune,
    )


def summarise(changes: Iterable[Change]) -> Summary:
    """Counts and sums over changes; every view and the exit code read this."""
    listed = tuple(changes)

    def count(*actions: str) -> int:
        return sum(c.action in actions for c in listed)

    return Summary(
        create=count("create"),
        update=count("update"),
        restart=count("restart"),
        delete=count("delete"),
        fetch=count("fetch"),
        link=count("link"),
        noop=count("noop"),
        kept=count("keep"),
        blocked=count("blocked"),
        download_bytes=sum(c.download_bytes for c in listed),
        link_bytes=sum(c.link_bytes for c in listed),
        downtime_s=sum(c.downtime_s or 0 for c in listed if c.action == "restart"),
    )


def _engines(selected: Iterable[Resolved], observed: Observed) -> list[Change]:
    used = {r.server.backend_name: r.server.backend for r in selected}
    return [c for name in sorted(used) if (c := _engine(name, used[name], observed.engines.get(name)))]


def _engine(name: str, backend: Backend, probe: EngineProbe | None) -> Change | None:
    address = f"engine.{name}"
    if probe is None:
        return Change(
            address=address,
            action="blocked",
            reason="engine_unknown",
            cause="this backend was not observed",
            cure="take a new snapshot on the host with the present models.yaml",
        )
    if probe.pending:
        url = public_url(backend.archive.url) if backend.archive else "its archive"
        cause = f"not unpacked on this host; from {url}"
        return Change(address=address, action="fetch", reason="engine_missing", cause=cause)
    if probe.error:
        summary, _, cure = probe.message.partition("\n")
        return Change(address=address, action="blocked", reason=probe.error, cause=summary, cure=cure.strip())
    return None


def _payloads(selected: tuple[Resolved, ...], inputs: PlanInputs) -> list[Change]:
    store = inputs.desired.store
    found: list[PayloadNeed] = list(needs(selected, inputs.observed))
    return [c for need in found if (c := plan_payload(need, inputs.observed, store))]


def _leftovers(inputs: PlanInputs) -> list[Change]:
    wanted = {s.name for s in inputs.desired.servers}
    options = inputs.options
    if options.destroy:
        facts = [f for f in inputs.observed.servers if options.selects(f"server.{f.name}")]
    elif options.complete:
        facts = [f for f in inputs.observed.servers if f.name not in wanted]
    else:
        facts = []
    prune = options.prune or inputs.desired.prune
    return [c for f in facts if (c := plan_leftover(f, prune=prune, destroy=options.destroy))]


def _diagnostics(selected: tuple[Resolved, ...], servers: Iterable[ServerPlan]) -> tuple[Diagnostic, ...]:
    found = [d for s in servers for d in s.diagnostics]
    found += _version_conflicts(selected)
    unique = {(d.code, d.summary, d.place): d for d in found}
    return tuple(sorted(unique.values(), key=lambda d: d.sort_key))


def _version_conflicts(selected: Iterable[Resolved]) -> list[Diagnostic]:
    """One payload folder holds one version: two servers that pin different ones cannot both be right."""
    first: dict[str, Resolved] = {}
    found = []
    for item in selected:
        if item.payload is None:
            continue
        key = f"{item.payload.engine}/{item.payload.model_id}"
        other = first.setdefault(key, item)
        if other.payload and other.payload.version != item.payload.version:
            found.append(
                Diagnostic(
                    code="E0401",
                    summary=f"{item.payload.model_id} is wanted at {other.payload.version} by {other.server.address} "
                    f"and at {item.payload.version} here",
                    cure="pin one version for both servers",
                    place=item.server.place("model"),
                    address=item.server.address,
                )
            )
    return found

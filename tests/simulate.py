"""A host after an apply, without one: what the planner would observe had every change of a plan been carried out."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from gezelctl.observe.types import Live, Observed, ServerFact
from gezelctl.plan.types import Change, Plan
from gezelctl.store.types import InstalledFile, InstalledManifest, InstalledPayload, RunRecord


def converged(plan: Plan, observed: Observed) -> Observed:
    """`observed` with every change of `plan` carried out and every server ready."""
    installed = {(p.manifest.engine, p.manifest.id): p for p in observed.installed}
    servers = {s.name: s for s in observed.servers}
    for index, change in enumerate(plan.changes):
        kind, _, rest = change.address.partition(".")
        if kind == "payload" and change.action in {"fetch", "link"}:
            engine, _, model_id = rest.partition(".")
            installed[engine, model_id] = _install(change, engine, model_id, observed)
        elif kind == "server" and change.action == "delete":
            servers.pop(rest, None)
        elif kind == "server" and change.launch and change.action in {"create", "restart", "update"}:
            servers[rest] = _start(change, 1000 + index, observed)
    return replace(
        observed,
        installed=tuple(installed[k] for k in sorted(installed)),
        servers=tuple(servers[k] for k in sorted(servers)),
    )


def _install(change: Change, engine: str, model_id: str, observed: Observed) -> InstalledPayload:
    files = tuple(
        InstalledFile(name=a.file.name, role=a.file.role, sha256=a.file.sha256, size_bytes=a.size_bytes)
        for a in change.files
    )
    header = next((observed.sources[a.source].gguf for a in change.files if a.source in observed.sources), None)
    manifest = InstalledManifest(
        engine=engine,
        id=model_id,
        name=model_id,
        catalog_version="",
        fingerprint="",
        files=files,
        installed_at="2026-01-01T00:00:00Z",
        gguf=header,
    )
    return InstalledPayload(path=f"{observed.store_path}/models/{engine}/{model_id}", manifest=manifest)


def _start(change: Change, pid: int, observed: Observed) -> ServerFact:
    if change.launch is None:
        raise ValueError(f"{change.address} has no launch")
    name = change.launch.server
    macs = {k.partition("/")[2]: v for k, v in observed.secrets.items() if k.startswith(f"{name}/")}
    record = RunRecord(
        server=name,
        token="t" * 32,
        launch=msgspec.Raw(msgspec.json.encode(change.launch)),
        pid=pid,
        process_started=1.0,
        started_at="2026-01-01T00:00:00Z",
        proved=True,
        load_seconds=2.5,
        secret_macs=macs,
    )
    return ServerFact(name=name, record=record, process="running", pid=pid, live=Live(health="Ready"))

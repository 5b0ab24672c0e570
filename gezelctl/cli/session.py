"""From the command line's words to planner inputs: read, select, resolve, observe. No policy of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from gezelctl import __version__
from gezelctl.catalog.resolve import resolve_servers
from gezelctl.catalog.servers import Resolved
from gezelctl.config.desired import HostDesired
from gezelctl.config.loader import LoadedConfig, load_models
from gezelctl.config.select import for_host
from gezelctl.errors import UsageFault
from gezelctl.observe.types import Observed, Snapshot
from gezelctl.plan.inputs import Locations, PlanInputs, PlanOptions
from gezelctl.plan.planner import make_plan
from gezelctl.plan.types import Against, Plan, SourceFile
from gezelctl.store.layout import Paths, default_paths

TOOL = f"gezelctl {__version__}"


@dataclass(frozen=True)
class Session:
    """One host of one configuration, with everything resolved that needs no look at the host's state."""

    loaded: LoadedConfig
    desired: HostDesired
    resolved: tuple[Resolved, ...]
    paths: Paths

    @property
    def source(self) -> tuple[SourceFile, ...]:
        return tuple(SourceFile(path=path, sha256=digest) for path, digest in self.loaded.files)

    @property
    def is_here(self) -> bool:
        """Whether the selected host is the one that this runs on."""
        return self.desired.host == this_host()


def this_host() -> str:
    """The name that --host defaults to: this host's, without a domain."""
    from gezelctl.observe.facts import host_name

    return host_name()


def open_session(files: Sequence[str], host: str | None, *, snapshot: Snapshot | None = None) -> Session:
    """Read, check and select. With a snapshot, paths count from where models.yaml stands on that host.

    Raises InvalidConfig with all findings.
    """
    loaded = load_models(files)
    if snapshot and snapshot.base_dir:
        desired = for_host(loaded, host or snapshot.host, home=snapshot.home or None, base_dir=Path(snapshot.base_dir))
    else:
        desired = for_host(loaded, host or (snapshot.host if snapshot else this_host()))
    resolved = resolve_servers(desired)
    return Session(loaded, desired, resolved, default_paths(desired.stack, desired.store.path, os.environ))


def now() -> str:
    """RFC 3339, UTC, seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def observe_here(session: Session, *, offline: bool = True) -> Observed:
    """Look at this host; only reads. Unless `offline`, headers of files to be downloaded are read from their server."""
    from gezelctl.observe.observer import observe

    return observe(session.desired, session.resolved, session.paths, offline=offline)


def live_plan(
    session: Session,
    options: PlanOptions,
    observed: Observed | None = None,
    *,
    offline: bool = True,
    reviewed: Plan | None = None,
) -> Plan:
    """The plan for this host as it is now, or as `observed`; `offline` as for `observe_here`.

    What a `reviewed` plan chose is kept where it still fits.
    """
    seen = observed or observe_here(session, offline=offline)
    given = inputs(session, options, seen, Against(kind="live", seen=now()))
    if reviewed:
        given = replace(given, preferred={spec.server: spec for spec in reviewed.launches})
    return make_plan(given)


def snapshot_plan(session: Session, options: PlanOptions, snapshot: Snapshot, path: str) -> Plan:
    """The plan for the host as a snapshot saw it; `age_s` is how old it is now."""
    if snapshot.stack != session.desired.stack:
        raise UsageFault(
            f"{path} is a snapshot of stack {snapshot.stack}, the configuration is of {session.desired.stack}",
            cure="take the snapshot with the same models.yaml",
        )
    if snapshot.host != session.desired.host:
        raise UsageFault(
            f"{path} is a snapshot of host {snapshot.host}, the plan is for {session.desired.host}",
            cure=f"pass --host {snapshot.host}",
        )
    age = datetime.now(UTC) - datetime.fromisoformat(snapshot.observed_at)
    against = Against(
        kind="snapshot", seen=snapshot.observed_at, path=Path(path).name, age_s=max(0, int(age.total_seconds()))
    )
    return make_plan(inputs(session, options, snapshot.observed, against))


def inputs(session: Session, options: PlanOptions, observed: Observed, against: Against) -> PlanInputs:
    """Planner inputs; paths are those of the observed host, which need not be this one.

    Raises UsageFault for an address in `options` that no server here has.
    """
    _require_known(session, options, observed)
    paths = Paths(
        store=Path(observed.store_path or session.paths.store),
        state=Path(observed.state_path or session.paths.state),
        cache=session.paths.cache,
    )
    return PlanInputs(
        desired=session.desired,
        resolved=session.resolved,
        observed=observed,
        locations={r.server.name: _locations(r, paths) for r in session.resolved},
        options=options,
        source=session.source,
        against=against,
        tool=TOOL,
    )


def _require_known(session: Session, options: PlanOptions, observed: Observed) -> None:
    """A typing error in --only, --except or --restart must not look like a plan without changes."""
    known = sorted({s.address for s in session.desired.servers} | {f"server.{s.name}" for s in observed.servers})
    for address in (*options.only, *options.excluded, *options.restart):
        if address not in known:
            import difflib

            near = difflib.get_close_matches(address, known, n=1)
            cure = f"Did you mean {near[0]}?" if near else f"Servers here: {', '.join(known) or 'none'}."
            raise UsageFault(f"{address} is no server of stack {session.desired.stack} on this host", cure=cure)


def _locations(item: Resolved, paths: Paths) -> Locations:
    name = item.server.name
    folder = str(paths.payload_dir(item.payload.engine, item.payload.model_id)) if item.payload else ""
    draft = item.drafter.payload if item.drafter else None
    return Locations(
        payload_dir=folder,
        slots_dir=str(paths.slots(name)),
        config_path=str(paths.config(name)),
        draft_dir=str(paths.payload_dir(draft.engine, draft.model_id)) if draft else "",
    )

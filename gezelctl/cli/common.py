"""What several commands share: making the output, planning against what was asked for, the exit code of a plan."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gezelctl.cli.output import Output
from gezelctl.cli.session import Session, live_plan, observe_here, open_session, snapshot_plan
from gezelctl.config.diagnostics import InvalidConfig
from gezelctl.errors import ExitCode, UsageFault
from gezelctl.plan.inputs import PlanOptions
from gezelctl.plan.types import Plan
from gezelctl.plan.units import format_duration, format_time

DAY_S = 86_400
_SKEW_S = 60
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": DAY_S}


def make_output(options: dict[str, Any], *, yes: bool = False) -> Output:
    """An Output from the keyword arguments of `output_options`."""
    return Output(
        color=options["color"],
        progress=options["progress"],
        quiet=options["quiet"],
        verbose=options["verbose"],
        no_input=options["no_input"],
        yes=yes,
    )


def parse_duration(text: str) -> float:
    """Seconds of `30s`, `10m`, `24h`, `7d` or a bare number. Raises UsageFault."""
    unit = _UNITS.get(text[-1:], 0)
    number = text[:-1] if unit else text
    try:
        seconds = float(number) * (unit or 1)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageFault(f"{text} is not a duration", cure="Write for example 30s, 10m or 24h.")
    return seconds


def plan_for(
    files: tuple[str, ...],
    host: str | None,
    against: str,
    *,
    options: PlanOptions,
    output: Output,
    max_age_s: float,
    offline: bool = True,
) -> tuple[Session, Plan]:
    """The plan against the live host or a snapshot file.

    Warns of an old snapshot, of what could not be observed, and of what the file itself warns of.
    """
    kind, _, path = against.partition("=")
    if kind == "live" and not path:
        session = open_session(files, host)
        if host and not session.is_here:
            output.warning(f"planning {session.desired.host} against this host's state, since --against is live")
        observed = observe_here(session, offline=offline)
        plan = live_plan(session, options, observed)
    elif kind == "snapshot" and path:
        from gezelctl.observe.snapshot import read_snapshot

        snapshot = read_snapshot(Path(path))
        session = open_session(files, host, snapshot=snapshot)
        observed = snapshot.observed
        plan = snapshot_plan(session, options, snapshot, path)
        _warn_of_age(output, plan, max_age_s)
    else:
        raise UsageFault(f"--against {against}: not understood", cure="Write live or snapshot=FILE.")
    for problem in observed.problems:
        output.warning(problem)
    output.diagnostics(session.loaded.warnings)
    return session, plan


def _warn_of_age(output: Output, plan: Plan, max_age_s: float) -> None:
    """A snapshot that is too old, or of a time that has not come: either way the host may be another by now."""
    age = plan.against.age_s
    if age is not None and age > max_age_s:
        limit = format_duration(max_age_s)
        output.warning(f"the snapshot is {format_duration(age)} old, --max-age is {limit}: the host may differ by now")
    if (datetime.fromisoformat(plan.against.seen) - datetime.now(UTC)).total_seconds() > _SKEW_S:
        seen = format_time(plan.against.seen)
        output.warning(f"the snapshot is of {seen}, which is still to come: the host's clock or this one is wrong")


def require_valid(plan: Plan) -> None:
    """Raises InvalidConfig when the plan found errors in the configuration or catalog."""
    if any(d.severity == "error" for d in plan.diagnostics):
        raise InvalidConfig(plan.diagnostics)


def plan_exit_code(plan: Plan, *, detailed: bool) -> ExitCode:
    """0, or 2 for changes under --detailed-exitcode; 7 when something is blocked or does not fit."""
    if not plan.applyable:
        return ExitCode.REFUSED
    return ExitCode.CHANGES if detailed and plan.summary.changes else ExitCode.OK

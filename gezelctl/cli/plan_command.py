"""`gezelctl plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gezelctl.cli.common import make_output, parse_duration, plan_exit_code, plan_for
from gezelctl.cli.options import ADDRESS, chosen_files, file_options, narrowing_options, offline_option, output_options
from gezelctl.cli.output import PLAN_FORMATS, Output, parse_report, write_file
from gezelctl.cli.session import Session
from gezelctl.errors import ExitCode, UsageFault
from gezelctl.plan.inputs import PlanOptions
from gezelctl.plan.types import Plan


@click.command(
    "plan",
    epilog="Example: gezelctl plan -f models.yaml --against snapshot=lab-01.json -o markdown",
    help="Show what apply would change, and why. Changes nothing and takes no lock.",
)
@file_options(default_file=True)
@narrowing_options
@click.option("--against", default="live", metavar="live|snapshot=FILE", help="What to compare with.")
@click.option("--max-age", default="24h", metavar="AGE", help="Warn about a snapshot older than this.")
@click.option("-o", "--output", "kind", type=click.Choice(PLAN_FORMATS), default="text", help="Format of stdout.")
@click.option("--report", "reports", multiple=True, metavar="FORMAT=FILE", help="Also write to a file; repeatable.")
@click.option("--out", "saved", type=click.Path(path_type=Path), help="Save the plan for `gezelctl apply FILE`.")
@click.option("--detailed-exitcode", "detailed", is_flag=True, help="Exit 2 when there are changes.")
@click.option("--prune", is_flag=True, help="Also plan to delete our servers that models.yaml does not name.")
@click.option("--restart", multiple=True, type=ADDRESS, metavar="ADDR", help="Restart this server anyway; repeatable.")
@click.option("--explain", "explained", type=ADDRESS, metavar="ADDR", help="Show each launch value with its origin.")
@click.option("--show-unchanged", is_flag=True, help="List what stays as it is.")
@offline_option
@click.option("--max-chars", type=click.IntRange(min=1000), default=60_000, help="Longest markdown.")
@output_options
def command(
    *,
    files: tuple[str, ...],
    host: str | None,
    only: tuple[str, ...],
    excluded: tuple[str, ...],
    against: str,
    max_age: str,
    kind: str,
    reports: tuple[str, ...],
    saved: Path | None,
    detailed: bool,
    prune: bool,
    restart: tuple[str, ...],
    explained: str | None,
    show_unchanged: bool,
    max_chars: int,
    offline: bool,
    **options: Any,
) -> int:
    from gezelctl.cli.plan_view import show_plan, write_reports

    output = make_output(options)
    wanted = [parse_report(r) for r in reports]
    if saved and against != "live":
        raise UsageFault("only a live plan can be saved for apply", cure="Drop --out, or plan on the host itself.")
    if saved and "-" in files:
        raise UsageFault("a plan of standard input cannot be saved", cure="Write the configuration to a file.")
    narrowed = PlanOptions(only=only, excluded=excluded, restart=restart, prune=prune)
    session, plan = plan_for(
        chosen_files(files, default_file=True),
        host,
        against,
        options=narrowed,
        output=output,
        max_age_s=parse_duration(max_age),
        offline=offline,
    )
    if explained:
        _explain(output, plan, explained, kind)
    else:
        show_plan(output, plan, kind, show_unchanged=show_unchanged, max_chars=max_chars)
    write_reports(plan, wanted, max_chars=max_chars)
    _step_summary(output, plan, max_chars)
    said = kind in {"text", "wide"} and not explained
    _say_blocked(output, plan, said=said)
    invalid = any(d.severity == "error" for d in plan.diagnostics)
    if saved and not invalid:
        _save(output, session, plan, saved)
    if invalid:
        if not said:
            output.diagnostics(plan.diagnostics)
        return ExitCode.INVALID
    return plan_exit_code(plan, detailed=detailed)


def _say_blocked(output: Output, plan: Plan, *, said: bool) -> None:
    """What stops the plan: annotations of the pull request, and lines on stderr unless the text on stdout `said` it."""
    from gezelctl.plan.words import blocked_by, capacity_text, misfits

    if said:
        output.annotate_all(plan.diagnostics)
    elsewhere = blocked_by(plan).keys() | {d.address for d in plan.diagnostics if d.severity == "error"}
    lines = [
        f"{c.address}: {c.cause}" + (f" ({c.cure})" if c.cure else "")
        for c in plan.changes
        if c.action == "blocked" and c.address not in elsewhere
    ]
    lines += [
        f"{c.resource.partition(':')[0]} does not suffice: {capacity_text(c, str)}" for c in misfits(plan.capacity)
    ]
    for line in lines:
        if not said:
            output.problem(f"blocked: {line}")
        output.annotate("error", line)


def _save(output: Output, session: Session, plan: Plan, path: Path) -> None:
    """Seal the plan for `apply PLAN`, which finds the same configuration from any folder."""
    from msgspec.structs import replace

    from gezelctl.plan.render_json import plan_json, seal
    from gezelctl.store.records import ensure_state

    state = ensure_state(session.paths, session.desired.stack)
    source = tuple(replace(file, path=str(Path(file.path).absolute())) for file in plan.source)
    sealed = seal(replace(plan, lineage=state.lineage, serial=state.serial, source=source))
    write_file(path, plan_json(sealed), mode=0o600)
    output.hint(f"apply exactly this plan with: gezelctl apply {path}")


def _explain(output: Output, plan: Plan, address: str, kind: str) -> None:
    from gezelctl.plan.explain import find_decision, render_explain

    if kind == "json":
        import msgspec

        encoded = msgspec.json.encode(find_decision(plan, address))
        output.data(msgspec.json.format(encoded, indent=2).decode(), machine=True)
    else:
        output.data(render_explain(plan, address))


def _step_summary(output: Output, plan: Plan, max_chars: int) -> None:
    if output.environ.get("GITHUB_STEP_SUMMARY"):
        from gezelctl.cli.plan_view import plan_document

        output.step_summary(plan_document(plan, "markdown", max_chars=max_chars))

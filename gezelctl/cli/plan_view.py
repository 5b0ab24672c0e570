"""A plan in the format that was asked for, on stdout and in report files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gezelctl.cli.output import DEFAULT_WIDTH, PLAN_FORMATS, Output, write_file
from gezelctl.errors import UsageFault
from gezelctl.plan.types import Plan

MACHINE_FORMATS = frozenset({"json", "yaml", "name", "markdown", "html"})


def show_plan(output: Output, plan: Plan, kind: str, *, show_unchanged: bool = False, max_chars: int = 60_000) -> None:
    """Print the plan; `kind` is one of PLAN_FORMATS."""
    if kind in {"text", "wide"}:
        from gezelctl.plan.render_text import Palette, render_text

        output.data(
            render_text(
                plan,
                width=output.width,
                color=Palette() if output.out.color else None,
                ascii_only=output.out.ascii_only,
                show_unchanged=show_unchanged,
                wide=kind == "wide",
            )
        )
        return
    text = plan_document(plan, kind, show_unchanged=show_unchanged, max_chars=max_chars)
    output.data(text, machine=kind in MACHINE_FORMATS)


def write_reports(plan: Plan, reports: Iterable[tuple[str, Path]], *, max_chars: int = 60_000) -> None:
    """Write each (format, file) of `parse_report`, without colour and at a fixed width."""
    for kind, path in reports:
        write_file(path, plan_document(plan, kind, max_chars=max_chars))


def plan_document(plan: Plan, kind: str, *, show_unchanged: bool = False, max_chars: int = 60_000) -> str:
    """The plan as a text that depends on nothing but the plan."""
    if kind == "markdown":
        from gezelctl.plan.render_markdown import render_markdown

        return render_markdown(plan, max_chars=max_chars)
    if kind in {"text", "wide"}:
        from gezelctl.plan.render_text import render_text

        return render_text(plan, width=DEFAULT_WIDTH, show_unchanged=show_unchanged, wide=kind == "wide")
    if kind == "html":
        from gezelctl.cli.data import data_text
        from gezelctl.plan.render_html import render_html

        return render_html(plan, data_text("templates/plan.html.j2"))
    from gezelctl.plan.render_json import plan_json, plan_names, plan_yaml

    if kind == "json":
        return plan_json(plan)
    if kind == "yaml":
        return plan_yaml(plan)
    if kind == "name":
        return plan_names(plan, show_unchanged=show_unchanged)
    raise UsageFault(f"a plan has no format {kind}", cure=f"Formats: {', '.join(PLAN_FORMATS)}.")

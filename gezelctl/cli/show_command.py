"""`gezelctl show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gezelctl.cli.common import make_output
from gezelctl.cli.options import output_options
from gezelctl.cli.output import PLAN_FORMATS
from gezelctl.errors import ExitCode, StalePlan, UsageFault


@click.command(
    "show",
    epilog="Example: gezelctl show plan.json -o markdown",
    help="Print a saved plan (or `plan -o json` output) in any format. Warns when it was edited, never refuses.",
)
@click.argument("plan_file", type=click.Path(path_type=Path), metavar="PLAN")
@click.option("-o", "--output", "kind", type=click.Choice(PLAN_FORMATS), default="text", help="Format of stdout.")
@output_options
def command(plan_file: Path, kind: str, **options: Any) -> int:
    from gezelctl.cli.plan_view import show_plan
    from gezelctl.plan.render_json import plan_from_json, verify

    output = make_output(options)
    try:
        text = plan_file.read_bytes()
    except OSError as error:
        raise UsageFault(f"{plan_file}: {error.strerror}", cure="Name a file made with plan --out.") from error
    plan = plan_from_json(text, name=str(plan_file))
    if plan.checksum:
        try:
            verify(plan)
        except StalePlan as error:
            output.warning(error.message)
    show_plan(output, plan, kind)
    return ExitCode.OK

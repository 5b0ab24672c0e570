"""`gezelctl status`."""

from __future__ import annotations

import time
from typing import Any

import click

from gezelctl.cli.common import make_output
from gezelctl.cli.options import ADDRESS, chosen_files, file_options, output_options
from gezelctl.cli.output import Output
from gezelctl.errors import ExitCode, UsageFault
from gezelctl.plan.inputs import PlanOptions

FORMATS = ("text", "wide", "json", "name")


@click.command(
    "status",
    epilog="Example: gezelctl status -f models.yaml --check",
    help="Show each server: wanted against running, health, and the reason for whatever is not right.",
)
@file_options(default_file=True)
@click.argument("addresses", nargs=-1, type=ADDRESS, metavar="[ADDR]...")
@click.option("-o", "--output", "kind", type=click.Choice(FORMATS), default="text", help="Format of stdout.")
@click.option("--check", is_flag=True, help="Exit 2 when out of sync, 3 when unhealthy, 8 when unknown.")
@click.option("--watch", is_flag=True, help="Print again every two seconds until interrupted.")
@output_options
def command(
    *,
    files: tuple[str, ...],
    host: str | None,
    addresses: tuple[str, ...],
    kind: str,
    check: bool,
    watch: bool,
    **options: Any,
) -> int:
    output = make_output(options)
    chosen = chosen_files(files, default_file=True)
    while True:
        code = _once(output, chosen, host, addresses, kind)
        if not watch:
            return code if check else ExitCode.OK
        time.sleep(2)
        output.data("")


def _once(output: Output, files: tuple[str, ...], host: str | None, addresses: tuple[str, ...], kind: str) -> ExitCode:
    from gezelctl.cli.session import live_plan, observe_here, open_session
    from gezelctl.cli.status_view import render_status
    from gezelctl.plan.status import status_exit_code, status_rows

    session = open_session(files, host)
    observed = observe_here(session)
    plan = live_plan(session, PlanOptions(), observed)
    rows = status_rows(plan, observed)
    unknown = set(addresses) - {r.address for r in rows}
    if unknown:
        known = ", ".join(r.address for r in rows) or "none"
        raise UsageFault(f"no such server: {', '.join(sorted(unknown))}", cure=f"Servers here: {known}.")
    rows = tuple(r for r in rows if not addresses or r.address in addresses)
    output.data(
        render_status(rows, kind, output.out, stack=session.desired.stack, host=session.desired.host),
        machine=kind in {"json", "name"},
    )
    for problem in observed.problems:
        output.warning(problem)
    return status_exit_code(rows)

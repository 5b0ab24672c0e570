"""`gezelctl render`."""

from __future__ import annotations

import shlex
from typing import Any

import click

from gezelctl.cli.common import make_output, plan_for, require_valid
from gezelctl.cli.options import chosen_files, file_options, narrowing_options, output_options
from gezelctl.engines.types import LaunchSpec
from gezelctl.errors import ExitCode
from gezelctl.plan.inputs import PlanOptions


@click.command(
    "render",
    epilog="Example: gezelctl render -f models.yaml --only server.chat",
    help="Print the command line, and the config files, of each server as apply would start it. Starts nothing.",
)
@file_options(default_file=True)
@narrowing_options
@click.option("--against", default="live", metavar="live|snapshot=FILE", help="Which host's engine builds to use.")
@click.option("-o", "--output", "kind", type=click.Choice(("text", "json")), default="text", help="Format of stdout.")
@output_options
def command(
    *,
    files: tuple[str, ...],
    host: str | None,
    only: tuple[str, ...],
    excluded: tuple[str, ...],
    against: str,
    kind: str,
    **options: Any,
) -> int:
    import msgspec

    output = make_output(options)
    narrowed = PlanOptions(only=only, excluded=excluded)
    _, plan = plan_for(
        chosen_files(files, default_file=True), host, against, options=narrowed, output=output, max_age_s=float("inf")
    )
    require_valid(plan)
    for change in plan.changes:
        if change.action == "blocked":
            output.warning(f"{change.address}: {change.cause}")
    if kind == "json":
        output.data(msgspec.json.format(msgspec.json.encode(plan.launches), indent=2).decode(), machine=True)
    else:
        output.data("\n".join(_text(spec) for spec in plan.launches) or "No servers to render.")
    return ExitCode.OK


def _text(spec: LaunchSpec) -> str:
    secret = [f"{s.name}=(secret, from {s.from_env or s.from_file})" for s in spec.secret_env]
    env = [f"{k}={shlex.quote(v)}" for k, v in sorted(spec.env.items())]
    head = f"# server.{spec.server} on {spec.backend}: {spec.base_url}"
    lines = [head, *(f"# {s}" for s in secret), " ".join([*env, shlex.join((spec.program, *spec.argv))])]
    for file in spec.config_files:
        lines += [f"# {file.path}", file.content.rstrip("\n")]
    return "\n".join(lines) + "\n"

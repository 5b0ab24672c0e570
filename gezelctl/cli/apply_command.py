"""`gezelctl apply`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gezelctl.cli.common import make_output, parse_duration
from gezelctl.cli.options import ADDRESS, chosen_files, file_options, narrowing_options, offline_option, output_options
from gezelctl.errors import UsageFault
from gezelctl.plan.inputs import PlanOptions


@click.command(
    "apply",
    epilog="Example: gezelctl apply -f models.yaml --yes",
    help="Carry out the plan and prove that each server serves. With a saved PLAN: exactly that one, or nothing.",
)
@click.argument("plan_file", type=click.Path(path_type=Path), required=False, metavar="[PLAN]")
@file_options(default_file=False)
@narrowing_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--prune", is_flag=True, help="Also delete our servers that models.yaml does not name.")
@click.option("--allow-empty", is_flag=True, help="Let --prune delete more than half of the servers.")
@click.option("--restart", multiple=True, type=ADDRESS, metavar="ADDR", help="Restart this server anyway; repeatable.")
@click.option("--retry-drafters", is_flag=True, help="Try draft models, and experts on the GPU, again.")
@offline_option
@click.option("--wait/--no-wait", default=True, help="Wait until each server is proven to serve.")
@click.option("--expect-digest", metavar="sha256:…", help="Refuse unless the plan has this digest.")
@click.option("--lock-timeout", default="30s", envvar="GEZELCTL_LOCK_TIMEOUT", help="How long to wait for the lock.")
@click.option("-o", "--output", "kind", type=click.Choice(("text", "json")), default="text", help="Format of stdout.")
@output_options
def command(
    *,
    plan_file: Path | None,
    files: tuple[str, ...],
    host: str | None,
    only: tuple[str, ...],
    excluded: tuple[str, ...],
    yes: bool,
    prune: bool,
    allow_empty: bool,
    restart: tuple[str, ...],
    wait: bool,
    expect_digest: str | None,
    lock_timeout: str,
    kind: str,
    retry_drafters: bool,
    offline: bool,
    **options: Any,
) -> int:
    from gezelctl.cli.applying import Applying, read_saved

    output = make_output(options, yes=yes or plan_file is not None)
    narrowed = PlanOptions(only=only, excluded=excluded, restart=restart, prune=prune)
    if plan_file is not None:
        source = click.get_current_context().get_parameter_source
        named = any(source(name) is ParameterSource.COMMANDLINE for name in ("files", "host"))
        if narrowed != PlanOptions() or named or retry_drafters:
            raise UsageFault("a saved plan takes no planning options", cure="Make a new plan with these options.")
        saved = read_saved(plan_file)
        narrowed = PlanOptions(only=saved.only, excluded=saved.excluded, prune=saved.prune, restart=saved.restart)
        files, host = tuple(f.path for f in saved.source), saved.host
    else:
        saved = None
        files = chosen_files(files, default_file=False)
    return Applying(
        output,
        files=files,
        host=host,
        options=narrowed,
        saved=saved,
        allow_empty=allow_empty,
        expect_digest=expect_digest or "",
        lock_timeout_s=parse_duration(lock_timeout),
        as_json=kind == "json",
        offline=offline,
        wait=wait,
        retry_drafters=retry_drafters,
    ).run()

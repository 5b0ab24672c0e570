"""`gezelctl destroy`."""

from __future__ import annotations

from typing import Any

import click

from gezelctl.cli.common import make_output, parse_duration
from gezelctl.cli.options import chosen_files, file_options, narrowing_options, output_options
from gezelctl.plan.inputs import PlanOptions


@click.command(
    "destroy",
    epilog="Example: gezelctl destroy -f models.yaml",
    help="Stop and forget every server of the stack on this host. Payloads stay in the store.",
)
@file_options(default_file=False)
@narrowing_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--lock-timeout", default="30s", envvar="GEZELCTL_LOCK_TIMEOUT", help="How long to wait for the lock.")
@output_options
def command(
    *,
    files: tuple[str, ...],
    host: str | None,
    only: tuple[str, ...],
    excluded: tuple[str, ...],
    yes: bool,
    lock_timeout: str,
    **options: Any,
) -> int:
    from gezelctl.cli.applying import Applying

    return Applying(
        make_output(options, yes=yes),
        files=chosen_files(files, default_file=False),
        host=host,
        options=PlanOptions(only=only, excluded=excluded, destroy=True),
        saved=None,
        allow_empty=True,
        expect_digest="",
        lock_timeout_s=parse_duration(lock_timeout),
        as_json=False,
    ).run()

"""`gezelctl snapshot`."""

from __future__ import annotations

import os
from typing import Any

import click

from gezelctl.cli.common import make_output
from gezelctl.cli.options import chosen_files, file_options, offline_option, output_options
from gezelctl.errors import ExitCode


@click.command(
    "snapshot",
    epilog="Example: gezelctl snapshot -f models.yaml > lab-01.json",
    help="Print what is observed on this host as JSON, for `gezelctl plan --against snapshot=FILE` elsewhere. "
    "It holds no secret, no secret's digest key and no process token.",
)
@file_options(default_file=True)
@click.option("-o", "--output", "kind", type=click.Choice(("json",)), default="json", help="Format of stdout.")
@offline_option
@output_options
def command(files: tuple[str, ...], host: str | None, kind: str, *, offline: bool, **options: Any) -> int:
    import msgspec
    from msgspec.structs import replace

    from gezelctl.cli.session import TOOL, now, observe_here, open_session
    from gezelctl.observe.snapshot import to_snapshot

    output = make_output(options)
    session = open_session(chosen_files(files, default_file=True), host)
    observed = observe_here(session, offline=offline)
    home = os.path.expanduser("~")  # noqa: PTH111 - the string that `~` stands for, not a path of ours
    snapshot = to_snapshot(
        observed, session.desired.stack, TOOL, now(), base_dir=str(session.loaded.base_dir), home=home
    )
    snapshot = replace(snapshot, host=session.desired.host)
    output.data(msgspec.json.format(msgspec.json.encode(snapshot), indent=1).decode(), machine=True)
    for problem in observed.problems:
        output.warning(problem)
    return ExitCode.OK

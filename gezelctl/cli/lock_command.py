"""`gezelctl lock`."""

from __future__ import annotations

from typing import Any

import click

from gezelctl.cli.common import make_output
from gezelctl.cli.options import chosen_files, file_options, output_options
from gezelctl.errors import ExitCode


@click.command(
    "lock",
    epilog="Example: gezelctl lock -f models.yaml",
    help="Show who holds the lock of the stack on this host. There is nothing to unlock: it goes with its holder.",
)
@file_options(default_file=True)
@output_options
def command(files: tuple[str, ...], host: str | None, **options: Any) -> int:
    from gezelctl.cli.session import open_session
    from gezelctl.store.lock import current_holder

    output = make_output(options)
    session = open_session(chosen_files(files, default_file=True), host)
    holder = current_holder(session.paths)
    output.data(f"held: {holder}" if holder else "free")
    return ExitCode.OK

"""`gezelctl completion`."""

from __future__ import annotations

import click

from gezelctl.errors import ExitCode


@click.command(
    "completion",
    epilog='Example: eval "$(gezelctl completion bash)"',
    help="Print a completion script for your shell.",
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> int:
    from gezelctl.cli.completion import completion_script
    from gezelctl.cli.main import cli
    from gezelctl.cli.output import Output

    Output().data(completion_script(cli, shell))
    return ExitCode.OK

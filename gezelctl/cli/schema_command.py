"""`gezelctl schema`."""

from __future__ import annotations

import click

from gezelctl.errors import ExitCode

NAMES = ("models", "plan", "snapshot", "event", "installed-manifest")


@click.command(
    "schema",
    epilog="Example: gezelctl schema models > models.schema.json",
    help="Print the JSON Schema of models.yaml or of a document that gezelctl writes.",
)
@click.argument("name", type=click.Choice(NAMES), default="models")
def command(name: str) -> int:
    import gezelctl.cli.schemas  # noqa: F401 - registers the schemas of written documents
    from gezelctl.cli.output import Output
    from gezelctl.config.schema import render

    Output().data(render(name), machine=True)
    return ExitCode.OK

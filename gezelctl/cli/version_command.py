"""`gezelctl version`."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import click

from gezelctl import __version__
from gezelctl.errors import ExitCode

PARTS = ("xllamacpp", "mlx-lm", "mlx", "huggingface-hub", "httpx", "msgspec", "pyyaml")


@click.command(
    "version",
    epilog="Example: gezelctl version -o json",
    help="Print the version of gezelctl, of Python and of the parts that it uses when they are installed.",
)
@click.option("-o", "--output", "kind", type=click.Choice(("text", "json")), default="text", help="Format of stdout.")
def command(kind: str) -> int:
    from gezelctl.cli.output import Output

    found = {"gezelctl": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for name in PARTS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    width = max(map(len, found))
    text = json.dumps(found, indent=2) if kind == "json" else "\n".join(f"{k:<{width}}  {v}" for k, v in found.items())
    Output().data(text)
    return ExitCode.OK

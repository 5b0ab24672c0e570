"""`gezelctl events`."""

from __future__ import annotations

from typing import Any

import click

from gezelctl.cli.common import make_output
from gezelctl.cli.options import ADDRESS, chosen_files, file_options, output_options
from gezelctl.errors import ExitCode
from gezelctl.store.types import Event


@click.command(
    "events",
    epilog="Example: gezelctl events -f models.yaml --for server.chat",
    help="Print what gezelctl did to this stack on this host, oldest first.",
)
@file_options(default_file=True)
@click.option("--for", "address", type=ADDRESS, metavar="ADDR", help="Only events of this address.")
@click.option("--level", type=click.Choice(("info", "warning", "error")), default="info", help="This level and above.")
@click.option("-o", "--output", "kind", type=click.Choice(("text", "jsonl")), default="text", help="Format of stdout.")
@output_options
def command(
    *, files: tuple[str, ...], host: str | None, address: str | None, level: str, kind: str, **options: Any
) -> int:
    import msgspec

    from gezelctl.cli.session import open_session
    from gezelctl.store.events import read_events

    output = make_output(options)
    session = open_session(chosen_files(files, default_file=True), host)
    levels = ("info", "warning", "error")
    found = [
        e
        for e in read_events(session.paths)
        if e.type != "version"
        and (address is None or e.address == address)
        and levels.index(e.level) >= levels.index(level)
    ]
    if kind == "jsonl":
        output.data("".join(msgspec.json.encode(e).decode() + "\n" for e in found), machine=True)
    else:
        output.data("\n".join(map(_line, found)) or "No events.")
    return ExitCode.OK


def _line(event: Event) -> str:
    detail = ", ".join(f"{name} {_short(value)}" for name, value in event.detail.items())
    words = (event.address, event.action, event.reason, event.message.replace("\n", "\n    "), detail)
    return f"{event.ts}  {event.level:<7}  {event.type:<14}  {'  '.join(w for w in words if w)}".rstrip()


def _short(value: object) -> str:
    """A digest by its head, as the plan shows it."""
    text = str(value)
    return text[:19] if text.startswith("sha256:") else text

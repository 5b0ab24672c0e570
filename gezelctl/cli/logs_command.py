"""`gezelctl logs`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from gezelctl.cli.common import make_output
from gezelctl.cli.options import chosen_files, file_options, output_options
from gezelctl.cli.output import Output
from gezelctl.errors import ExitCode, UsageFault

BLOCK = 1 << 16


@click.command(
    "logs",
    epilog="Example: gezelctl logs -f models.yaml chat --follow",
    help="Print the log of a server since its last start; --all also what came before.",
)
@file_options(default_file=True)
@click.argument("server")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=100, help="How many of the last lines; 0 = all.")
@click.option("--follow", is_flag=True, help="Keep printing until interrupted.")
@click.option("--all", "everything", is_flag=True, help="From the beginning of the log file.")
@output_options
def command(
    *,
    files: tuple[str, ...],
    host: str | None,
    server: str,
    lines: int,
    follow: bool,
    everything: bool,
    **options: Any,
) -> int:
    from gezelctl.catalog.names import STORE_ID
    from gezelctl.cli.session import open_session
    from gezelctl.store.records import read_record

    output = make_output(options)
    session = open_session(chosen_files(files, default_file=True), host)
    name = server.removeprefix("server.")
    record = read_record(session.paths, name) if STORE_ID.match(name) else None
    if record is None and not (STORE_ID.match(name) and session.paths.log(name).is_file()):
        known = ", ".join(s.name for s in session.desired.servers) or "none"
        raise UsageFault(f"no log of a server {name}", cure=f"Servers in the file: {known}.")
    path = session.paths.log(name)
    offset = 0 if everything or record is None else record.log_offset
    end = _print_tail(output, path, offset, lines)
    while follow:
        time.sleep(0.2)
        end = _print_new(output, path, end)
    return ExitCode.OK


def _print_tail(output: Output, path: Path, offset: int, lines: int) -> int:
    """Print the last lines after `offset`; returns the file's length."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except OSError as error:
        raise UsageFault(f"{path}: {error.strerror}", cure="Start the server with gezelctl apply.") from error
    text = data.decode("utf-8", "replace").splitlines()
    output.data("\n".join(text[-lines:] if lines else text))
    return offset + len(data)


def _print_new(output: Output, path: Path, end: int) -> int:
    """Print what came after byte `end`; a file that shrank was rotated and is read from its start."""
    size = path.stat().st_size if path.exists() else 0
    start = end if size >= end else 0
    if size == start:
        return size
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(BLOCK)
    output.data(data.decode("utf-8", "replace"))
    return start + len(data)

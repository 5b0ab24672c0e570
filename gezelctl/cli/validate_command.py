"""`gezelctl validate`."""

from __future__ import annotations

from typing import Any

import click

from gezelctl.cli.common import make_output
from gezelctl.cli.options import chosen_files, file_options, output_options
from gezelctl.errors import ExitCode


@click.command(
    "validate",
    epilog="Example: gezelctl validate -f models.yaml",
    help="Check models.yaml and the catalogs that it names. No network, and nothing of the host is looked at.",
)
@file_options(default_file=True)
@output_options
def command(files: tuple[str, ...], host: str | None, **options: Any) -> int:
    """All hosts of the file are checked unless --host narrows it."""
    from gezelctl.catalog.resolve import resolve_servers
    from gezelctl.cli.session import this_host
    from gezelctl.config.diagnostics import InvalidConfig
    from gezelctl.config.loader import load_models
    from gezelctl.config.select import for_host

    output = make_output(options)
    loaded = load_models(chosen_files(files, default_file=True))
    hosts = [host] if host else sorted(loaded.model.hosts) or [this_host()]
    found = {*loaded.warnings}
    for name in hosts:
        for item in resolve_servers(for_host(loaded, name)):
            found |= set(item.diagnostics)
    listed = tuple(sorted(found, key=lambda d: d.sort_key))
    if any(d.severity == "error" for d in listed):
        raise InvalidConfig(listed)
    output.diagnostics(listed)
    servers = len(loaded.model.models)
    where = f" on {len(loaded.model.hosts)} hosts" if loaded.model.hosts else ""
    output.note(f"{loaded.display} is valid: stack {loaded.model.stack}, {servers} server{'s' * (servers != 1)}{where}")
    return ExitCode.OK

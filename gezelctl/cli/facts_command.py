"""`gezelctl facts`."""

from __future__ import annotations

from typing import Any

import click

from gezelctl.cli.common import make_output
from gezelctl.cli.options import chosen_files, file_options, output_options
from gezelctl.cli.output import Output
from gezelctl.errors import ExitCode
from gezelctl.observe.types import EngineProbe, Facts


@click.command(
    "facts",
    epilog="Example: gezelctl facts -f models.yaml -o json",
    help="Print what this host and the engine builds of models.yaml can do.",
)
@file_options(default_file=True)
@click.option("-o", "--output", "kind", type=click.Choice(("text", "json")), default="text", help="Format of stdout.")
@output_options
def command(files: tuple[str, ...], host: str | None, kind: str, **options: Any) -> int:
    import msgspec

    from gezelctl.cli.session import observe_here, open_session

    output = make_output(options)
    session = open_session(chosen_files(files, default_file=True), host)
    observed = observe_here(session)
    if kind == "json":
        document = {"facts": observed.facts, "engines": observed.engines}
        output.data(msgspec.json.format(msgspec.json.encode(document), indent=2).decode(), machine=True)
    else:
        _print_text(output, observed.facts, observed.engines)
    return ExitCode.OK


def _print_text(output: Output, facts: Facts, engines: dict[str, EngineProbe]) -> None:
    from gezelctl.plan.units import format_bytes

    lines = [
        f"host     {facts.host}: {facts.os_version}, {facts.arch}, {facts.cpus} CPUs",
        f"memory   {format_bytes(facts.memory_available_bytes)} available of {format_bytes(facts.memory_total_bytes)}",
    ]
    lines += [
        f"gpu      {g.name} ({g.kind}), {format_bytes(g.free_bytes)} free of {format_bytes(g.total_bytes)}, {g.id}"
        for g in facts.gpus
    ] or ["gpu      none seen by the driver library"]
    lines += [
        f"disk     {d.path}: {format_bytes(d.free_bytes)} free of {format_bytes(d.total_bytes)}"
        + ("" if d.hard_links else ", no hard links")
        for d in facts.disks
    ]
    for name, probe in sorted(engines.items()):
        if probe.pending:
            lines.append(f"engine   {name}: not fetched yet")
        elif probe.error:
            lines.append(f"engine   {name}: {probe.error}: {probe.message.splitlines()[0]}")
        else:
            parts = [probe.version.partition(";")[0]]
            parts += [f"{len(probe.flags)} flags"] if probe.flags else []
            parts.append(", ".join(d.id for d in probe.devices) or "no devices")
            lines.append(f"engine   {name}: {', '.join(parts)}")
    output.data("\n".join(lines))

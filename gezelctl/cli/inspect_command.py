"""`gezelctl inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gezelctl.cli.common import make_output
from gezelctl.cli.options import output_options, subject_options
from gezelctl.errors import ExitCode

if TYPE_CHECKING:
    from gezelctl.cli.output import Output
    from gezelctl.cli.subject import Place, Subject


@click.command(
    "inspect",
    epilog="Example: gezelctl inspect hf:owner/name/model-Q4_K_M.gguf",
    help="Show what the header of a model says: layers, heads, context, experts, window, tokenizer, template, and "
    "tensor bytes by class and type. From an address only the header is read, a few MB.",
)
@subject_options
@click.option("-o", "--output", "kind", type=click.Choice(("text", "json")), default="text", help="Format of stdout.")
@output_options
def command(
    named: str, files: tuple[str, ...], host: str | None, catalogs: tuple[str, ...], kind: str, **options: Any
) -> int:
    from gezelctl.cli.subject import find_subject, open_place

    output = make_output(options)
    place = open_place(files, host, catalogs)
    subject = find_subject(named, place)
    if subject.folder is not None:
        _show_mlx(output, subject.shown, subject.folder, kind)
    else:
        _show_gguf(output, subject, place, kind)
    return ExitCode.OK


def _show_gguf(output: Output, subject: Subject, place: Place, kind: str) -> None:
    from gezelctl.cli.subject import read_header
    from gezelctl.engines.llama_cpp.describe import describe
    from gezelctl.engines.templatelint import lint_template

    summary = read_header(subject, place)
    if summary is None:
        raise click.UsageError(f"{subject.shown} has no weights.")
    found = describe(summary)
    findings = lint_template(summary.chat_template) if summary.chat_template else ()
    if kind == "text":
        from gezelctl.cli.inspect_view import render_gguf

        output.data(render_gguf(subject.shown, summary, found, findings))
        return
    import msgspec

    document = {
        "kind": "Inspection",
        "source": subject.shown,
        **msgspec.to_builtins(summary),
        "derived": msgspec.to_builtins(found) | {"templateFindings": msgspec.to_builtins(findings)},
    }
    output.data(msgspec.json.format(msgspec.json.encode(document), indent=2).decode(), machine=True)


def _show_mlx(output: Output, shown: str, folder: Path, kind: str) -> None:
    from gezelctl.cli.inspect_view import render_mlx
    from gezelctl.observe.mlxfolder import read_mlx_folder

    found = read_mlx_folder(folder)
    if kind == "text":
        output.data(render_mlx(shown, found))
        return
    import msgspec

    document = {"kind": "Inspection", "source": shown, "engine": "mlx", **msgspec.to_builtins(found)}
    output.data(msgspec.json.format(msgspec.json.encode(document), indent=2).decode(), machine=True)

"""Options that mean the same in every command (ux contract 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])


class Address(click.ParamType[str]):
    """`server.chat`, `payload.llama-cpp.x`, `engine.cpu`; a bare name means the server of that name."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        return text if text.partition(".")[0] in {"server", "payload", "engine"} and "." in text else f"server.{text}"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        from gezelctl.cli.completion import complete_address

        return complete_address(ctx, param, incomplete)


ADDRESS = Address()


def output_options(function: F) -> F:
    """--color, --progress, -q, -v, --no-input: passed on as keyword arguments to `Output`."""
    decorators = (
        click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="Colour of text."),
        click.option(
            "--progress",
            type=click.Choice(["auto", "tty", "plain", "json", "none"]),
            default="auto",
            envvar="GEZELCTL_PROGRESS",
            help="How work in progress is shown on stderr.",
        ),
        click.option("-q", "--quiet", is_flag=True, help="Only data, warnings and errors."),
        click.option("-v", "--verbose", is_flag=True, help="Say more on stderr."),
        click.option("--no-input", is_flag=True, envvar="GEZELCTL_NO_INPUT", help="Never ask; refuse instead."),
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def file_options(*, default_file: bool) -> Callable[[F], F]:
    """-f/--file (repeatable) and --host. Commands that change things need -f; the others also take ./models.yaml."""

    def decorate(function: F) -> F:
        extra = " Default: models.yaml in this folder." if default_file else ""
        function = click.option(
            "--host", envvar="GEZELCTL_HOST", help="Which host's section to use. Default: this host's name."
        )(function)
        return click.option(
            "-f",
            "--file",
            "files",
            multiple=True,
            envvar="GEZELCTL_FILE",
            help=f"models.yaml, a folder of *.yaml, or - for stdin; repeatable.{extra}",
        )(function)

    return decorate


def offline_option(function: F) -> F:
    """--offline: nothing is asked beyond this host's own servers."""
    return click.option(
        "--offline",
        is_flag=True,
        envvar="GEZELCTL_OFFLINE",
        help="Do not read the headers of models that are still to be downloaded.",
    )(function)


def subject_options(function: F) -> F:
    """FILE|MODEL|URL with -f, --host and --catalog: what it is and where it is looked up (`cli.subject`)."""
    decorators = (
        click.argument("named", metavar="FILE|MODEL|URL"),
        click.option(
            "-f", "--file", "files", multiple=True, envvar="GEZELCTL_FILE", help="models.yaml, for its catalogs."
        ),
        click.option("--host", envvar="GEZELCTL_HOST", help="Which host's section of models.yaml to use."),
        click.option(
            "--catalog", "catalogs", multiple=True, metavar="PATH", help="Look MODEL up here first; repeatable."
        ),
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def narrowing_options(function: F) -> F:
    """--only and --except: such a plan is incomplete, never prunes and is not recorded as applied."""
    function = click.option(
        "--except", "excluded", multiple=True, type=ADDRESS, metavar="ADDR", help="Leave this out; repeatable."
    )(function)
    return click.option("--only", multiple=True, type=ADDRESS, metavar="ADDR", help="Only this; repeatable.")(function)


def chosen_files(files: tuple[str, ...], *, default_file: bool) -> tuple[str, ...]:
    """The files to read, with the default applied; a usage error names what is missing."""
    if files:
        return files
    if default_file:
        return ("models.yaml",)
    raise click.UsageError(
        "Missing option -f/--file (or set GEZELCTL_FILE): what changes a host names its file, e.g. -f models.yaml."
    )

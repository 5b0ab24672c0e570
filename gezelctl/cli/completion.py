"""Shell completion: click's own scripts, and server names from models.yaml."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from gezelctl.errors import UsageFault

SHELLS = ("bash", "zsh", "fish")
COMPLETE_VARIABLE = "_GEZELCTL_COMPLETE"
_MAX_FILE_BYTES = 1 << 20


def completion_script(cli: click.Command, shell: str, prog_name: str = "gezelctl") -> str:
    """The script to load in that shell; it asks the same parser that runs the commands.

    Raises UsageFault for another shell.
    """
    made = get_completion_class(shell) if shell in SHELLS else None
    if made is None:
        raise UsageFault(f"no completion for the shell {shell}", cure=f"Shells: {', '.join(SHELLS)}.")
    # The base class's `source`: bash's own first starts a bash to ask for its version, which printing needs not.
    return ShellComplete.source(made(cli, {}, prog_name, COMPLETE_VARIABLE)).strip() + "\n"


def complete_address(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """`server.<name>` of the file that the command line names so far; a bare name completes too."""
    names = server_names(_file(ctx))
    if incomplete and not incomplete.startswith("server"):
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return [CompletionItem(f"server.{name}") for name in names if f"server.{name}".startswith(incomplete)]


def server_names(path: Path) -> list[str]:
    """Names under `models`, sorted; none when the file is not there, too large or not YAML. Nothing is checked."""
    import yaml

    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return []
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - a safe loader
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return []
    models = document.get("models") if isinstance(document, dict) else None
    names = [m.get("name") for m in models if isinstance(m, dict)] if isinstance(models, list) else []
    return sorted({name for name in names if isinstance(name, str)})


def _file(ctx: click.Context) -> Path:
    files = ctx.params.get("files") or ()
    return Path(files[0] if files else os.environ.get("GEZELCTL_FILE") or "models.yaml")

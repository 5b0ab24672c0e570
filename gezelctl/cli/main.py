"""The command line: a lazy group, so that `gezelctl --version` imports click and nothing else."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from types import FrameType

import click

from gezelctl import __version__
from gezelctl.errors import ExitCode, GezelctlError

COMMANDS: dict[str, str] = {
    "validate": "Check models.yaml and the catalogs it names; no host contact.",
    "plan": "Show what apply would change on this host, and why.",
    "apply": "Make the host as models.yaml says, and prove that each server serves.",
    "status": "Show each server: wanted, applied, live, health.",
    "logs": "Print the log of a server.",
    "render": "Print the command line and config of each server, without starting it.",
    "inspect": "Show what the header of a model says: a file, a catalog model or an address.",
    "fit": "Show what a model needs in memory, what fits on a host, and how it would be launched.",
    "facts": "Print what this host and its engine builds can do.",
    "snapshot": "Print the observed state as JSON, for planning elsewhere.",
    "show": "Print a saved plan in any format.",
    "destroy": "Stop and forget every server of the stack; payloads stay in the store.",
    "events": "Print the event log of the stack.",
    "lock": "Show who holds the lock of the stack.",
    "schema": "Print a JSON Schema: models, plan, snapshot, event, installed-manifest.",
    "completion": "Print a completion script for bash, zsh or fish.",
    "version": "Print the version of gezelctl and of what it runs on.",
}


_ELSEWHERE = {
    "start": "apply",
    "up": "apply",
    "restart": "apply --restart NAME",
    "prune": "apply --prune",
    "stop": "destroy, or apply --prune for what is no longer in the file",
    "down": "destroy",
    "delete": "destroy",
    "diff": "plan",
    "ps": "status",
    "list": "status",
}
"""What other tools call it."""


class LazyGroup(click.Group):
    """A group whose commands are imported only when they run; the list comes from COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gezelctl.cli.{cmd_name}_command")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, n=1)
            meant = _ELSEWHERE.get(name) or next(iter(near), "")
            hint = f" Did you mean {meant}?" if meant else ""
            raise click.UsageError(f"No such command: {name}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: gezelctl plan -f models.yaml",
)
@click.version_option(__version__, prog_name="gezelctl", message="%(prog)s %(version)s")
def cli() -> None:
    """Plan, review and apply for local LLM servers (llama.cpp, MLX) from one YAML file."""


def _terminate(_signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(int(ExitCode.TERMINATED))


def _open_streams() -> None:
    """Give standard streams that were closed (`>&-`) a place, or the next file that is opened takes their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit; every fault becomes a message and its exit code."""
    _open_streams()
    signal.signal(signal.SIGTERM, _terminate)
    # What imports allocate lives until the end: the default threshold walks it dozens of times, and the interpreter
    # once more when it exits. That was a tenth of a plan of one server.
    gc.set_threshold(20_000, 20, 20)
    try:
        code = run(argv)
    finally:
        gc.freeze()
    sys.exit(code)


def run(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code; nothing escapes but SystemExit from a signal."""
    try:
        result = cli.main(args=argv, prog_name="gezelctl", standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.message.endswith((".yaml)", ".yml)")):
            error = click.UsageError(f"{error.message}. A file is named with -f.", error.ctx)
        error.show()
        return ExitCode.USAGE if isinstance(error, click.UsageError) else ExitCode.FAILED
    except (click.Abort, KeyboardInterrupt):
        sys.stderr.write("\ninterrupted\n")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has what it wanted; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except GezelctlError as error:
        from gezelctl.cli.output import Output

        Output.for_errors().fault(error)
        return error.exit_code
    except Exception:  # noqa: BLE001 - the one broad handler: a bug becomes a message and a file, never a traceback
        from gezelctl.cli.crash import report_crash

        return report_crash()
    return int(result) if isinstance(result, int) else ExitCode.OK

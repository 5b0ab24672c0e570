"""The one object that owns stdout, stderr, colour and questions. stdout carries data and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gezelctl.cli.annotations import annotate
from gezelctl.cli.terminal import Stream, is_terminal, wants_color
from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, render_diagnostics
from gezelctl.errors import ExitCode, GezelctlError, RefusedError, UsageFault

if TYPE_CHECKING:
    from gezelctl.cli.progress import Progress

DEFAULT_WIDTH = 100
"""Columns when stdout is not a terminal, so that what is piped does not depend on a window."""
PLAN_FORMATS = ("text", "wide", "json", "yaml", "markdown", "html", "name")
_RED, _YELLOW, _DIM = "1;31", "1;33", "2"


class Output:
    """Made once per command from the options of `cli.options.output_options`; streams and environment are injectable.

    Data goes to stdout by `data`; everything else here goes to stderr. `quiet` drops notes and hints, never warnings,
    errors or questions.
    """

    def __init__(
        self,
        *,
        color: str = "auto",
        progress: str = "auto",
        quiet: bool = False,
        verbose: bool = False,
        no_input: bool = False,
        yes: bool = False,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.environ = os.environ if environ is None else environ
        self.stdin = sys.stdin if stdin is None else stdin
        out, err = stdout or sys.stdout, stderr or sys.stderr
        self.out = Stream(out, color=wants_color(color, out, self.environ))
        self.err = Stream(err, color=wants_color(color, err, self.environ))
        self.quiet = quiet
        self.verbose = verbose
        self.yes = yes
        self._no_input = no_input
        self._progress = progress

    @classmethod
    def for_errors(cls) -> Output:
        """For faults that happen before or outside a command."""
        return cls()

    @property
    def width(self) -> int:
        """Columns for text on stdout."""
        return self.out.columns(DEFAULT_WIDTH)

    def data(self, text: str, *, machine: bool = False) -> None:
        """The result of the command. `machine` formats are UTF-8 whatever the terminal speaks."""
        self.out.write(text if text.endswith("\n") or not text else f"{text}\n", utf8=machine)

    def note(self, text: str) -> None:
        if not self.quiet:
            self._say(text)

    def detail(self, text: str) -> None:
        """Only with --verbose."""
        if self.verbose and not self.quiet:
            self._say(self.err.paint(_DIM, self.err.safe(text)), safe=True)

    def hint(self, text: str) -> None:
        """What to do next; automation (GEZELCTL_IN_AUTOMATION) has its own next step."""
        if not self.quiet and not self.environ.get("GEZELCTL_IN_AUTOMATION"):
            self._say(f"hint: {text}")

    def warning(self, text: str) -> None:
        self._say(f"{self.err.paint(_YELLOW, 'warning:')} {self.err.safe(text)}", safe=True)
        self.annotate("warning", text)

    def problem(self, text: str) -> None:
        """A line about something that failed; said also under --quiet."""
        self._say(text)

    def diagnostics(self, found: tuple[Diagnostic, ...]) -> None:
        """All findings on stderr, and as annotations of the pull request under GitHub Actions."""
        self.err.write(render_diagnostics(found))
        self.annotate_all(found)

    def annotate_all(self, found: tuple[Diagnostic, ...]) -> None:
        for one in found:
            cure = f" ({one.cure})" if one.cure else ""
            self.annotate(one.severity, f"{one.code}: {one.summary}{cure}", one)

    def fault(self, error: GezelctlError) -> ExitCode:
        """Say what went wrong and what to do; returns the exit code."""
        if isinstance(error, InvalidConfig):
            self.diagnostics(error.diagnostics)
        else:
            self.annotate("error", error.message)
        self._say(f"{self.err.paint(_RED, 'error:')} {self.err.safe(error.message)}", safe=True)
        if error.cure:
            self._say(f"  cure: {error.cure}")
        return error.exit_code

    def confirm(self, question: str, expected: str = "yes") -> bool:
        """Ask until one line is read; only the exact `expected` word agrees. --yes agrees unasked.

        Raises RefusedError when nobody can be asked.
        """
        if self.yes:
            return True
        if self._no_input or not is_terminal(self.stdin):
            why = "--no-input forbids asking" if self._no_input else "there is no terminal to ask at"
            raise RefusedError(
                f"{question} Nothing was changed, since {why}", cure="Agree with --yes.", code="NEEDS_YES"
            )
        self.err.write(f"{self.err.safe(question)} Type {self.err.safe(expected)} to go on: ")
        return self.stdin.readline().strip() == expected

    def progress(self) -> Progress:
        """A reporter for the executor, as --progress, the terminal and CI ask for; close it when done."""
        from gezelctl.cli.progress import Progress, choose_mode

        return Progress(self.err, choose_mode(self._progress, self.err, self.environ, quiet=self.quiet))

    def step_summary(self, markdown: str) -> None:
        """Append to the job summary under GitHub Actions; nothing elsewhere."""
        path = self.environ.get("GITHUB_STEP_SUMMARY")
        if not path:
            return
        try:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(markdown)
        except OSError as error:
            self.warning(f"cannot write the job summary {path}: {error.strerror or error}")

    def _say(self, text: str, *, safe: bool = False) -> None:
        self.err.write(f"{text if safe else self.err.safe(text)}\n")

    def annotate(self, severity: str, message: str, found: Diagnostic | None = None) -> None:
        """Under GitHub Actions only: shown in the pull request, at the finding's line when it has one."""
        if self.environ.get("GITHUB_ACTIONS") == "true":
            self.err.write(annotate(severity, message, found.place if found else None))


def parse_report(spec: str) -> tuple[str, Path]:
    """FORMAT=FILE of --report. Raises UsageFault for another form or an unknown format."""
    kind, equals, path = spec.partition("=")
    if not equals or not path:
        raise UsageFault(f"--report {spec}: not FORMAT=FILE", cure="Write for example --report markdown=plan.md.")
    if kind not in PLAN_FORMATS:
        raise UsageFault(f"--report {spec}: unknown format {kind}", cure=f"Formats: {', '.join(PLAN_FORMATS)}.")
    return kind, Path(path)


def write_file(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a whole file or nothing: temporary file beside it, fsync, rename. `mode` is for saved plans (0600).

    Raises GezelctlError when the place cannot be written.
    """
    import tempfile

    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise GezelctlError(
            f"cannot write {path}: {error.strerror or error}",
            cure="Name a file in a folder that exists and may be written.",
            code="OUTPUT_FAILED",
        ) from error

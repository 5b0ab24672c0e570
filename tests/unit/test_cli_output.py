"""The output object on real streams, a real pipe and a real terminal."""

from __future__ import annotations

import io
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gezelctl.cli.annotations import annotate
from gezelctl.cli.output import Output, parse_report, write_file
from gezelctl.cli.plan_view import plan_document, show_plan, write_reports
from gezelctl.cli.terminal import wants_color
from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, Place
from gezelctl.errors import ExitCode, GezelctlError, RefusedError, StalePlan, UsageFault
from gezelctl.plan.render_json import plan_from_json
from tests import planmake


class Terminal(io.StringIO):
    """A text buffer that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def make(
    *, environ: dict[str, str] | None = None, stdin: io.StringIO | None = None, **options: bool | str
) -> tuple[Output, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    chosen = {"color": "auto", "quiet": False, "verbose": False, "no_input": False, "yes": False} | options
    output = Output(stdin=stdin or io.StringIO(), stdout=out, stderr=err, environ=environ or {}, **chosen)  # type: ignore[arg-type]  # a mapping of mixed types
    return output, out, err


@pytest.mark.parametrize(
    ("choice", "environ", "terminal", "expected"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("always", {"NO_COLOR": "1", "TERM": "dumb"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_color_precedence(choice: str, environ: dict[str, str], terminal: bool, expected: bool) -> None:
    assert wants_color(choice, Terminal() if terminal else io.StringIO(), environ) is expected


def test_color_is_judged_for_each_stream() -> None:
    output = Output(stdin=io.StringIO(), stdout=io.StringIO(), stderr=Terminal(), environ={})
    assert (output.out.color, output.err.color) == (False, True)


def test_stdout_carries_data_only() -> None:
    output, out, err = make(environ={"GITHUB_ACTIONS": "true"}, verbose=True)
    output.note("a note")
    output.detail("a detail")
    output.hint("a hint")
    output.warning("a warning")
    output.diagnostics((Diagnostic(code="E1", summary="bad"),))
    output.fault(StalePlan("gone", cure="Again."))
    output.data("the data")
    assert out.getvalue() == "the data\n"
    for text in ("a note", "a detail", "a hint", "a warning", "E1", "gone"):
        assert text in err.getvalue()


def test_quiet_keeps_warnings_and_errors() -> None:
    output, _, err = make(quiet=True, verbose=True)
    output.note("a note")
    output.detail("a detail")
    output.hint("a hint")
    output.warning("a warning")
    output.fault(GezelctlError("an error", cure="A cure."))
    assert err.getvalue() == "warning: a warning\nerror: an error\n  cure: A cure.\n"


def test_hints_are_dropped_in_automation() -> None:
    output, _, err = make(environ={"GEZELCTL_IN_AUTOMATION": "1"})
    output.hint("now run apply")
    assert err.getvalue() == ""


def test_fault_returns_the_exit_code_and_escapes_foreign_text() -> None:
    output, _, err = make()
    assert output.fault(RefusedError("no \x1b[2J way\nsecond line")) == ExitCode.REFUSED
    assert err.getvalue() == "error: no \\x1b[2J way\nsecond line\n"


def test_invalid_configuration_shows_every_finding_and_annotates() -> None:
    output, _, err = make(environ={"GITHUB_ACTIONS": "true"})
    found = (
        Diagnostic(code="E0102", summary="two\nlines", cure="do, it", place=Place("models, x.yaml", 3, 5)),
        Diagnostic(code="W0301", summary="hm", severity="warning"),
    )
    assert output.fault(InvalidConfig(found)) == ExitCode.INVALID
    text = err.getvalue()
    assert "models, x.yaml:3:5: error[E0102]" in text
    assert "::error file=models%2C x.yaml,line=3,col=5::E0102: two%0Alines (do, it)\n" in text
    assert "::warning::W0301: hm\n" in text
    assert "error: 1 error in the configuration\n" in text


def test_annotation_escapes_percent() -> None:
    assert annotate("error", "100%\r", None) == "::error::100%25%0D\n"


def test_confirm_agrees_only_to_the_expected_word() -> None:
    for typed, expected, agreed in [
        ("yes\n", "yes", True),
        ("y\n", "yes", False),
        ("", "yes", False),
        ("chat\n", "chat", True),
    ]:
        output, out, err = make(stdin=Terminal(typed))
        assert output.confirm("Delete server.chat?", expected) is agreed
        assert err.getvalue() == f"Delete server.chat? Type {expected} to go on: "
        assert out.getvalue() == ""


def test_confirm_without_a_terminal_is_refused_with_the_flag() -> None:
    for output in (make()[0], make(stdin=Terminal("yes\n"), no_input=True)[0]):
        with pytest.raises(RefusedError) as caught:
            output.confirm("Apply?")
        assert "--yes" in caught.value.cure


def test_yes_is_not_asked() -> None:
    output, _, err = make(yes=True, no_input=True)
    assert output.confirm("Apply?")
    assert err.getvalue() == ""


def test_a_stream_that_cannot_encode_gets_escapes_and_json_stays_utf8() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    output = Output(stdin=io.StringIO(), stdout=stream, stderr=io.StringIO(), environ={})
    assert output.out.ascii_only
    output.data("é →")
    output.data('{"a": "é"}', machine=True)
    assert raw.getvalue() == b'\\xe9 \\u2192\n{"a": "\xc3\xa9"}\n'


def test_surrogates_do_not_crash_output() -> None:
    raw = io.BytesIO()
    output = Output(
        stdin=io.StringIO(), stdout=io.TextIOWrapper(raw, encoding="utf-8"), stderr=io.StringIO(), environ={}
    )
    output.data("bad \udcff")
    output.data("bad \udcff", machine=True)
    assert raw.getvalue() == b"bad \\udcff\n" * 2


SCRIPT = """
import sys
from gezelctl.cli.output import Output
output = Output()
for _ in range(3000):
    output.data("x" * 100)
output.note("went on")
"""


def test_a_reader_that_leaves_is_no_error() -> None:
    """`gezelctl … | head -1`: no traceback, no complaint at exit, and the command goes on to its end."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert error == "went on\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_a_full_disk_is_a_named_error() -> None:
    with Path("/dev/full").open("w") as full:
        output = Output(stdin=io.StringIO(), stdout=full, stderr=io.StringIO(), environ={})
        with pytest.raises(GezelctlError) as caught:
            output.data("x")
        assert "No space left" in caught.value.message


@pytest.fixture
def terminal() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """A pseudo-terminal: the reading end as a descriptor, the writing end as a text stream."""
    reader, writer = pty.openpty()
    stream = os.fdopen(writer, "w", encoding="utf-8")
    yield reader, stream
    stream.close()
    os.close(reader)


def read(terminal: int, end: str) -> str:
    """What the terminal got, up to `end`: one read may return a part of it."""
    text = ""
    while end not in text:
        text += os.read(terminal, 65536).decode()
    return text


def test_on_a_real_terminal_text_is_coloured(terminal: tuple[int, io.TextIOWrapper]) -> None:
    reader, stream = terminal
    output = Output(stdin=io.StringIO(), stdout=stream, stderr=io.StringIO(), environ={"TERM": "xterm"})
    show_plan(output, planmake.BLOCKED, "text")
    assert "\x1b[1;31m  !\x1b[0m" in read(reader, "Legend:")


def test_a_live_line_gives_way_to_other_text(terminal: tuple[int, io.TextIOWrapper]) -> None:
    reader, stream = terminal
    output = Output(
        stdin=io.StringIO(), stdout=io.StringIO(), stderr=stream, environ={"TERM": "xterm", "NO_COLOR": "1"}
    )
    output.err.draw("50 %")
    output.warning("slow")
    output.err.draw("60 %")
    output.err.draw("")
    clear = "\r\x1b[2K"
    expected = f"{clear}50 %{clear}warning: slow\r\n{clear}60 %{clear}"
    assert read(reader, f"60 %{clear}") == expected


@pytest.mark.parametrize("kind", ["text", "wide", "json", "yaml", "markdown", "name"])
def test_plans_in_every_format(kind: str) -> None:
    output, out, err = make()
    show_plan(output, planmake.FIRST, kind)
    assert out.getvalue() == plan_document(planmake.FIRST, kind)
    assert "server.embed-small" in out.getvalue()
    assert err.getvalue() == ""


def test_reports(tmp_path: Path) -> None:
    specs = [parse_report(f"{kind}={tmp_path / kind}") for kind in ("json", "markdown", "text")]
    write_reports(planmake.FIRST, specs)
    assert plan_from_json((tmp_path / "json").read_text()) == planmake.FIRST
    assert (tmp_path / "markdown").read_text().startswith("<!-- gezelctl:plan")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["json", "markdown", "text"]


@pytest.mark.parametrize("spec", ["markdown", "=x", "pdf=x", "json="])
def test_a_bad_report_is_a_usage_error(spec: str) -> None:
    with pytest.raises(UsageFault):
        parse_report(spec)


def test_write_file_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_file(path, "one", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    write_file(path, "two")
    assert path.read_text() == "two"
    with pytest.raises(GezelctlError) as caught:
        write_file(tmp_path / "missing" / "plan.json", "x")
    assert caught.value.cure
    (tmp_path / "folder").mkdir()
    with pytest.raises(GezelctlError):
        write_file(tmp_path / "folder", "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "plan.json"]


def test_step_summary(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    output, _, err = make(environ={"GITHUB_STEP_SUMMARY": str(path)})
    output.step_summary("one\n")
    output.step_summary("two\n")
    assert path.read_text() == "one\ntwo\n"
    bad, _, err = make(environ={"GITHUB_STEP_SUMMARY": str(tmp_path)})
    bad.step_summary("x")
    assert "cannot write the job summary" in err.getvalue()
    make()[0].step_summary("nowhere")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_reason_to_fail(closed: str) -> None:
    program = f"exec {shlex.quote(sys.executable)} -m gezelctl version {closed}"
    done = subprocess.run(["sh", "-c", program], cwd=Path(__file__).parents[2], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")

"""How findings look: sorted, with the line and a caret under the value, safe for a terminal, and as data."""

from __future__ import annotations

from gezelctl.config.diagnostics import Diagnostic, Place, render_diagnostics
from gezelctl.config.hints import did_you_mean, nearest, show

FOUND = Diagnostic(
    code="E0105", summary="no", cure="do it", place=Place("f", 12, 4, 6), snippet="a: 42", address="server.chat"
)


def test_a_finding_points_at_its_value() -> None:
    assert render_diagnostics([FOUND]) == (
        "f:12:4: error[E0105]: no\n   |\n12 | a: 42\n   |    ^^\n   = server.chat\n   = cure: do it\n"
    )


def test_findings_are_sorted_and_set_apart() -> None:
    first = Diagnostic(code="E1", summary="one", place=Place("a", 1, 1))
    last = Diagnostic(code="E2", summary="two", place=Place("b", 1, 1))
    assert render_diagnostics([last, first]) == "a:1:1: error[E1]: one\n\nb:1:1: error[E2]: two\n"
    assert render_diagnostics([]) == ""


def test_a_tab_before_the_value_keeps_the_caret_under_it() -> None:
    found = Diagnostic(code="E", summary="s", place=Place("f", 1, 3, 4), snippet="a\tb")
    assert render_diagnostics([found]).splitlines()[-1] == "  |  \t^"


def test_a_long_line_is_cut_around_the_value() -> None:
    line = "x" * 5000 + "HERE" + "y" * 5000
    rows = render_diagnostics(
        [Diagnostic(code="E", summary="s", place=Place("f", 1, 5001, 5005), snippet=line)]
    ).splitlines()
    assert max(map(len, rows)) < 160
    assert rows[2][rows[3].index("^") : rows[3].rindex("^") + 1] == "HERE"


def test_nothing_reaches_the_terminal_that_could_steer_it() -> None:
    found = Diagnostic(code="E", summary="a\x1b[2Jb\nc", cure="\x9b", place=Place("f", 1, 1), snippet="\u202ex\x07")
    text = render_diagnostics([found])
    assert all(char.isprintable() or char == "\n" for char in text)
    assert text.count("\n") == 5


def test_near_matches() -> None:
    assert nearest("n_max", ["nMax", "nMin"]) == "nMax"
    assert nearest("prot", ["port", "name"]) == "port"
    assert nearest("zzz", ["port"]) == ""
    assert did_you_mean("zzz", ["b", "a"], kind="hosts") == "known hosts: a, b"
    assert did_you_mean("zzz", [], kind="hosts") == "there are no hosts yet"
    assert show("hf_0123456789abcdefghij") == '"***"'
    assert len(show("x" * 1000)) < 70

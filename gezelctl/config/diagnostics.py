"""Findings with a place, a code and a cure; all findings of a run are reported at once (ux contract 3.14)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from gezelctl.errors import ExitCode, GezelctlError


class Place(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """Where a value stands in a file: 1-based line and column; `end_column` is exclusive, 0 when unknown."""

    file: str
    line: int
    column: int
    end_column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def short(self) -> str:
        return f"{self.file}:{self.line}"


class Diagnostic(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One finding. `code` is stable (E0102); `cure` is one imperative sentence; `snippet` is the source line."""

    code: str
    summary: str
    cure: str = ""
    severity: Literal["error", "warning"] = "error"
    place: Place | None = None
    snippet: str = ""
    address: str = ""

    @property
    def sort_key(self) -> tuple[str, int, int, str, str]:
        place = self.place
        return (
            (place.file, place.line, place.column, self.code, self.summary)
            if place
            else ("", 0, 0, self.code, self.summary)
        )


class InvalidConfig(GezelctlError, ValueError):
    """One or more error diagnostics; `diagnostics` holds them all, sorted by place."""

    exit_code = ExitCode.INVALID

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(sorted(diagnostics, key=lambda d: d.sort_key))
        errors = sum(d.severity == "error" for d in self.diagnostics)
        super().__init__(f"{errors} error{'s' if errors != 1 else ''} in the configuration")


_MAX_SNIPPET = 140
_UNSHOWABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def render_diagnostics(diagnostics: Sequence[Diagnostic]) -> str:
    """Findings as text, sorted by place: `file:line:col: error[CODE]: summary`, the line with a caret, the cure."""
    return "\n".join(_render(found) for found in sorted(diagnostics, key=lambda found: found.sort_key))


def _render(found: Diagnostic) -> str:
    where = f"{found.place}: " if found.place else ""
    lines = [f"{where}{found.severity}[{found.code}]: {found.summary}"]
    number = str(found.place.line) if found.place else ""
    pad = " " * len(number)
    if found.place and found.snippet:
        text, start, width = _window(found.snippet, found.place)
        lead = "".join("\t" if char == "\t" else " " for char in text[:start])
        lines += [f"{pad} |", f"{number} | {text}", f"{pad} | {lead}{'^' * width}"]
    if found.address:
        lines.append(f"{pad} = {found.address}")
    if found.cure:
        lines.append(f"{pad} = cure: {found.cure}")
    return "".join(f"{_UNSHOWABLE.sub('�', line)}\n" for line in lines)


def _window(snippet: str, place: Place) -> tuple[str, int, int]:
    """The part of a long line around the caret, the caret's offset in it, and its width."""
    start = min(place.column - 1, len(snippet))
    width = max(1, min((place.end_column or place.column + 1) - place.column, len(snippet) - start))
    if len(snippet) <= _MAX_SNIPPET:
        return snippet, start, width
    first = max(0, start - _MAX_SNIPPET // 2)
    text = snippet[first : first + _MAX_SNIPPET]
    return text, start - first, min(width, max(1, len(text) - (start - first)))

"""Findings with a place, a code and a cure; all findings of a run are reported at once (ux contract 3.14)."""

from __future__ import annotations

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
        return (place.file, place.line, place.column, self.code, self.summary) if place else ("", 0, 0, self.code, self.summary)


class InvalidConfig(GezelctlError, ValueError):  # noqa: N818 - named for what it says to the person, like its siblings
    """One or more error diagnostics; `diagnostics` holds them all, sorted by place."""

    exit_code = ExitCode.INVALID

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(sorted(diagnostics, key=lambda d: d.sort_key))
        errors = sum(d.severity == "error" for d in self.diagnostics)
        super().__init__(f"{errors} error{'s' if errors != 1 else ''} in the configuration")

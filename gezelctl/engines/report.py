"""Findings and notes gathered while a launch is rendered; all of them are reported at once."""

from __future__ import annotations

from typing import Literal

from gezelctl.config.desired import DesiredServer
from gezelctl.config.diagnostics import Diagnostic


class Report:
    """Collects diagnostics of one server, with places looked up by dotted field name."""

    def __init__(self, server: DesiredServer) -> None:
        self._server = server
        self.diagnostics: list[Diagnostic] = []
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """One line on a decision, in the order taken."""
        if text not in self.notes:
            self.notes.append(text)

    def error(self, code: str, field: str, summary: str, cure: str) -> None:
        self._add("error", code, field, summary, cure)

    def warning(self, code: str, field: str, summary: str, cure: str) -> None:
        self._add("warning", code, field, summary, cure)

    @property
    def failed(self) -> bool:
        return any(d.severity == "error" for d in self.diagnostics)

    def _add(self, severity: Literal["error", "warning"], code: str, field: str, summary: str, cure: str) -> None:
        place = self._server.place(field)
        self.diagnostics.append(Diagnostic(code, summary, cure, severity, place, address=self._server.address))

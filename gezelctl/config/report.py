"""Collects the findings of one configuration, each with its place, snippet and address, and without secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, Place
from gezelctl.config.redact import mask_all
from gezelctl.config.source import SourceText
from gezelctl.config.yaml12 import Node

_MIN_MASKED = 4
"""Shorter strings are not replaced inside messages: they would blank out ordinary words."""


class Report:
    """`error` and `warn` take the path of the value in the merged document; `key=True` points at its key."""

    def __init__(self, root: Node, sources: Mapping[str, SourceText]) -> None:
        self.root = root
        self.sources = sources
        self._found: dict[tuple[str, int, int, str, str], Diagnostic] = {}
        self._secrets: set[str] = set()

    def error(self, code: str, path: Sequence[str | int], summary: str, cure: str, *, key: bool = False) -> None:
        place = self.root.key_place(path) if key else self.root.find(path).place
        self._add(Diagnostic(code=code, summary=summary, cure=cure, place=place, address=self._address(path)))

    def warn(self, code: str, path: Sequence[str | int], summary: str, cure: str) -> None:
        place, address = self.root.find(path).place, self._address(path)
        self._add(Diagnostic(code=code, summary=summary, cure=cure, severity="warning", place=place, address=address))

    def literal_secret(self, node: Node, summary: str, cure: str) -> None:
        """Report a secret that stands in the file and mask it from here on; its place does not tell its length."""
        self.hide(node)
        self.error_at("E0123", Place(node.file, node.place.line, node.place.column), summary, cure)

    def error_at(self, code: str, place: Place, summary: str, cure: str) -> None:
        self._add(Diagnostic(code=code, summary=summary, cure=cure, place=place))

    def hide(self, node: Node) -> None:
        """Take the text of a scalar as a secret: it is masked in every finding."""
        line, column, end_line, end_column = node.span
        self.sources[node.file].hide(line + 1, column + 1, end_line + 1, end_column + 1)
        if isinstance(node.data, str) and len(node.data) >= _MIN_MASKED:
            self._secrets.add(node.data)

    @property
    def error_count(self) -> int:
        return sum(found.severity == "error" for found in self._found.values())

    def findings(self) -> tuple[Diagnostic, ...]:
        return tuple(sorted((self._finish(found) for found in self._found.values()), key=lambda found: found.sort_key))

    def raise_errors(self) -> None:
        """Raises InvalidConfig with every finding, warnings included, when one of them is an error."""
        if self.error_count:
            raise InvalidConfig(self.findings())

    def _add(self, found: Diagnostic) -> None:
        self._found.setdefault(found.sort_key, found)

    def _finish(self, found: Diagnostic) -> Diagnostic:
        place = found.place
        source = self.sources.get(place.file) if place else None
        return Diagnostic(
            code=found.code,
            summary=self._clean(found.summary),
            cure=self._clean(found.cure),
            severity=found.severity,
            place=place,
            snippet=self._snippet(source, place) if source and place else "",
            address=self._clean(found.address),
        )

    def _snippet(self, source: SourceText, place: Place) -> str:
        """The source line, "" when a secret before the column would set the caret in the wrong place."""
        line = self._clean(source.snippet(place.line))
        before = place.column - 1
        return line if line[:before] == source.lines[place.line - 1][:before] else ""

    def _clean(self, text: str) -> str:
        return mask_all(text, self._secrets)

    def _address(self, path: Sequence[str | int]) -> str:
        if len(path) < 2:
            return ""
        if path[0] == "models":
            name = self.root.find(path[:2]).child("name")
            known = name is not None and isinstance(name.data, str) and name.data.isprintable()
            return f"server.{name.data}" if known and name is not None else ""
        return f"engine.{path[1]}" if path[0] == "backends" else ""

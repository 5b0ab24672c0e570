"""GitHub Actions workflow commands: findings shown at their line in the pull request."""

from __future__ import annotations

from gezelctl.config.diagnostics import Place

_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_DATA, ":": "%3A", ",": "%2C"}


def annotate(severity: str, message: str, place: Place | None) -> str:
    """`::error file=…,line=…,col=…::message`, ending with a newline; `severity` is error or warning."""
    where = ""
    if place:
        where = f" file={_escape(place.file, _PROPERTY)},line={place.line},col={place.column}"
    return f"::{severity}{where}::{_escape(message, _DATA)}\n"


def _escape(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(char, char) for char in text)

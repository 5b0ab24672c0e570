"""Argument parsing and --help in llama-server's form, so that one probe and one log classifier read both."""

from __future__ import annotations

import textwrap
from types import ModuleType
from typing import Any

from gezelctl.embedded.options import BY_NAME, OPTIONS, Option

_COLUMN = 40
_WIDTH = 70
_INFORMATIVE = (
    (("-h", "--help", "--usage"), "print usage and exit"),
    (("--version",), "show version and build info"),
    (("--list-devices",), "print list of available devices and exit"),
)
INFORMATIVE = {name: names[-1] for names, _ in _INFORMATIVE for name in names}


class ArgumentError(ValueError):
    """A command line that llama-server would refuse; the text is llama-server's own."""


def parse(argv: list[str]) -> list[tuple[Option, str, str]]:
    """Split `argv` into (option, spelling, value), in order.

    Raises ArgumentError for an unknown flag or a missing value. Underscores in a flag count as dashes, as in
    llama.cpp (common_params_parse_ex).
    """
    found = []
    at = 0
    while at < len(argv):
        spelling = argv[at]
        name = spelling.replace("_", "-") if spelling.startswith("--") else spelling
        option = BY_NAME.get(name)
        if option is None:
            raise ArgumentError(f"error: invalid argument: {spelling}")
        value = ""
        if option.metavar:
            at += 1
            if at == len(argv):
                raise ArgumentError(f'error while handling argument "{spelling}": expected value for argument')
            value = argv[at]
        found.append((option, name, value))
        at += 1
    return found


def apply(found: list[tuple[Option, str, str]], xllamacpp: ModuleType, params: Any) -> None:
    """Set every parsed option in `params`; the last of a repeated flag wins. Raises ArgumentError."""
    for option, name, value in found:
        setter = option.negate if option.negate and name in option.negations else option.apply
        try:
            setter(xllamacpp, params, value)
        except ValueError as error:
            reason = "stoi" if str(error).startswith("invalid literal") else str(error)
            raise ArgumentError(f'error while handling argument "{name}": {reason}') from error


def help_text() -> str:
    """The whole --help."""
    lines = ["----- common params -----", ""]
    lines += [line for names, text in _INFORMATIVE for line in _entry(_head(names), text)]
    for option in OPTIONS:
        lines += _entry(f"{_head((*option.names, *option.negations))} {option.metavar}".rstrip(), _body(option))
    return "\n".join(lines) + "\n"


def _head(names: tuple[str, ...]) -> str:
    """All spellings; a short first one is padded, so that the long ones stand in a column."""
    first, *rest = names
    if not rest:
        return first
    lead = f"{first},".ljust(7) if len(first) < 6 else f"{first}, "
    return lead + ", ".join(rest)


def _body(option: Option) -> str:
    return f"{option.help}\n(env: {option.env})" if option.env else option.help


def _entry(head: str, body: str) -> list[str]:
    wrapped = [part for line in body.split("\n") for part in textwrap.wrap(line, _WIDTH) or [""]]
    if len(head) >= _COLUMN:
        return [head, *(" " * _COLUMN + line for line in wrapped)]
    return [head.ljust(_COLUMN) + wrapped[0], *(" " * _COLUMN + line for line in wrapped[1:])]

"""Foreign text inside GitHub-flavoured Markdown: what goes in stays text, whatever it holds.

A model name, a path or an error line is written by others. Inside a table cell it may not end the cell or the row, in
prose it may not start markup, a link, a mention or HTML, in a fence it may not close the fence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gezelctl.plan.units import printable

_MARKUP = re.compile(
    r"[\\`*\[\]<>|&~$]|(?<![^\W_])_|_(?![^\W_])|(?i:(?<=\bwww)\.|:(?=//)|(?<=\bmailto):|(?<=\bxmpp):)|[@#](?=\w)"
)
"""What starts something in the middle of a line. What does so only at its start (-, +, 1.) never stands there."""
_SPAN = re.compile(r"[^`|\s](?:[^`|]*[^`|\\\s])?\Z")
_NOT_WORD = re.compile(r"[^\w ]|_", re.ASCII)
_BACKTICKS = re.compile(r"`+")
_ZERO_WIDTH_SPACE = "&#8203;"


def prose(text: str) -> str:
    """Foreign text after other text on a line, or in a cell: markup becomes entities, links are broken.

    GitHub finds mentions and issue numbers in the rendered text, where an entity is a character again: a zero-width
    space parts them.
    """
    return _MARKUP.sub(_defused, printable(text))


def _defused(found: re.Match[str]) -> str:
    char = found.group()
    return f"{char}{_ZERO_WIDTH_SPACE}" if char in "@#" else _entity(char)


def code(text: str) -> str:
    """Foreign text as code, also inside a table cell; a code span where that is safe, else `<code>` with entities."""
    safe = printable(text)
    if _SPAN.match(safe):
        return f"`{safe}`"
    return f"<code>{_NOT_WORD.sub(lambda m: _entity(m.group()), safe)}</code>" if safe else ""


def fence(lines: Sequence[str], language: str) -> list[str]:
    """Lines in a fence that is longer than any run of backticks in them; line breaks in a line are escaped."""
    shown = [printable(line) for line in lines]
    longest = max((len(run) for line in shown for run in _BACKTICKS.findall(line)), default=0)
    marks = "`" * max(3, longest + 1)
    return [f"{marks}{language}", *shown, marks]


def comment(text: str) -> str:
    """Foreign text inside an HTML comment: anything but letters, digits, dot, single dash and underscore as %XX."""
    encoded = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else _percent(c) for c in text)
    return encoded.replace("--", "-%2D").replace("--", "-%2D")


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def _entity(char: str) -> str:
    return f"&#{ord(char)};"

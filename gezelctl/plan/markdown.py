"""Foreign text inside GitHub-flavoured Markdown: what goes in stays text, whatever it holds.

A model name, a path or an error line is written by others. Inside a table cell it may not end the cell or the row, in
prose it may not start markup, a link, a mention or HTML, in a fence it may not close the fence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gezelctl.plan.units import printable

_MARKUP = re.compile(r"[\\`*_{}\[\]<>()#+!|&~$^=\"'-]")
_LINKS = re.compile(r"(?i)(?<=\bwww)\.|:(?=//)|(?<=\bmailto):|(?<=\bxmpp):")
_SPAN = re.compile(r"[^`|\\<>&\s](?:[^`|\\<>&]*[^`|\\<>&\s])?\Z")
_NOT_WORD = re.compile(r"[^\w ]|_", re.ASCII)
_BACKTICKS = re.compile(r"`+")
_ZERO_WIDTH_SPACE = "&#8203;"


def prose(text: str) -> str:
    """Foreign text in running text, a heading or a cell: markup becomes entities, mentions and links are broken."""
    safe = _MARKUP.sub(lambda m: _entity(m.group()), printable(text))
    safe = _LINKS.sub(lambda m: _entity(m.group()), safe)
    return safe.replace("@", f"@{_ZERO_WIDTH_SPACE}")


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

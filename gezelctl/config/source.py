"""One configuration file as text: where its lines are, and which parts of them must never be shown."""

from __future__ import annotations

import re

from gezelctl.config.diagnostics import Place
from gezelctl.config.redact import MASK, mask_line, mask_tokens, may_be_in_secret

# libyaml breaks lines as YAML 1.1 does, so its line numbers count these too.
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


class SourceText:
    """`file` is the name that findings print. Lines and columns are 1-based, columns count characters."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self._lines: list[str] | None = None
        self.secrets_known = False
        """Whether every secret of the file has been hidden; until then, snippets guess and show less."""
        self._hidden: dict[int, list[tuple[int, int | None]]] = {}

    @property
    def lines(self) -> list[str]:
        if self._lines is None:
            self._lines = _LINE_BREAK.split(self.text)
        return self._lines

    def hide(self, line: int, column: int, end_line: int, end_column: int) -> None:
        """Mark a span (end exclusive) as secret; lines that it only touches are hidden from its start on."""
        for number in range(line, end_line + 1):
            start = column if number == line else 1
            self._hidden.setdefault(number, []).append((start, end_column if line == end_line else None))

    def snippet(self, line: int) -> str:
        """The source line without its secrets, "" when it is outside the file or may be part of a secret."""
        if not 1 <= line <= len(self.lines):
            return ""
        text = self.lines[line - 1]
        for start, end in sorted(self._hidden.get(line, ()), reverse=True):
            text = text[: start - 1] + MASK + (text[end - 1 :] if end else "")
        if self.secrets_known:
            return mask_tokens(text)
        return "" if may_be_in_secret(self.lines, line - 1) else mask_line(text)

    def place_at(self, index: int) -> Place:
        """The place of a character offset."""
        line, start = 1, 0
        for found in _LINE_BREAK.finditer(self.text, 0, index):
            line, start = line + 1, found.end()
        return Place(self.file, line, index - start + 1)


def is_text(path: str) -> bool:
    """Whether a path of this machine is UTF-8, as JSON, and so every snapshot and record, needs it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True

"""One output stream: whether it takes colour, what it can encode, and what happens when its reader is gone."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import TextIO

from gezelctl.errors import GezelctlError
from gezelctl.plan.units import printable


def wants_color(choice: str, stream: TextIO, environ: Mapping[str, str]) -> bool:
    """`--color` beats NO_COLOR beats FORCE_COLOR beats TERM=dumb beats whether the stream is a terminal.

    NO_COLOR counts when it is not empty (no-color.org); FORCE_COLOR=0 and an empty one force nothing.
    """
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in {"", "0"}:
        return True
    return environ.get("TERM") != "dumb" and is_terminal(stream)


def is_terminal(stream: TextIO) -> bool:
    """False also for a stream that was closed, which `isatty` refuses to judge."""
    return not stream.closed and stream.isatty()


_CLEAR_LINE = "\r\x1b[2K"


class Stream:
    """Writes whole texts, and keeps at most one live line below them.

    After the reader has gone (`| head`) it stays silent: an apply must not die of it.
    """

    def __init__(self, stream: TextIO, *, color: bool) -> None:
        self.raw = stream
        self.color = color
        self.ascii_only = not _encodes(stream, "→…é")
        self.gone = False
        self._live = False

    @property
    def terminal(self) -> bool:
        return is_terminal(self.raw)

    def columns(self, default: int) -> int:
        """The width of the terminal; `default` when there is none or it does not say."""
        try:
            return os.get_terminal_size(self.raw.fileno()).columns or default
        except (OSError, ValueError):
            return default

    def write(self, text: str, *, utf8: bool = False) -> None:
        """Write and flush. `utf8` is for machine formats, whose encoding is not the terminal's choice.

        Raises GezelctlError when the text cannot be written, for example to a full disk.
        """
        if self.gone or self.raw.closed or not text:
            return
        if self._live:
            self._live, text = False, f"{_CLEAR_LINE}{text}"
        try:
            self._write(text, utf8)
            self.raw.flush()
        except BrokenPipeError:
            self._reader_left()
        except OSError as error:
            self._reader_left()
            raise GezelctlError(
                f"cannot write output: {error.strerror or error}",
                cure="Give it a place with room.",
                code="OUTPUT_FAILED",
            ) from error

    def draw(self, text: str) -> None:
        """Show one live line, which the next text replaces; "" takes it away."""
        if self._live or text:
            self._live = False
            self.write(f"{_CLEAR_LINE}{text}")
            self._live = bool(text)

    def _write(self, text: str, utf8: bool) -> None:
        buffer = getattr(self.raw, "buffer", None)
        if utf8 and buffer is not None:
            self.raw.flush()
            buffer.write(text.encode("utf-8", "backslashreplace"))
        else:
            encoding = self.raw.encoding or "utf-8"
            self.raw.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def _reader_left(self) -> None:
        """What is left in the buffer goes nowhere, or Python would complain once more at exit."""
        self.gone = True
        try:
            number = self.raw.fileno()
        except (io.UnsupportedOperation, ValueError):
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)

    def paint(self, sgr: str, text: str) -> str:
        return f"\x1b[{sgr}m{text}\x1b[0m" if self.color else text

    def safe(self, text: str) -> str:
        """Foreign text for this stream: line breaks stay, all other control characters are escaped."""
        return "\n".join(printable(line, ascii_only=self.ascii_only) for line in text.split("\n"))


def _encodes(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True

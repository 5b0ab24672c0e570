"""Numbers and foreign text as every view of a plan prints them."""

from __future__ import annotations

import re

_RFC_3339 = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})T([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?Z\Z")
_UNITS = ("KiB", "MiB", "GiB")
_STEP = 1024
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def format_bytes(size: int) -> str:
    """Bytes with one decimal in the largest of KiB, MiB, GiB that is at least 1.0, halves rounded up.

    Below 1 KiB the number is exact ("512 B"). Rounding never shows "1024.0 KiB": that is "1.0 MiB". Only integers are
    used, so that the same bytes print the same on every platform.
    """
    if size < 0:
        return f"-{format_bytes(-size)}"
    if size < _STEP:
        return f"{size} B"
    divisor = _STEP
    for unit in _UNITS:
        tenths = (size * 20 + divisor) // (2 * divisor)
        if tenths < _STEP * 10 or unit == _UNITS[-1]:
            return f"{tenths // 10}.{tenths % 10} {unit}"
        divisor *= _STEP
    raise AssertionError("the loop returns at the last unit")


def format_pair(part: int, whole: int, word: str = "of") -> str:
    """Two sizes side by side, the unit once when it is the same: "21.3 of 24.0 GiB"."""
    left, right = format_bytes(part), format_bytes(whole)
    number, _, unit = left.partition(" ")
    return f"{number} {word} {right}" if right.endswith(f" {unit}") else f"{left} {word} {right}"


def format_duration(seconds: float) -> str:
    """The two largest units: "40 s", "2 min 30 s", "1 h 5 min", "3 d 4 h"; whole seconds, rounded down."""
    whole = max(int(seconds), 0)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _two(whole, _MINUTE, "min", 1, "s")
    if whole < _DAY:
        return _two(whole, _HOUR, "h", _MINUTE, "min")
    return _two(whole, _DAY, "d", _HOUR, "h")


def _two(seconds: int, big: int, big_name: str, small: int, small_name: str) -> str:
    first, rest = divmod(seconds, big)
    second = rest // small
    return f"{first} {big_name} {second} {small_name}" if second else f"{first} {big_name}"


def count(number: int, noun: str, plural: str = "") -> str:
    """ "1 server", "2 servers", "0 servers"; `plural` for nouns that do not take an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def format_time(timestamp: str) -> str:
    """RFC 3339 UTC for a person, to the second: "2026-01-12T14:02:11Z" is "2026-01-12 14:02:11 UTC"; else as it is."""
    found = _RFC_3339.match(timestamp)
    return f"{found[1]} {found[2]} UTC" if found else printable(timestamp)


def printable(text: str, *, ascii_only: bool = False) -> str:
    r"""Foreign text on one line, unable to steer a terminal or to reorder what stands around it.

    Control, format (bidirectional overrides, zero-width), surrogate, private and unassigned characters and every
    separator but the space become \xNN, \uNNNN or \UNNNNNNNN; with `ascii_only` everything beyond ASCII does.
    """
    if text.isprintable() and (text.isascii() or not ascii_only):
        return text
    return "".join(_escape(c) if _hidden(c, ascii_only=ascii_only) else c for c in text)


def _hidden(char: str, *, ascii_only: bool) -> bool:
    return not char.isprintable() or (ascii_only and not char.isascii())


def _escape(char: str) -> str:
    known = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}.get(char)
    if known:
        return known
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

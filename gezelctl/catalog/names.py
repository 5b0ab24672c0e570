"""Names that may touch a disk: model ids, versions, contained file names; and the order that fingerprints need."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

# `\Z` and not `$`: `$` also matches before a line feed at the end.
CATALOG_ID = re.compile(r"[a-z0-9][a-z0-9.\-:]{1,63}\Z")
STORE_ID = re.compile(r"[a-z0-9][a-z0-9._\-]{0,63}\Z")
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
REVISION = re.compile(r"[^\x00-\x20\x7f]{1,256}\Z")
HUB_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-.]*/[A-Za-z0-9_][A-Za-z0-9_\-.]*\Z")
SEMVER = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,18})(?:-([0-9A-Za-z.\-]+))?(?:\+[0-9A-Za-z.\-]+)?\Z")

MAX_NAME_CHARS = 1024
MAX_SEGMENT_BYTES = 247
"""255 bytes is what ext4, APFS and XFS allow; `.partial` is appended while a file is fetched."""

_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"com{n}" for n in range(1, 10)), *(f"lpt{n}" for n in range(1, 10))}
)
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DRIVE = re.compile(r"[A-Za-z]:")

SemverKey = tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]


def semver_key(version: str) -> SemverKey | None:
    """Order of a version by semver 2.0 section 11 (a prerelease sorts below its release); None when it is not one."""
    match = SEMVER.match(version)
    if match is None:
        return None
    major, minor, patch, pre = match.groups()
    parts = tuple(_prerelease_part(part) for part in pre.split(".")) if pre else ()
    return int(major), int(minor), int(patch), pre is None, parts


def _prerelease_part(part: str) -> tuple[bool, int, str]:
    numeric = part.isdecimal() and len(part) <= 18
    return (not numeric, int(part) if numeric else 0, "" if numeric else part)


def is_device(segment: str) -> bool:
    """True for a name that Windows keeps for a device, with or without an extension (`aux`, `NUL.txt`)."""
    return segment.split(".", 1)[0].rstrip(" ").lower() in _DEVICES


def name_fault(name: str) -> str:
    """Why `name` is not a contained POSIX relative path; "" when it is one. No disk is touched."""
    if not 1 <= len(name) <= MAX_NAME_CHARS:
        return f"must have 1 to {MAX_NAME_CHARS} characters"
    if CONTROL.search(name):
        return "contains a control character"
    if "\\" in name:
        return "contains a backslash"
    if name.startswith("/") or _DRIVE.match(name):
        return "must be relative"
    faults = (_segment_fault(segment) for segment in name.split("/"))
    return next((fault for fault in faults if fault), "")


def _segment_fault(segment: str) -> str:
    if segment in {"", ".", ".."}:
        return "contains an empty, `.` or `..` segment"
    if is_device(segment):
        return f"`{segment}` is a device name on Windows"
    try:
        size = len(segment.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return f"a segment is longer than {MAX_SEGMENT_BYTES} bytes" if size > MAX_SEGMENT_BYTES else ""


def disk_key(name: str) -> str:
    """Equal for names that are one file where case or Unicode form does not count (the default on macOS)."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


_ROOT_ORDER = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789abcdefghijklmnopqrstuvwxyz"
_PRIMARY = {char: weight for weight, char in enumerate(_ROOT_ORDER, 1)} | {
    char.upper(): weight for weight, char in enumerate(_ROOT_ORDER, 1) if char.isalpha()
}

CollationKey = tuple[tuple[int, ...], tuple[bool, ...]]


def collation_key(name: str) -> CollationKey:
    """Sort key of the CLDR root collation for ASCII names, which is what JavaScript's localeCompare uses.

    First by the characters without regard to case (punctuation, then digits, then letters, a prefix first), then
    lower before upper case at the first place where only the case differs. ASCII control characters cannot stand in
    a checked name. Characters beyond ASCII sort behind all of ASCII by code point; CLDR would interleave them, so a
    fingerprint over such names can differ from one that the reference system recorded, which costs a re-check of the
    installed hashes, never a wrong file.
    """
    primary = tuple(_PRIMARY.get(char, 128 + ord(char)) for char in name)
    return primary, tuple(char.isascii() and char.isupper() for char in name)


def near_names(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """Up to three names that look like `name`, best first; case does not count."""
    from difflib import get_close_matches

    by_folded = {other.casefold(): other for other in names}
    return [by_folded[match] for match in get_close_matches(name.casefold(), by_folded, n=3, cutoff=cutoff)]

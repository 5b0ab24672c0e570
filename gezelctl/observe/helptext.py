"""What an engine prints about itself, as values: `--help`, `--version`, `--list-devices`. Pure text to structs.

The layout is that of llama.cpp's common_arg::to_string: the spellings and a metavar from column 0, the text from
column 40, wrapped, with "(default: …)" and "(env: …)" in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gezelctl.observe.types import Device, Flag

_NAME = re.compile(r"--?[A-Za-z0-9][^\s,]*")
_GAP = re.compile(r" {2,}")
_ENV = re.compile(r"\(env: (\w+)\)")
_DEFAULT = re.compile(r"\bdefault: *([^)].*?)(?=,\s|;\s|\)|\s\(|\.\s|$)")
_BULLET = re.compile(r"^ *- ([a-z][a-z0-9+_-]*)( \(default\))?:")
_ALLOWED = re.compile(r"allowed values: ((?:[\w.+-]+, )*[\w.+-]+)")
_WORDS = re.compile(r"[a-z0-9][a-z0-9+_-]*(?:,[a-z0-9][a-z0-9+_-]*)+")
_REMOVED = "the argument has been removed"
_DEVICE = re.compile(r"^\s+(\S+): (.+) \((\d+) MiB, (\d+) MiB free\)\s*$", re.MULTILINE)
_VERSION = re.compile(r"^version: *(\S.*?)\s*$", re.MULTILINE)
_BUILT = re.compile(r"^built with .*?\S(?=\s*$)", re.MULTILINE)
_BUILD = re.compile(r"\bbuild (\d+)|^(\d+) \(")
_MIB = 1024 * 1024


class HelpText(NamedTuple):
    """The options that a build takes, and those it names only to refuse (spelling → what it says to use)."""

    flags: tuple[Flag, ...]
    removed: dict[str, str]


class VersionText(NamedTuple):
    """`text` is the version line and the compiler line; `build` is llama.cpp's build number, 0 when not printed."""

    text: str
    build: int


class _Header(NamedTuple):
    names: tuple[str, ...]
    metavar: str
    text: str


def parse_help(text: str) -> HelpText:
    """Every option of a `--help` text in its order; text without any option gives no flags."""
    flags: list[Flag] = []
    removed: dict[str, str] = {}
    for header, lines in _options(text):
        joined = " ".join(line.strip() for line in lines if line.strip())
        if _REMOVED in joined:
            hint = _ENV.sub("", joined.partition(_REMOVED)[2]).strip(" .")
            removed.update(dict.fromkeys(header.names, hint))
            continue
        flags.append(_flag(header, lines, joined))
    return HelpText(tuple(flags), removed)


def parse_version(text: str) -> VersionText:
    """Both forms: "version: 4589 (abc1234)" and "version: 0.6.0-dev (build 11434, commit abc1234)"."""
    version = _VERSION.search(text)
    if version is None:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        return VersionText(first, 0)
    built = _BUILT.search(text)
    build = _BUILD.search(version[1])
    number = int(build[1] or build[2]) if build else 0
    return VersionText(version[1] + (f"; {built[0]}" if built else ""), number)


def parse_devices(text: str) -> tuple[Device, ...]:
    """Lines `ID: NAME (N MiB, M MiB free)`; "(none)" gives nothing."""
    return tuple(
        Device(id=m[1], name=m[2], total_bytes=int(m[3]) * _MIB, free_bytes=int(m[4]) * _MIB)
        for m in _DEVICE.finditer(text)
    )


def _options(text: str) -> Iterator[tuple[_Header, list[str]]]:
    """Each option's header with its description lines."""
    header: _Header | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("-----"):
            if header:
                yield header, lines
            header = _header(line)
            lines = [header.text]
        elif line.startswith(" "):
            lines.append(line)
        elif header:
            yield header, lines
            header = None
    if header:
        yield header, lines


def _header(line: str) -> _Header:
    """`-a,    --long, --other META   text` taken apart; spellings end at the first word that is not one."""
    names: list[str] = []
    rest = line
    while match := _NAME.match(rest):
        names.append(match[0])
        rest = rest[match.end() :]
        if not rest.startswith(","):
            break
        rest = rest[1:].lstrip(" ")
    if rest.startswith("  ") or not rest:
        return _Header(tuple(names), "", rest.strip())
    metavar, *text = _GAP.split(rest[1:], maxsplit=1)
    return _Header(tuple(names), metavar.strip(), text[0].strip() if text else "")


def _flag(header: _Header, lines: list[str], joined: str) -> Flag:
    names, negations = _split_negations(header.names)
    default = _default(lines, joined)
    env = _ENV.search(joined)
    return Flag(
        names=names,
        arity=_arity(header.metavar),
        metavar=header.metavar,
        values=_values(header.metavar, lines, joined, default) if header.metavar else (),
        negations=negations,
        default=default,
        env=env[1] if env else "",
    )


def _split_negations(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """llama.cpp prints the positive spellings first; only a pair (some --X with its --no-X) has negations."""
    longs = {name[2:] for name in names if name.startswith("--")}
    if not any(f"no-{name}" in longs for name in longs):
        return names, ()
    last = max(i for i, name in enumerate(names) if name.startswith("--") and not name.startswith("--no-"))
    return names[: last + 1], names[last + 1 :]


def _arity(metavar: str) -> int:
    """Words after the flag; a <…> placeholder is one word however many it holds."""
    return len(re.sub(r"<[^>]*>", "X", metavar).split())


def _values(metavar: str, lines: list[str], joined: str, default: str) -> tuple[str, ...]:
    """The closed domain: from the metavar, from "allowed values:", or from a bullet list (plus its default)."""
    if metavar[0] in "<[{" and metavar[-1] in ">]}":
        parts = re.split(r"[|,]", metavar[1:-1])
        if len(parts) > 1 and all(re.fullmatch(r"[a-z0-9][a-z0-9+_-]*", part) for part in parts):
            return tuple(parts)
    if _WORDS.fullmatch(metavar):
        return tuple(metavar.split(","))
    if allowed := _ALLOWED.search(joined):
        return tuple(allowed[1].split(", "))
    bullets = [m[1] for line in lines if (m := _BULLET.match(line))]
    if len(bullets) < 2:
        return ()
    return tuple(dict.fromkeys([*bullets, default] if re.fullmatch(r"[a-z][\w+-]*", default) else bullets))


def _default(lines: list[str], joined: str) -> str:
    for line in lines:
        if (bullet := _BULLET.match(line)) and bullet[2]:
            return bullet[1]
    match = _DEFAULT.search(joined)
    return match[1].strip().strip("'\"") if match else ""

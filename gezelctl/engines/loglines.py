"""What an engine's last words mean: a named failure with its next step, from the lines of one start and its exit.

llama.cpp opens a model twice (once to fit, once to load) and wraps every cause in general lines, so the first
specific line is the cause. Lines are those of llama-server b9000 to b11434, ggml, and mlx_lm.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from gezelctl.engines.failures import EXITS, GENERIC, HARMLESS, LAST_RESORT, RETRIED, RULES, SILENT_LOSSES, Rule

Retry = Literal["no", "once", "replan"]

_PREFIX = re.compile(
    r"^(?:\d+\.\d\d\.\d{3}\.\d{3} [IWED] |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - [A-Z]+ - )?"
    r"(?:\[mlx(?:_lm\.server|_vlm\.server)?\] )?"
)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST_LINE = 500


class Failure(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Why a server ended. `line` is the engine's own, without its prefix; "" when it said nothing.

    `retry`: `no` = the same start would fail again; `once` = one plain restart may help; `replan` = start with less.
    """

    code: str
    line: str
    summary: str
    cure: str
    retry: Retry = "no"


def bare(line: str) -> str:
    """A log line without time, level, colours and trailing space; cut at 500 characters."""
    return _PREFIX.sub("", _ESCAPES.sub("", line.strip()), count=1)[:_LONGEST_LINE]


def classify(lines: Sequence[str], exit_code: int | None, *, stop_requested: bool = False) -> Failure:
    """Name the failure of one start.

    `lines` are only those of this start. `exit_code` is negative for a signal, as subprocess reports it, or 128 + n as
    a shell does; None while the process still runs.
    """
    exit_code = _shell_signal(exit_code)
    if stop_requested and exit_code in {0, -2, -9, -15}:
        return Failure("STOPPED", "", "stopped as asked", "Run gezelctl apply to start it again.")
    texts = [bare(line) for line in lines]
    found = _first(texts, RULES) or _by_exit(texts, exit_code) or _first(texts, LAST_RESORT)
    return found or _unnamed(texts, exit_code)


def degraded(lines: Sequence[str]) -> tuple[str, ...]:
    """What a server that runs has silently lost (speculation, template, GPU, …): one sentence each, in order."""
    found: dict[str, None] = {}
    for line in map(bare, lines):
        found.update(
            (loss.format(**_named(match)), None) for pattern, loss in SILENT_LOSSES if (match := pattern.search(line))
        )
    return tuple(found)


def _shell_signal(code: int | None) -> int | None:
    return code if code is None or not 128 < code < 160 else 128 - code


def _named(match: re.Match[str]) -> dict[str, str]:
    return {name: value or "" for name, value in match.groupdict().items()}


def _first(texts: Sequence[str], rules: Sequence[Rule]) -> Failure | None:
    """The first line that a rule knows; what came before a line that says the engine tries again does not count."""
    found: Failure | None = None
    for text in texts:
        if RETRIED.search(text):
            found = None
        elif found is None and not HARMLESS.search(text):
            found = next((failure for rule in rules if (failure := _match(rule, text))), None)
    return found


def _match(rule: Rule, text: str) -> Failure | None:
    match = rule.pattern.search(text)
    if match is None:
        return None
    words = {"what": "", **_named(match)}
    return Failure(rule.code, text, rule.summary.format(**words), rule.cure.format(**words), rule.retry)


def _by_exit(texts: Sequence[str], exit_code: int | None) -> Failure | None:
    """Exit codes that name the cause by themselves."""
    exit_rule = EXITS.get(exit_code if exit_code is not None else 0)
    if exit_rule is None:
        return None
    return Failure(exit_rule.code, _last_word(texts), exit_rule.summary, exit_rule.cure, exit_rule.retry)


def _unnamed(texts: Sequence[str], exit_code: int | None) -> Failure:
    how = "still runs" if exit_code is None else f"ended with exit code {exit_code}"
    return Failure("UNKNOWN", _last_word(texts), f"the server {how} and named no cause", "Read the whole log.")


def _last_word(texts: Sequence[str]) -> str:
    """The last line that says something of its own, "" when there is none."""
    telling = [text for text in texts if text and not GENERIC.search(text) and not HARMLESS.search(text)]
    return telling[-1] if telling else ""

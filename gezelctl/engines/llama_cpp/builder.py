"""Builds an argv against one engine build: each flag once, by the build's own name, with values it takes."""

from __future__ import annotations

import msgspec

from gezelctl.engines.llama_cpp.flags import UNKNOWN_ARITY, FlagSet, Match
from gezelctl.engines.report import Report
from gezelctl.engines.types import Scalar

RANGES: dict[str, tuple[float, float | None]] = {
    "--batch-size": (1, None),
    "--ubatch-size": (1, None),
    "--threads": (-1, None),
    "--threads-batch": (-1, None),
    "--poll": (0, 100),
    "--prio": (-1, 3),
    "--cache-ram": (-1, None),
    "--cache-reuse": (0, None),
    "--ctx-checkpoints": (0, None),
    "--checkpoint-min-step": (0, None),
    "--n-predict": (-1, None),
    "--keep": (-1, None),
    "--timeout": (1, None),
    "--main-gpu": (0, None),
    "--n-cpu-moe": (0, None),
    "--fit-ctx": (1, None),
    "--reasoning-budget": (-1, None),
    "--spec-draft-n-max": (1, None),
    "--spec-draft-n-min": (0, None),
    "--temp": (0, None),
    "--top-k": (0, None),
    "--top-p": (0, 1),
    "--min-p": (0, 1),
}
"""Inclusive ranges that llama-server does not check itself: it aborts, or runs with nonsense (measured on b11434)."""

_NONZERO = frozenset({"--threads", "--threads-batch"})
_LISTS = frozenset({"--spec-type"})
_SCALED = frozenset({"--lora-scaled", "--control-vector-scaled"})
_WORDS_FOR_NUMBERS = frozenset({"auto", "all"})


class Item(msgspec.Struct, frozen=True):
    """One option on the command line; `ident` is equal for all spellings of it."""

    ident: str
    tokens: tuple[str, ...]


def text_of(value: Scalar) -> str:
    """A value as llama-server reads it: booleans as words, floats without a trailing exponent surprise."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class Builder:
    """Collects items in order. A second item of the same option replaces the first and moves to the end."""

    def __init__(self, flags: FlagSet, report: Report) -> None:
        self.flags = flags
        self.report = report
        self.items: list[Item] = []

    @property
    def argv(self) -> tuple[str, ...]:
        return tuple(token for item in self.items for token in item.tokens)

    def has(self, name: str) -> bool:
        """Whether the option is on the command line already, under any spelling."""
        match = self.flags.find(name)
        return match is not None and any(item.ident == match.ident for item in self.items)

    def put(self, match: Match, *values: str) -> None:
        self.items = [item for item in self.items if item.ident != match.ident]
        self.items.append(Item(match.ident, (match.spelling, *values)))

    def value(self, name: str, value: Scalar, field: str) -> None:
        """A flag with a value; E0301 when the build lacks it, E0302 or E0304 when it does not take the value."""
        match = self.flags.find(name)
        if match is None:
            self.missing(name, field)
        elif self.check(match, name, value, field):
            self.put(match, text_of(value))

    def optional(self, name: str, value: Scalar, field: str) -> bool:
        """As `value`, but a build without the flag is left without it. True when it was put."""
        if name not in self.flags:
            return False
        self.value(name, value, field)
        return True

    def switch(self, name: str, field: str) -> None:
        match = self.flags.find(name)
        if match is None:
            self.missing(name, field)
        else:
            self.put(match)

    def pair(self, name: str, negation: str, field: str, *, on: bool) -> None:
        """The flag or its negation; a build without the negation has the feature off until it is asked for."""
        match = self.flags.find(name if on else negation)
        if match is not None:
            self.put(match)
        elif on or name in self.flags:
            self.missing(name if on else negation, field)

    def missing(self, name: str, field: str) -> None:
        dropped = self.flags.removed.get(name, "")
        nearest = self.flags.nearest(name)
        hint = f" The build says: {dropped}." if dropped else f" The nearest flag is {nearest}." if nearest else ""
        cure = f"Remove {field or name}, or use a build that has it.{hint}"
        self.report.error("E0301", field, f"{self.flags.label} has no {name}", cure)

    def check(self, match: Match, name: str, value: Scalar, field: str) -> bool:
        """Whether the build takes the value, by its help and by the ranges it fails to check."""
        problem = domain_problem(match, value)
        if problem:
            self.report.error("E0302", field, f"{match.spelling} {text_of(value)}: {problem}", f"Correct {field}.")
            return False
        problem = range_problem(name, value)
        if problem:
            self.report.error("E0304", field, f"{match.spelling} {text_of(value)}: {problem}", f"Correct {field}.")
        return not problem


def domain_problem(match: Match, value: Scalar) -> str:
    """Why the build's own parser would refuse the value, "" when it takes it."""
    flag = match.flag
    word = text_of(value)
    if flag.arity == 0:
        return "the flag takes no value"
    parts = word.split(",") if flag.names[0] in _LISTS or set(flag.names) & _LISTS else [word]
    unknown = next((part for part in parts if flag.values and part not in flag.values), None)
    if unknown is not None:
        return f"{unknown} is not one of {', '.join(flag.values)}"
    if flag.metavar == "N" and not _numeric(word) and word not in _WORDS_FOR_NUMBERS:
        return "not a number"
    return ""


def range_problem(name: str, value: Scalar) -> str:
    """Why the value makes the engine abort or misbehave, "" when it does not."""
    if name in _SCALED and not all(_is_scaled(part) for part in text_of(value).split(",")):
        return "each entry must be PATH:SCALE, without commas or colons in the path"
    if name not in RANGES or not _numeric(text_of(value)):
        return ""
    low, high = RANGES[name]
    number = float(value)
    if number < low or (high is not None and number > high):
        return f"must be {low:g} to {high:g}" if high is not None else f"must be at least {low:g}"
    return "must not be 0" if name in _NONZERO and number == 0 else ""


def takes_value(match: Match) -> bool:
    return match.flag.arity not in {0, UNKNOWN_ARITY}


def _numeric(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _is_scaled(part: str) -> bool:
    path, colon, scale = part.partition(":")
    return bool(path and colon) and _numeric(scale)

"""Near matches and plain words for findings."""

from __future__ import annotations

from collections.abc import Iterable

from gezelctl.config.redact import mask_tokens

_SHOWN = 60


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that was most likely meant, or ""; spelling variants (`n_max`, `N-Max`) match `nMax` exactly."""
    import difflib

    words = sorted(known)
    wanted = plain(word)
    for candidate in words:
        if plain(candidate) == wanted:
            return candidate
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return close[0] if close else ""


def did_you_mean(word: str, known: Iterable[str], *, kind: str) -> str:
    """A cure: the near match, else the list of what is known."""
    words = sorted(known)
    match = nearest(word, words)
    if match:
        return f"did you mean {match}?"
    return f"known {kind}: {', '.join(words)}" if words else f"there are no {kind} yet"


def show(value: object) -> str:
    """A value as a person would write it, on one line, without tokens, at most 60 characters."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    import json

    text = json.dumps(mask_tokens(value) if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def plain(word: str) -> str:
    """A name without what spellings differ in: case, dashes, underscores."""
    return word.replace("-", "").replace("_", "").casefold()

"""What looks like a secret, and how text is cleaned of it before anyone sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
_NAMES = r"(?:api[-_]?key|token|secret|passw(?:or)?d|passphrase|credentials?|authorization)"
_SECRET_KEY = re.compile(rf"(?i){_NAMES}$")
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16})"
)
_USERINFO = re.compile(r"(?<=://)[^/\s@\"']*@")
# The rest of the line goes, not only the value: where a value ends is YAML's business, and the line may not be YAML.
_INLINE = re.compile(rf"(?i)({_NAMES}[\"']?\s*(?::|=)\s*)(?![{{\s]|$).*$")
_OPEN_KEY = re.compile(rf"(?i){_NAMES}[\"']?\s*(?=[:=\n]|$)")
_ENDS_VALUE = re.compile(r"(?m)^\s*(?:- +)?[A-Za-z_][\w.-]*\s*:(?:\s|$)|[{}]")
_LOOK_BACK_LINES = 40


def is_secret_key(key: str) -> bool:
    """Whether a value under this key is a secret by its name (`apiKey`, `HF_TOKEN`, `api-key`)."""
    return _SECRET_KEY.search(key) is not None


def holds_token(text: str) -> bool:
    """Whether text contains an access token by its shape, or a user and password in a URL."""
    return _TOKEN.search(text) is not None or any(":" in found for found in _USERINFO.findall(text))


def mask_tokens(text: str) -> str:
    """Text with access tokens and the user part of URLs replaced by `***`."""
    return _USERINFO.sub(f"{MASK}@", _TOKEN.sub(MASK, text))


def mask_line(line: str) -> str:
    """A source line fit to be shown: tokens masked, and everything after a key that names a secret."""
    return mask_tokens(_INLINE.sub(rf"\1{MASK}", line))


def mask_values(text: str, values: Iterable[str]) -> str:
    """Text with each of the given secret values replaced by `***`, the longest first."""
    for value in sorted({value for value in values if value}, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


def continues_secret(lines_before: list[str]) -> bool:
    """Whether the line after these may carry on the value of a key that names a secret (block or quoted text)."""
    tail = "\n".join(lines_before[-_LOOK_BACK_LINES:])
    ends = [found.end() for found in _OPEN_KEY.finditer(tail)]
    return bool(ends) and _ENDS_VALUE.search(tail, ends[-1]) is None

"""What looks like a secret, and how text is cleaned of it before anyone sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit, urlunsplit

MASK = "***"
_NAMES = r"(?:api[-_]?key|token|secret|passw(?:or)?d|passphrase|credentials?|authorization)"
_SECRET_KEY = re.compile(rf"(?i){_NAMES}$")
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16})"
)
_USERINFO = re.compile(r"(?<=://)[^/\s@\"']+(?=@)")
_REFERENCE = r"\{\s*[\"']?from(?:Env|File)[\"']?\s*:\s*[^\s{}\[\],\"']+\s*\}"
# The rest of the line goes, not only the value: where a value ends is YAML's business, and the line may not be YAML.
_INLINE = re.compile(rf"(?i)({_NAMES}[\"']?\s*(?::|=)\s*)(?!{_REFERENCE}|\s|$).*$")
_OPEN_KEY = re.compile(rf"(?i){_NAMES}[\"']?\s*(?=[:=\n]|$)")
_KEY_LINE = re.compile(r"\s*(?:- +)?[\"']?[A-Za-z_][\w.-]*[\"']?\s*:(?:\s|$)")
_LOOK_BACK_LINES = 200


def is_secret_key(key: str) -> bool:
    """Whether a value under this key is a secret by its name (`apiKey`, `HF_TOKEN`, `api-key`)."""
    return _SECRET_KEY.search(key) is not None


def holds_token(text: str) -> bool:
    """Whether text contains an access token by its shape, or a user and password in a URL."""
    return _TOKEN.search(text) is not None or any(":" in found for found in _USERINFO.findall(text))


def mask_tokens(text: str) -> str:
    """Text with access tokens and the user part of URLs replaced by `***`."""
    return mask_all(text, ())


def mask_line(line: str) -> str:
    """A source line fit to be shown: tokens masked, and everything after a key that names a secret."""
    return mask_tokens(_INLINE.sub(rf"\1{MASK}", line))


def mask_all(text: str, values: Iterable[str]) -> str:
    """Text with the given secret values, access tokens and the user part of URLs replaced by `***`.

    Everything is found in the text as it was and what overlaps is replaced as one, so that a short value inside a
    token does not save the rest of the token.
    """
    spans = [found.span() for pattern in (_TOKEN, _USERINFO) for found in pattern.finditer(text)]
    for value in values:
        start = text.find(value) if value else -1
        while start >= 0:
            spans.append((start, start + len(value)))
            start = text.find(value, start + 1)
    parts, done = [], 0
    for start, end in sorted(spans):
        if start >= done:
            parts += [text[done:start], MASK]
        done = max(done, end)
    return "".join([*parts, text[done:]])


def may_be_in_secret(lines: list[str], index: int) -> bool:
    """Whether a line of a file that is not valid YAML may carry on the value of a key, above it, that names a secret.

    Judged for want of a parser: the line is indented deeper than the key, a bracket opened after the key is not
    closed, or no other key began a line since.
    """
    for start in range(max(0, index - _LOOK_BACK_LINES), index):
        for found in _OPEN_KEY.finditer(lines[start]):
            rest, between = lines[start][found.end() :], lines[start + 1 : index + 1]
            if _reaches(lines[start], rest, between):
                return True
    return False


def _reaches(key_line: str, rest: str, between: list[str]) -> bool:
    indents = [_indent(line) for line in between if line.strip()]
    if all(indent > _indent(key_line) for indent in indents):
        return True
    before = "\n".join([rest, *between[:-1]])
    if sum(before.count(char) for char in "{[") > sum(before.count(char) for char in "}]"):
        return True
    return not any(_KEY_LINE.match(line) for line in between)


def _indent(line: str) -> int:
    """Columns before the first word; a dash does not indent its own list under a key."""
    return len(line) - len(line.lstrip(" \t-"))


def public_url(url: str) -> str:
    """An address as it may be shown: without user, password, query and fragment. Signed links carry secrets there."""
    try:
        parts = urlsplit(url)
    except ValueError:  # what cannot be parsed cannot be cleaned either
        return "(an unreadable address)"
    return mask_tokens(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")))

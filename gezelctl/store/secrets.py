"""A secret in memory: never shown, never encoded, compared by HMAC with a key that stays on the host."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from pathlib import Path

from gezelctl.config.redact import MASK, mask_tokens, mask_values
from gezelctl.errors import GezelctlError


class Secret:
    """A text that only `reveal()` gives out; `repr`, `str`, pickling and JSON do not."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __bool__(self) -> bool:
        return bool(self._value)

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled")


def read_secret(*, from_env: str, from_file: str, env: Mapping[str, str]) -> Secret:
    """The value that a reference names; a file loses one trailing newline. Raises GezelctlError SECRET_MISSING."""
    if from_env:
        value = env.get(from_env, "")
        if not value:
            raise _missing(f"environment variable {from_env} is not set", f"export {from_env} before applying")
        return Secret(value)
    try:
        value = Path(from_file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise _missing(f"{from_file}: {reason}", "make the file readable for the user who applies") from None
    if not value or "\0" in value:
        raise _missing(f"{from_file} holds no usable secret", "write the secret into it as one line")
    return Secret(value)


def _missing(message: str, cure: str) -> GezelctlError:
    return GezelctlError(f"secret cannot be read: {message}", cure=cure, code="SECRET_MISSING")


def secret_mac(key: bytes, secret: Secret) -> str:
    """HMAC-SHA256 in hex: equal for equal values on one host, worthless elsewhere."""
    return hmac.new(key, secret.reveal().encode(), hashlib.sha256).hexdigest()


class Masker:
    """Cleans text of the secrets that were read during this run and of anything shaped like an access token."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._values = {secret.reveal() for secret in secrets}

    def add(self, secret: Secret) -> None:
        self._values.add(secret.reveal())

    def __call__(self, text: str) -> str:
        return mask_tokens(mask_values(text, self._values))

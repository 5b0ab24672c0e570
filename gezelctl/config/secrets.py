"""Secrets: read from where models.yaml points, never shown, compared by a keyed digest."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from gezelctl.config.model import SecretRef
from gezelctl.config.redact import mask_all
from gezelctl.errors import GezelctlError

_SHOWN = "(secret, set)"
_MAX_BYTES = 64 * 1024


class SecretError(GezelctlError):
    """A secret that cannot be had; names the reference, never the value."""


class Secret:
    """A value that only `reveal` gives away. `origin` says where it came from, `warning` what is unsafe about that.

    repr, str, format and `json.dumps(…, default=str)` give "(secret, set)"; pickling and msgspec refuse it.
    """

    __slots__ = ("_value", "origin", "warning")

    def __init__(self, value: str, *, origin: str = "", warning: str = "") -> None:
        self._value = value
        self.origin = origin
        self.warning = warning

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return _SHOWN

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(_SHOWN, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled")


def resolve(ref: SecretRef, base_dir: Path, env: Mapping[str, str] | None = None) -> Secret:
    """Read the secret behind a reference; one trailing line break is dropped.

    `env` is the process environment unless given. Raises SecretError (E0140 to E0144): the variable is not set, the
    file cannot be read, it is empty, not one line, or too large.
    """
    if ref.from_env is not None:
        value = (os.environ if env is None else env).get(ref.from_env)
        origin = f"environment variable {ref.from_env}"
        if value is None:
            raise SecretError(f"{origin} is not set", cure=f"set {ref.from_env} for this command", code="E0140")
        return Secret(_checked(value, origin), origin=origin)
    path = base_dir / Path(ref.from_file or "").expanduser()
    origin = f"file {path}"
    data, mode = _read(path)
    try:
        value = data.decode("utf-8")
    except UnicodeDecodeError:
        # `from None`: the decoder's own error carries the bytes.
        raise SecretError(f"{origin} is not UTF-8 text", cure="write the secret as plain text", code="E0143") from None
    return Secret(_checked(value, origin), origin=origin, warning=_open_to_others(path, mode))


def mask(text: str, secrets: Iterable[Secret]) -> str:
    """Text with the given secrets, and whatever looks like a token, replaced by `***`."""
    return mask_all(text, [secret.reveal() for secret in secrets])


def secret_mac(secret: Secret, key: bytes) -> str:
    """HMAC-SHA256 as 64 hex digits: tells a changed secret from an unchanged one without telling what it is."""
    return hmac.new(key, secret.reveal().encode(), hashlib.sha256).hexdigest()


def _read(path: Path) -> tuple[bytes, int]:
    try:
        # Non-blocking: a FIFO in the file's place must not hang the plan. It does nothing to a regular file.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise SecretError(f"{path} is not a file", cure="point fromFile at the file itself", code="E0141")
            return os.read(descriptor, _MAX_BYTES + 1), mode
        finally:
            os.close(descriptor)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        cure = "create it, or let the user that runs gezelctl read it"
        raise SecretError(f"secret file {path}: {reason}", cure=cure, code="E0141") from error


def _checked(value: str, origin: str) -> str:
    value = value.removesuffix("\n").removesuffix("\r")
    if not value.strip():
        raise SecretError(f"{origin} is empty", cure="put the secret there", code="E0142")
    if len(value.encode("utf-8", "surrogateescape")) > _MAX_BYTES:
        raise SecretError(f"{origin} is larger than 64 KiB", cure="check that it is the right one", code="E0144")
    if not value.isprintable():
        raise SecretError(f"{origin} is not one line of text", cure="keep one secret alone in it", code="E0143")
    return value


def _open_to_others(path: Path, mode: int) -> str:
    if not mode & (stat.S_IROTH | stat.S_IWOTH):
        return ""
    return f"every user of this host can read or change the secret file {path}: chmod 600 {path}"

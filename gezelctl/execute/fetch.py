"""One file over HTTP: streamed to `<name>.partial`, hashed on the way, verified, synced. It never renames."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from gezelctl.catalog.types import Origin
from gezelctl.config.redact import public_url
from gezelctl.errors import FetchError, GgufError
from gezelctl.execute.disk import full_disk, is_full
from gezelctl.gguf.filekind import SNIFF_BYTES, require_gguf
from gezelctl.observe.httpfaults import short_body, wrong_digest, wrong_size
from gezelctl.observe.hub import CONNECT_S, STALL_S, Connection, Hub, require_address, source_url

if TYPE_CHECKING:
    import httpx

OnBytes = Callable[[int, int], None]
"""(bytes done, bytes in total or 0)"""


@dataclass(frozen=True)
class Want:
    """What the bytes must be. `sha256` "" = unpinned, `size_bytes` 0 = unknown; `gguf` demands the magic."""

    name: str
    sha256: str = ""
    size_bytes: int = 0
    gguf: bool = False


@dataclass(frozen=True)
class Fetched:
    """What arrived: measured digest and size, and the address without credentials."""

    sha256: str
    size_bytes: int
    source: str


class Fetcher:
    """Downloads; one HTTP client for a run. Use as `with Fetcher(hub) as fetcher`."""

    def __init__(self, hub: Hub, *, stall_s: float = STALL_S, connect_s: float = CONNECT_S) -> None:
        self._connection = Connection(hub, stall_s=stall_s, connect_s=connect_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def fetch(self, origin: Origin, partial: Path, want: Want, on_bytes: OnBytes) -> Fetched:
        """Fetch one file to `partial`, replacing a stale one; it is complete, verified and synced on return.

        Raises FetchError with a code (DNS, REFUSED, TIMEOUT, STALLED, TLS, UNAUTHORIZED, TOKEN_REJECTED, GATED,
        NOT_FOUND, RANGE, RATE_LIMITED, SERVER_ERROR, NOT_GGUF, TRUNCATED, UPSTREAM_CHANGED, HASH_MISMATCH,
        DISK_FULL, …); `partial` is gone then.
        """
        url = source_url(origin, self._connection.hub)
        require_address(url, want.name)
        shown = public_url(url)
        try:
            with self._connection.open(url, hub=origin.kind == "huggingface") as response:
                fetched = _Transfer(response, shown, want, on_bytes).to(partial)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        if want.sha256 and fetched.sha256 != want.sha256:
            partial.unlink(missing_ok=True)
            raise wrong_digest(f"{want.name} from {shown}", want.sha256, fetched.sha256)
        return fetched


class _Transfer:
    """One response body on its way to a file."""

    def __init__(self, response: httpx.Response, shown: str, want: Want, on_bytes: OnBytes) -> None:
        length = response.headers.get("content-length", "")
        self._response = response
        self._shown = shown
        self._want = want
        self._on_bytes = on_bytes
        self._declared = int(length) if length.isdigit() else 0
        self._total = self._declared or want.size_bytes
        self._done = 0
        self._digest = hashlib.sha256()

    def to(self, partial: Path) -> Fetched:
        try:
            partial.unlink(missing_ok=True)
            with partial.open("xb") as stream:
                self._copy(stream)
                stream.flush()
                os.fsync(stream.fileno())
        except FetchError:
            raise
        except OSError as error:
            if is_full(error):
                raise full_disk(partial, self._done, self._total) from error
            what = f"{partial}: cannot be written: {error.strerror}"
            raise FetchError(what, cure="check the store's permissions", code="STORE_ACCESS") from error
        if self._total and self._done != self._total:
            raise short_body(self._shown, self._done, self._total)
        return Fetched(self._digest.hexdigest(), self._done, self._shown)

    def _copy(self, stream: BinaryIO) -> None:
        import httpx

        self._on_bytes(0, self._total)
        head = b""
        try:
            for block in self._response.iter_raw():
                if len(head) < SNIFF_BYTES:
                    head += block[:SNIFF_BYTES]
                    if len(head) >= SNIFF_BYTES:
                        self._check_head(head)
                stream.write(block)
                self._digest.update(block)
                self._done += len(block)
                if self._want.size_bytes and self._done > self._want.size_bytes:
                    raise wrong_size(self._shown, self._declared or self._done, self._want.size_bytes)
                self._on_bytes(self._done, self._total)
        except httpx.RemoteProtocolError as error:
            if self._total > self._done:
                raise short_body(self._shown, self._done, self._total) from error
            raise
        if len(head) < SNIFF_BYTES:
            self._check_head(head)

    def _check_head(self, head: bytes) -> None:
        """Stop before the gigabytes: on a web page or pointer in place of a model, and on another size than pinned."""
        if self._want.gguf:
            try:
                require_gguf(self._shown, head)
            except GgufError as error:
                raise FetchError(error.message, cure=error.cure, code=error.code) from error
        if self._want.size_bytes and self._declared and self._declared != self._want.size_bytes:
            raise wrong_size(self._shown, self._declared, self._want.size_bytes)

"""One file over HTTP: streamed to `<name>.partial`, hashed on the way, verified, synced. It never renames."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self
from urllib.parse import quote, urlsplit, urlunsplit

from gezelctl import __version__
from gezelctl.catalog.types import Origin
from gezelctl.config.secrets import Secret
from gezelctl.errors import FetchError, GgufError
from gezelctl.execute.disk import full_disk, is_full
from gezelctl.execute.httpfaults import short_body, status_fault, transport_fault, wrong_digest, wrong_size
from gezelctl.gguf.filekind import SNIFF_BYTES, require_gguf

if TYPE_CHECKING:
    import httpx

MAX_HOPS: Final = 5
STALL_S: Final = 20.0
CONNECT_S: Final = 10.0
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
DEFAULT_ENDPOINT: Final = "https://huggingface.co"

OnBytes = Callable[[int, int], None]
"""(bytes done, bytes in total or 0)"""


@dataclass(frozen=True)
class Hub:
    """A Hugging Face hub or mirror; the token is sent to the endpoint's own origin and nowhere else."""

    endpoint: str = DEFAULT_ENDPOINT
    token: Secret | None = None


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


def source_url(origin: Origin, hub: Hub) -> str:
    """Where the file of a url or huggingface origin is fetched from (the hub's resolve address)."""
    if origin.kind == "url":
        return origin.url
    revision = quote(origin.revision or "main", safe="")
    return f"{hub.endpoint.rstrip('/')}/{origin.repo}/resolve/{revision}/{quote(origin.filename)}"


def public_url(url: str) -> str:
    """The address without user, password, query and fragment: signed links carry secrets in the query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class Fetcher:
    """Downloads; one HTTP client for a run. Use as `with Fetcher(hub) as fetcher`."""

    def __init__(self, hub: Hub, *, stall_s: float = STALL_S, connect_s: float = CONNECT_S) -> None:
        self._hub = hub
        self._stall_s = stall_s
        self._connect_s = connect_s
        self._client: httpx.Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def fetch(self, origin: Origin, partial: Path, want: Want, on_bytes: OnBytes) -> Fetched:
        """Fetch one file to `partial`, replacing a stale one; it is complete, verified and synced on return.

        Raises FetchError with a code (DNS, REFUSED, TIMEOUT, STALLED, TLS, UNAUTHORIZED, TOKEN_REJECTED, GATED,
        NOT_FOUND, RANGE, RATE_LIMITED, SERVER_ERROR, NOT_GGUF, TRUNCATED, UPSTREAM_CHANGED, HASH_MISMATCH,
        DISK_FULL, …); `partial` is gone then.
        """
        url = source_url(origin, self._hub)
        _require_address(url, want.name)
        shown = public_url(url)
        try:
            with self._transport_faults(shown), self._open(url, hub=origin.kind == "huggingface") as response:
                fetched = _Transfer(response, shown, want, on_bytes).to(partial)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        if want.sha256 and fetched.sha256 != want.sha256:
            partial.unlink(missing_ok=True)
            raise wrong_digest(f"{want.name} from {shown}", want.sha256, fetched.sha256)
        return fetched

    @contextmanager
    def _transport_faults(self, shown: str) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.HTTPError as error:
            raise transport_fault(error, shown) from error
        except httpx.InvalidURL as error:
            raise FetchError(
                f"{shown}: is no valid address: {error}", cure="correct the address", code="BAD_URL"
            ) from error

    def _http(self) -> httpx.Client:
        import httpx

        if self._client is None:
            timeout = httpx.Timeout(self._stall_s, connect=self._connect_s)
            # identity: the bytes on the wire are the bytes that are hashed and counted
            headers = {"User-Agent": f"gezelctl/{__version__}", "Accept-Encoding": "identity"}
            self._client = httpx.Client(timeout=timeout, headers=headers, follow_redirects=False)
        return self._client

    @contextmanager
    def _open(self, url: str, *, hub: bool) -> Iterator[httpx.Response]:
        """The successful response to `url`, redirects followed by hand so that each hop decides about the token."""
        first = url
        for _ in range(MAX_HOPS + 1):
            token = self._token_for(url)
            headers = {"Authorization": f"Bearer {token.reveal()}"} if token else {}
            with self._http().stream("GET", url, headers=headers) as response:
                if response.status_code in REDIRECTS and "location" in response.headers:
                    url = str(response.url.join(response.headers["location"]))
                    continue
                if response.status_code != 200:
                    with_token = self._token_for(first) is not None
                    raise status_fault(
                        response.status_code, response.headers, public_url(first), hub=hub, with_token=with_token
                    )
                yield response
                return
        raise FetchError(
            f"{public_url(first)}: more than {MAX_HOPS} redirects", cure="check the address", code="REDIRECTS"
        )

    def _token_for(self, url: str) -> Secret | None:
        """The token, when `url` has the endpoint's own scheme, host and port."""
        return self._hub.token if self._hub.token and _origin(url) == _origin(self._hub.endpoint) else None


def _require_address(url: str, name: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an unclosed bracket, a port that is no number
        valid = False
    if not valid:  # not shown: what cannot be parsed cannot be cleaned of its secrets
        raise FetchError(f"{name}: its source is no http or https address", cure="correct the address", code="BAD_URL")


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    default = {"https": 443, "http": 80}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default


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
            with partial.open("wb") as stream:
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

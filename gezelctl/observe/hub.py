"""Reading over HTTP from a Hugging Face hub, a mirror or any server: addresses, redirects, and who sees the token."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from gezelctl import __version__
from gezelctl.catalog.types import Origin
from gezelctl.config.redact import public_url
from gezelctl.config.secrets import Secret
from gezelctl.errors import FetchError
from gezelctl.observe.httpfaults import status_fault, transport_fault

if TYPE_CHECKING:
    import httpx

MAX_HOPS: Final = 5
STALL_S: Final = 20.0
CONNECT_S: Final = 10.0
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
DEFAULT_ENDPOINT: Final = "https://huggingface.co"
WHOLE: Final = frozenset({200})


@dataclass(frozen=True)
class Hub:
    """A Hugging Face hub or mirror; the token is sent to the endpoint's own origin and nowhere else."""

    endpoint: str = DEFAULT_ENDPOINT
    token: Secret | None = None


def source_url(origin: Origin, hub: Hub) -> str:
    """Where the file of a url or huggingface origin is fetched from (the hub's resolve address)."""
    if origin.kind == "url":
        return origin.url
    from huggingface_hub import hf_hub_url

    return hf_hub_url(
        origin.repo, origin.filename, revision=origin.revision or "main", endpoint=hub.endpoint.rstrip("/")
    )


def require_address(url: str, name: str) -> None:
    """Raises FetchError BAD_URL for what is no http or https address; `name` is what it is the source of."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an unclosed bracket, a port that is no number
        valid = False
    if not valid:  # not shown: what cannot be parsed cannot be cleaned of its secrets
        raise FetchError(f"{name}: its source is no http or https address", cure="correct the address", code="BAD_URL")


def site(url: str) -> tuple[str, str, int | None]:
    """(scheme, host, port): who answers, and who may be told a secret."""
    parts = urlsplit(url)
    default = {"https": 443, "http": 80}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default


class Connection:
    """One HTTP client for a run; safe to use from several threads. Close it when done."""

    def __init__(self, hub: Hub, *, stall_s: float = STALL_S, connect_s: float = CONNECT_S) -> None:
        self.hub = hub
        self._stall_s = stall_s
        self._connect_s = connect_s
        self._client: httpx.Client | None = None
        self._making = threading.Lock()

    def close(self) -> None:
        """Drop all connections; the next request opens new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def open(
        self,
        url: str,
        *,
        hub: bool,
        headers: Mapping[str, str] | None = None,
        accepted: frozenset[int] = WHOLE,
        hops: list[httpx.Response] | None = None,
    ) -> Iterator[httpx.Response]:
        """The response to GET `url` with an accepted status, its body still to be read; `hub` says whose errors fit.

        Redirects are followed by hand so that each hop decides about the token; the redirects themselves are added to
        `hops`. Raises FetchError with the codes of `observe.httpfaults`, also for a body that breaks off inside the
        `with` block.
        """
        with transport_faults(public_url(url)), self._follow(url, headers or {}, hops) as response:
            if response.status_code not in accepted:
                with_token = self.token_for(url) is not None
                raise status_fault(
                    response.status_code, response.headers, public_url(url), hub=hub, with_token=with_token
                )
            yield response

    @contextmanager
    def _follow(
        self, url: str, headers: Mapping[str, str], hops: list[httpx.Response] | None
    ) -> Iterator[httpx.Response]:
        first = url
        for _ in range(MAX_HOPS + 1):
            token = self.token_for(url)
            sent = {**headers, "Authorization": f"Bearer {token.reveal()}"} if token else dict(headers)
            with self._http().stream("GET", url, headers=sent) as response:
                if response.status_code not in REDIRECTS or "location" not in response.headers:
                    yield response
                    return
                if hops is not None:
                    hops.append(response)
                url = str(response.url.join(response.headers["location"]))
        raise FetchError(
            f"{public_url(first)}: more than {MAX_HOPS} redirects", cure="check the address", code="REDIRECTS"
        )

    def _http(self) -> httpx.Client:
        import httpx

        with self._making:
            if self._client is None:
                timeout = httpx.Timeout(self._stall_s, connect=self._connect_s)
                # identity: the bytes on the wire are the bytes that are hashed and counted
                headers = {"User-Agent": f"gezelctl/{__version__}", "Accept-Encoding": "identity"}
                self._client = httpx.Client(timeout=timeout, headers=headers, follow_redirects=False)
            return self._client

    def token_for(self, url: str) -> Secret | None:
        """The token, when `url` has the endpoint's own scheme, host and port."""
        return self.hub.token if self.hub.token and site(url) == site(self.hub.endpoint) else None


@contextmanager
def transport_faults(shown: str) -> Iterator[None]:
    """Turns what the HTTP client raises into FetchError; `shown` is the address without secrets."""
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        raise transport_fault(error, shown) from error
    except httpx.InvalidURL as error:
        raise FetchError(
            f"{shown}: is no valid address: {error}", cure="correct the address", code="BAD_URL"
        ) from error

"""What can go wrong with a download, by name and with the next step: statuses and exceptions in, errors out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gezelctl.errors import FetchError

if TYPE_CHECKING:
    import httpx


def status_fault(status: int, headers: Mapping[str, str], url: str, *, hub: bool, with_token: bool) -> FetchError:
    """The error of an HTTP status that is no success. `headers` has lower-case names; `url` is fit to be shown."""
    if status in {401, 403}:
        return _denied(status, headers, url, hub=hub, with_token=with_token)
    if status in {404, 410}:
        what = {
            "RevisionNotFound": "no such revision",
            "RepoNotFound": "no such repository",
            "EntryNotFound": "no such file",
        }
        detail = what.get(headers.get("x-error-code", ""), "not found")
        cure = "check repository, revision and file name" if hub else "check the address"
        also = "; a private repository also answers so" if hub and not with_token else ""
        return FetchError(f"{url}: {detail} (HTTP {status})", cure=cure + also, code="NOT_FOUND")
    if status == 416:
        return FetchError(
            f"{url}: the server refused the byte range (HTTP 416)",
            cure="run it again: the file is fetched from its start",
            code="RANGE",
        )
    if status == 429:
        wait = headers.get("retry-after", "")
        when = f"in {wait} s" if wait.isdigit() else "later"
        hint = (
            "" if with_token or not hub else ", or set sources.huggingface.token: signed-in users have a higher limit"
        )
        return FetchError(
            f"{url}: too many requests (HTTP 429)", cure=f"run it again {when}{hint}", code="RATE_LIMITED"
        )
    if status >= 500:
        return FetchError(f"{url}: the server failed (HTTP {status})", cure="run it again later", code="SERVER_ERROR")
    return FetchError(f"{url}: unexpected answer (HTTP {status})", cure="check the address", code="HTTP_STATUS")


def _denied(status: int, headers: Mapping[str, str], url: str, *, hub: bool, with_token: bool) -> FetchError:
    if not hub:
        return FetchError(
            f"{url}: access denied (HTTP {status})", cure="check the address and its access rights", code="DENIED"
        )
    page = url.partition("/resolve/")[0]
    gated = headers.get("x-error-code") == "GatedRepo"
    if status == 401 and not with_token and not gated:
        return FetchError(
            f"{url}: not found, or private or gated (HTTP 401)",
            cure="check the repository's name; for a private or gated one set sources.huggingface.token",
            code="UNAUTHORIZED",
        )
    if status == 401 and with_token and not gated:
        return FetchError(
            f"{url}: the token was not accepted (HTTP 401)",
            cure="set sources.huggingface.token to a valid token with read access",
            code="TOKEN_REJECTED",
        )
    token = "" if with_token else ", and set sources.huggingface.token"
    return FetchError(
        f"{url}: gated: the licence has not been accepted for this account (HTTP {status})",
        cure=f"accept it at {page}{token}",
        code="GATED",
    )


def transport_fault(error: httpx.HTTPError, url: str) -> FetchError:
    """The error of a connection that failed before or during the transfer."""
    import socket
    import ssl

    import httpx

    chain = list(_causes(error))
    if any(isinstance(cause, socket.gaierror) for cause in chain):
        return FetchError(
            f"{url}: the host name cannot be resolved", cure="check the address and this host's DNS", code="DNS"
        )
    if any(isinstance(cause, ssl.SSLError) for cause in chain):
        cause = next(str(c) for c in chain if isinstance(c, ssl.SSLError))
        return FetchError(
            f"{url}: TLS failed: {cause}", cure="check the certificate, the clock, and SSL_CERT_FILE", code="TLS"
        )
    if any(isinstance(cause, ConnectionRefusedError) for cause in chain):
        return FetchError(
            f"{url}: the connection was refused",
            cure="check that the server runs and the port is right",
            code="REFUSED",
        )
    if isinstance(error, httpx.ConnectTimeout):
        return FetchError(f"{url}: no connection in time", cure="check the network and proxy settings", code="TIMEOUT")
    if isinstance(error, httpx.TimeoutException):
        return FetchError(
            f"{url}: no data in time", cure="run it again; if it stays so, check the network", code="STALLED"
        )
    return FetchError(f"{url}: the connection broke: {error}", cure="run it again", code="DISCONNECTED")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def short_body(url: str, have: int, expected: int) -> FetchError:
    return FetchError(
        f"{url}: cut short: expected {expected:,} bytes, have {have:,}", cure="run it again", code="TRUNCATED"
    )


def wrong_size(url: str, offered: int, expected: int) -> FetchError:
    return FetchError(
        f"{url}: expected {expected:,} bytes, the server has {offered:,}: the file was replaced there",
        cure="pin the revision that the catalog was made from, or update sha256 and size",
        code="UPSTREAM_CHANGED",
    )


def wrong_digest(name: str, expected: str, actual: str) -> FetchError:
    """Both digests in full; the empty file's digest is called what it is."""
    empty = " (the digest of an empty file)" if actual.startswith("e3b0c44298fc1c14") else ""
    return FetchError(
        f"{name}: sha256 does not match\n  expected {expected}\n  actual   {actual}{empty}",
        cure="check the source; if its new bytes are wanted, update the pinned sha256",
        code="HASH_MISMATCH",
    )

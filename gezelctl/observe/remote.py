"""GGUF headers over HTTP: byte ranges of a few MB, so that a model is judged and planned with before it is fetched."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec

from gezelctl.catalog.types import PayloadFile
from gezelctl.config.redact import public_url
from gezelctl.errors import FetchError, GgufError
from gezelctl.gguf.cache import READER_VERSION
from gezelctl.gguf.filekind import SNIFF_BYTES, require_gguf
from gezelctl.gguf.reader import read_summary_from
from gezelctl.gguf.types import GgufSummary
from gezelctl.observe.cachefile import read_cache, write_cache
from gezelctl.observe.httpfaults import short_body, wrong_size
from gezelctl.observe.hub import Connection, Hub, require_address, source_url, transport_faults
from gezelctl.observe.threads import each

if TYPE_CHECKING:
    import httpx

FIRST_BYTES: Final = 512 * 1024
"""The least that is asked for at once; the reader's own windows grow from there."""
HEADER_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Of one file: beyond every real header, and what is kept of a server that has no byte ranges."""
_SHARDS_AT_ONCE: Final = 8
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_UNSATISFIED: Final = re.compile(r"bytes \*/(\d+)")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_ACCEPTED: Final = frozenset({200, 206, 416})


class RemoteFile:
    """One GGUF file on a server as a `gguf.source.ByteSource`. `open` first; close it when done.

    `size` and `etag` are known after `open`, where the server tells them. Reads raise FetchError with the codes of a
    download. A server that ignores byte ranges is read from the start and hung up on when the header is complete.
    """

    def __init__(self, file: PayloadFile, connection: Connection, deadline: float | None = None) -> None:
        """`deadline` is a reading of `time.monotonic`."""
        self._file = file
        self._connection = connection
        self._deadline = deadline
        self._url = source_url(file.origin, connection.hub)
        require_address(self._url, file.name)
        self._direct = ""
        self._own_etag = ""
        self._received = 0
        self._window = b""
        self._base = 0
        self._stream: Iterator[bytes] | None = None
        self._stack = ExitStack()
        self.name = public_url(self._url)
        self.size: int | None = None
        self.etag = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self) -> None:
        """Read the first window, and with it size and ETag; refuse what is no GGUF, and a file other than pinned."""
        self._extend(FIRST_BYTES)
        require_gguf(self.name, self._window[:SNIFF_BYTES])
        pinned, linked = self._file, self.etag
        if self.size is not None and pinned.size_bytes and self.size != pinned.size_bytes:
            raise wrong_size(self.name, self.size, pinned.size_bytes)
        if pinned.sha256 and _SHA256.fullmatch(linked) and linked != pinned.sha256:
            raise self._replaced(f"its sha256 is {linked}, not {pinned.sha256}")

    def read_at(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only where the file ends."""
        if self._stream is None and not self._base <= offset <= self._base + len(self._window):
            self._base, self._window = offset, b""
        missing = offset + length - self._base - len(self._window)
        if missing > 0:
            self._extend(missing)
        start = offset - self._base
        found = self._window[start : start + length]
        if self._stream is None:
            self._base, self._window = offset, self._window[start:]
        return found

    def _extend(self, missing: int) -> None:
        """Add at least `missing` bytes to the window, as far as there are any."""
        end = self._base + len(self._window)
        if self._stream is None:
            wanted = max(missing, FIRST_BYTES)
            if self.size is not None:
                wanted = min(wanted, self.size - end)
            if wanted > 0:
                self._window += self._range(end, wanted)
        if self._stream is not None:
            self._pump(self._stream, end + missing)

    def _range(self, start: int, length: int) -> bytes:
        """Bytes from the address that the first answer came from, or from a new link when that one has expired."""
        if self._direct:
            try:
                return self._ask(self._direct, start, length)
            except FetchError:
                self._direct = ""
        return self._ask(self._url, start, length)

    def _ask(self, url: str, start: int, length: int) -> bytes:
        if self._received + length > HEADER_LIMIT_BYTES:
            raise self._too_long()
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        hops: list[httpx.Response] = []
        with ExitStack() as stack:
            response = stack.enter_context(
                self._connection.open(
                    url,
                    hub=self._file.origin.kind == "huggingface",
                    headers=headers,
                    accepted=_ACCEPTED,
                    hops=hops,
                )
            )
            if response.status_code == 200:
                length_text = response.headers.get("content-length", "")
                self._learn(response, hops, int(length_text) if length_text.isdigit() else None)
                self._stream, self._base, self._window = response.iter_raw(), 0, b""
                self._stack.push(stack.pop_all())
                return b""
            if response.status_code == 416:
                beyond = _UNSATISFIED.fullmatch(response.headers.get("content-range", ""))
                self._learn(response, hops, int(beyond[1]) if beyond else None)
                return b""
            part = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
            if part is None or int(part[1]) != start:
                raise FetchError(
                    f"{self.name}: the server sent another byte range than asked for",
                    cure="check the server or proxy in between",
                    code="RANGE",
                )
            self._learn(response, hops, int(part[3]) if part[3] != "*" else None)
            self._direct = str(response.url)
            return self._body(response, int(part[2]) - start + 1)

    def _body(self, response: httpx.Response, expected: int) -> bytes:
        import httpx

        parts: list[bytes] = []
        have = 0
        try:
            for block in response.iter_raw():
                parts.append(block)
                have += len(block)
                self._count(len(block))
        except httpx.RemoteProtocolError as error:
            raise short_body(self.name, have, expected) from error
        if have < expected:
            raise short_body(self.name, have, expected)
        return b"".join(parts)

    def _pump(self, stream: Iterator[bytes], end: int) -> None:
        """Read on to `end` in a server's one answer; the whole of it is kept, up to the limit."""
        import httpx

        parts = [self._window]
        missing = end - len(self._window)
        try:
            with transport_faults(self.name):
                while missing > 0 and (block := next(stream, b"")):
                    parts.append(block)
                    missing -= len(block)
                    self._count(len(block))
        except FetchError as error:
            if self.size is not None and isinstance(error.__cause__, httpx.RemoteProtocolError):
                raise short_body(self.name, self._received, self.size) from error
            raise
        self._window = b"".join(parts)

    def _count(self, size: int) -> None:
        self._received += size
        if self._received > HEADER_LIMIT_BYTES:
            raise self._too_long()
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise FetchError(
                f"{self.name}: the header did not arrive in time",
                cure="run it again; if it stays so, check the network",
                code="STALLED",
            )

    def _too_long(self) -> FetchError:
        return FetchError(
            f"{self.name}: the header is longer than {HEADER_LIMIT_BYTES // 1024 // 1024} MiB",
            cure="check that it is the model that you want; fetch it to look at it here",
            code="HEADER_TOO_LONG",
        )

    def _learn(self, response: httpx.Response, hops: Sequence[httpx.Response], total: int | None) -> None:
        """Keep size and ETag; raises when the file changes while it is read."""
        own = _etag(response.headers.get("etag", ""))
        linked = next((_etag(hop.headers["x-linked-etag"]) for hop in hops if "x-linked-etag" in hop.headers), own)
        resized = None not in {total, self.size} and total != self.size
        if resized or (own and self._own_etag and own != self._own_etag):
            raise self._replaced("it changed while it was read")
        self.size = total if self.size is None else self.size
        self._own_etag = own or self._own_etag
        self.etag = self.etag or linked

    def _replaced(self, what: str) -> FetchError:
        return FetchError(
            f"{self.name}: the file was replaced there: {what}",
            cure="pin the revision that the catalog was made from, or update sha256 and size",
            code="UPSTREAM_CHANGED",
        )


def _etag(text: str) -> str:
    return text.removeprefix("W/").strip('"')


class _Kept(msgspec.Struct, rename="camel"):
    """A summary with the digests that it was read under; `version` is the reader's."""

    version: int
    names: tuple[str, ...]
    summary: GgufSummary


def cached_remote(files: Sequence[PayloadFile], hub: Hub, cache_dir: Path) -> GgufSummary | None:
    """The summary of pinned files as it was read before, without asking anybody; None when it was not."""
    return _kept(files, hub, cache_dir, tuple(file.sha256 for file in files))


def remote_summary(
    files: Sequence[PayloadFile], hub: Hub, cache_dir: Path, connection: Connection, *, limit_s: float | None = None
) -> GgufSummary:
    """The header of one remote model: a file, or all shards in order.

    Pinned files that were read before cost nothing; others cost one window to see that they are unchanged. `limit_s`
    bounds the whole in seconds. Raises FetchError with the codes of a download (also HEADER_TOO_LONG), and GgufError
    as `read_summary` does.
    """
    found = cached_remote(files, hub, cache_dir)
    if found is not None:
        return found
    deadline = None if limit_s is None else time.monotonic() + limit_s
    with ExitStack() as stack:
        sources = [stack.enter_context(RemoteFile(file, connection, deadline)) for file in files]
        _open_all(sources)
        names = tuple(file.sha256 or source.etag for file, source in zip(files, sources, strict=True))
        found = _kept(files, hub, cache_dir, names)
        if found is None:
            found = read_summary_from(sources)
            write_cache(_entry(files, hub, cache_dir), _Kept(READER_VERSION, names, found))
    return found


def _open_all(sources: Sequence[RemoteFile]) -> None:
    """The first windows of all shards at a time. Raises the first fault in their order."""

    def first_window(source: RemoteFile) -> FetchError | GgufError | None:
        try:
            source.open()
        except (FetchError, GgufError) as error:
            return error
        return None

    for error in each(sources, first_window, _SHARDS_AT_ONCE).values():
        if error is not None:
            raise error


def _kept(files: Sequence[PayloadFile], hub: Hub, cache_dir: Path, names: tuple[str, ...]) -> GgufSummary | None:
    kept = read_cache(_entry(files, hub, cache_dir), _Kept) if all(names) else None
    return kept.summary if kept and (kept.version, kept.names) == (READER_VERSION, names) else None


def _entry(files: Sequence[PayloadFile], hub: Hub, cache_dir: Path) -> Path:
    addresses = "\n".join(public_url(source_url(file.origin, hub)) for file in files)
    return cache_dir / "remote" / f"{hashlib.blake2b(addresses.encode(), digest_size=16).hexdigest()}.json"

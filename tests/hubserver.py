"""A local HTTP server that behaves like a Hugging Face hub, and can fail in the ways that a hub fails.

`Hub` serves `/<owner>/<repo>/resolve/<revision>/<file>`: a redirect to a content address on a second origin (another
port, as the hub's CDN), an ETag with the sha256, Range requests, gated and missing repositories with the hub's own
headers. `hub.fault = Fault(...)` makes the next answers wrong; `hub.ranges = False` is a server without byte ranges;
with `hub.links_expire` each link to the CDN works once. Every request is kept with its headers, and `hub.sent_bytes`
counts content.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote, urlsplit

FaultKind = Literal["status", "truncate", "stall", "html", "lfs", "corrupt", "chunked", "reset", "loop", "slow"]


@dataclass(frozen=True)
class Fault:
    """What goes wrong on every content answer until it is taken away. `after` counts bytes that are still sent."""

    kind: FaultKind
    status: int = 500
    after: int = 0
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """One request as it came in; `origin` is "hub" or "cdn"."""

    origin: str
    path: str
    headers: dict[str, str]


HTML = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>" + b"x" * 2000 + b"</body></html>"


class Hub:
    """Two HTTP servers on loopback: the hub itself and its CDN."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str, str], bytes] = {}
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.token = "hf_" + "T" * 34
        self.accepted = True
        self.redirect = True
        self.ranges = True
        self.sent_bytes = 0
        self.links_expire = False
        self.links = 0
        self.used: set[str] = set()
        self.fault: Fault | None = None
        self.requests: list[Request] = []
        self.released = threading.Event()
        self._hub = _serve(self, "hub")
        self._cdn = _serve(self, "cdn")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._hub.server_address[1]}"

    @property
    def cdn(self) -> str:
        # another host name than the endpoint's, so that origins differ in host and port
        return f"http://localhost:{self._cdn.server_address[1]}"

    def add(self, repo: str, name: str, data: bytes, revision: str = "main") -> str:
        """Publish a file; returns its sha256."""
        self.files[repo, revision, name] = data
        return hashlib.sha256(data).hexdigest()

    def blob(self, digest: str) -> bytes | None:
        return next((d for d in self.files.values() if hashlib.sha256(d).hexdigest() == digest), None)

    def close(self) -> None:
        self.released.set()
        for server in (self._hub, self._cdn):
            server.shutdown()
            server.server_close()


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    try:
        yield hub
    finally:
        hub.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub: Hub, origin: str) -> None:
        self.hub, self.origin = hub, origin
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is the client's business."""


def _serve(hub: Hub, origin: str) -> _Server:
    server = _Server(hub, origin)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)
        hub.requests.append(Request(self.server.origin, self.path, {k.lower(): v for k, v in self.headers.items()}))
        if self.server.origin == "cdn":
            data = hub.blob(path.rpartition("/")[2])
            if hub.links_expire and self.path in hub.used:
                self._status(403)
                return
            hub.used.add(self.path)
            self._content(data, body=body) if data is not None else self._status(404)
            return
        parts = path.strip("/").split("/")
        if len(parts) < 5 or parts[2] != "resolve":
            self._status(404)
            return
        self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]), body=body)

    def _resolve(self, repo: str, revision: str, name: str, *, body: bool) -> None:
        hub = self.server.hub
        bearer = self.headers.get("Authorization", "")
        known = bearer == f"Bearer {hub.token}"
        if bearer and not known:
            self._status(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repo in hub.gated and not (known and hub.accepted):
            self._status(
                403 if known else 401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}
            )
        elif repo in hub.private and not known:
            self._status(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."})
        elif not any(key[0] == repo for key in hub.files):
            self._status(404 if known else 401, {"X-Error-Code": "RepoNotFound"})
        elif not any(key[:2] == (repo, revision) for key in hub.files):
            self._status(404, {"X-Error-Code": "RevisionNotFound"})
        elif (repo, revision, name) not in hub.files:
            self._status(404, {"X-Error-Code": "EntryNotFound"})
        else:
            self._found(hub.files[repo, revision, name], body=body)

    def _found(self, data: bytes, *, body: bool) -> None:
        hub, digest = self.server.hub, hashlib.sha256(data).hexdigest()
        if not hub.redirect:
            self._content(data, body=body)
            return
        hub.links += 1
        target = f"{hub.cdn}/blobs/{digest}?X-Signature=planted-signature-{hub.links}"
        if hub.fault and hub.fault.kind == "loop":
            target = hub.endpoint + self.path
        self.send_response(302)
        self.send_header("Location", target)
        self.send_header("X-Linked-Etag", f'"{digest}"')
        self.send_header("X-Linked-Size", str(len(data)))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _status(self, status: int, headers: dict[str, str] | None = None) -> None:
        text = b'{"error":"no"}'
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def _content(self, data: bytes, *, body: bool) -> None:
        fault = self.server.hub.fault
        if fault and fault.kind == "status":
            self._status(fault.status, fault.headers)
            return
        whole = _altered(data, fault)
        part = self._range(len(whole))
        if part is None:
            self._status(416, {"Content-Range": f"bytes */{len(whole)}"})
            return
        self.send_response(206 if part else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        if self.server.hub.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if part:
            self.send_header("Content-Range", f"bytes {part.start}-{part.stop - 1}/{len(whole)}")
            whole = whole[part.start : part.stop]
        chunked = fault is not None and fault.kind == "chunked"
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        if body:
            self._send(whole, fault)

    def _range(self, total: int) -> range | None:
        """The bytes asked for; empty without a Range (or for a server that ignores it), None beyond the end."""
        text = self.headers.get("Range", "")
        if not text.startswith("bytes=") or not self.server.hub.ranges:
            return range(0)
        first, _, last = text[6:].partition("-")
        start, stop = int(first), min(int(last or total) + 1, total)
        return range(start, stop) if start < total else None

    def _send(self, data: bytes, fault: Fault | None) -> None:
        kind = fault.kind if fault else ""
        for at in range(0, 0 if kind else len(data), 64 * 1024):
            block = data[at : at + 64 * 1024]
            self.server.hub.sent_bytes += len(block)  # before the client has it, so that a test sees it counted
            self.wfile.write(block)
        if fault and kind in {"truncate", "stall", "reset"}:
            self.wfile.write(data[: fault.after])
            self.wfile.flush()
            if kind == "stall":
                self.server.hub.released.wait(30)
            self.close_connection = True
        elif kind == "slow":
            for at in range(0, len(data), 64 * 1024):
                self.wfile.write(data[at : at + 64 * 1024])
                time.sleep(0.02)
        elif kind == "chunked":
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n0\r\n\r\n")
        elif kind:
            self.wfile.write(data)


def _altered(data: bytes, fault: Fault | None) -> bytes:
    kind = fault.kind if fault else ""
    if kind == "html":
        return HTML
    if kind == "lfs":
        return b"version https://git-lfs.github.com/spec/v1\noid sha256:%b\nsize %d\n" % (b"0" * 64, len(data))
    if kind == "corrupt":
        return data[:-1] + bytes([data[-1] ^ 1])
    return data

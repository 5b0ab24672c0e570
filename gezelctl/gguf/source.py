"""Where header bytes come from, and a cursor over them that keeps one window in memory."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import Final, Protocol, Self

from gezelctl.errors import GgufError

FIRST_READ_BYTES: Final = 256 * 1024
LARGEST_READ_BYTES: Final = 4 * 1024 * 1024

MAX_STRING_BYTES: Final = 16 * 1024 * 1024

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class ByteSource(Protocol):
    """Random access to the bytes of one GGUF file, local or remote."""

    @property
    def name(self) -> str:
        """What messages call this source: a path or a URL without secrets."""
        ...

    @property
    def size(self) -> int | None:
        """Bytes in all; None when not known. Without it only the header is checked, not that the tensors are there."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only where the source ends."""
        ...


class LocalFile:
    """A regular file, opened for reading; use as a context manager.

    Reads with pread, not mmap: a file that another process truncates meanwhile gives an error, not SIGBUS.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        try:
            # O_NONBLOCK: opening a FIFO must not hang
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise GgufError(
                f"{path}: cannot be opened: {error.strerror}",
                cure="check the path and that the user who runs gezelctl may read it",
                code="FILE_MISSING",
            ) from None
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise GgufError(f"{path}: is {kind}, not a GGUF file", cure="name the .gguf file itself", code="NOT_GGUF")
        self.size = status.st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read_at(self, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        while length > 0 and (part := os.pread(self._fd, length, offset)):
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Cursor:
    """A forward reader over a `ByteSource`.

    Holds one window of at most 4 MiB or the item asked for, so a hostile length costs no memory: lengths are compared
    with what is left of the source before anything is read. Every fault is a `GgufError` with the source's name.
    """

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.size = source.size
        self._window = b""
        self._base = 0
        self._at = 0
        self._next_read = FIRST_READ_BYTES

    @property
    def position(self) -> int:
        """Offset of the next byte in the source."""
        return self._base + self._at

    def corrupt(self, what: str, *, code: str = "GGUF_CORRUPT") -> GgufError:
        """The error for content that no writer makes."""
        cure = "the file is damaged or hostile: fetch it again and compare its sha256 with the publisher's"
        return GgufError(f"{self.source.name}: {what}", cure=cure, code=code)

    def truncated(self, expected: int, what: str) -> GgufError:
        """The error for a source that ends before `expected` bytes."""
        have = self.size if self.size is not None else self._base + len(self._window)
        return GgufError(
            f"{self.source.name}: is truncated in {what}: expected {expected} bytes or more, have {have}",
            cure="the download or copy did not finish: fetch the file again",
            code="GGUF_TRUNCATED",
        )

    def require(self, length: int, what: str) -> None:
        """Raises when fewer than `length` bytes are left, as far as the size is known."""
        if self.size is not None and length > self.size - self.position:
            raise self.truncated(self.position + length, what)

    def peek(self, length: int) -> tuple[bytes, int]:
        """(window, index in it) with `length` bytes ahead, fewer only where the source ends."""
        if len(self._window) - self._at < length:
            self._refill(length)
        return self._window, self._at

    def _refill(self, length: int) -> None:
        kept = self._window[self._at :]
        start = self._base + len(self._window)
        self._base, self._at, self._window = self._base + self._at, 0, b""
        wanted = max(length - len(kept), self._next_read)
        if self.size is not None:
            wanted = min(wanted, self.size - start)
        more = self.source.read_at(start, wanted) if wanted > 0 else b""
        self._next_read = min(2 * self._next_read, LARGEST_READ_BYTES)
        self._window = kept + more if kept else more

    def skip(self, length: int, what: str) -> None:
        """Passes over `length` bytes without reading them."""
        self.require(length, what)
        at = self._at + length
        if at <= len(self._window):
            self._at = at
        else:
            self._base, self._at, self._window = self._base + at, 0, b""

    def take(self, length: int, what: str) -> bytes:
        """The next `length` bytes."""
        self.require(length, what)
        window, at = self.peek(length)
        data = window[at : at + length]
        if len(data) < length:
            raise self.truncated(self.position + length, what)
        self._at = at + length
        return data

    def u32(self, what: str) -> int:
        (value,) = _U32.unpack(self.take(4, what))
        return int(value)

    def u64(self, what: str) -> int:
        (value,) = _U64.unpack(self.take(8, what))
        return int(value)

    def string_length(self, what: str) -> int:
        """The length in front of a string, checked against the limit and against what is left."""
        length = self.u64(what)
        self.check_string(length, what)
        return length

    def check_string(self, length: int, what: str) -> None:
        if length > MAX_STRING_BYTES:
            raise self.corrupt(f"{what}: a string of {length} bytes is beyond the limit of {MAX_STRING_BYTES}")
        self.require(length, what)

    def skip_strings(self, count: int, what: str) -> None:
        """Passes over `count` length-prefixed strings; no text is copied or decoded."""
        unpack = _U64.unpack_from
        while count:
            window, at = self.peek(8)
            last = len(window) - 8
            if at > last:
                raise self.truncated(self.position + 8, what)
            index = length = 0
            for index in range(count):  # noqa: B007 - how many were passed is needed after the loop
                (length,) = unpack(window, at)
                at += 8 + length
                if at > last:
                    break
            count -= index + 1
            # only the last string can reach beyond the window, so only its length is still to be judged
            self._at = at - length
            self.check_string(length, what)
            self.skip(length, what)

    def take_strings(self, count: int, what: str) -> list[bytes]:
        """The next `count` length-prefixed strings, as they are on disk."""
        unpack = _U64.unpack_from
        texts: list[bytes] = []
        while len(texts) < count:
            window, at = self.peek(8)
            last = len(window) - 8
            while at <= last and len(texts) < count:
                (length,) = unpack(window, at)
                end = at + 8 + length
                if end > last + 8:
                    break
                texts.append(window[at + 8 : end])
                at = end
            self._at = at
            if len(texts) < count:
                texts.append(self.take(self.string_length(what), what))
        return texts

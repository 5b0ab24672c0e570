"""Bring one payload file beside its final place as `<name>.partial`, with its bytes verified."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gezelctl.errors import FetchError
from gezelctl.execute.disk import full_disk, is_full
from gezelctl.execute.fetch import Fetcher, OnBytes, Want
from gezelctl.observe.httpfaults import short_body, wrong_digest
from gezelctl.plan.types import FileAction
from gezelctl.store.digests import BLOCK_BYTES, file_sha256
from gezelctl.store.layout import PARTIAL_SUFFIX, safe_join

_NO_LINK: Final[dict[int, str]] = {
    errno.EXDEV: "it is on another file system",
    errno.EPERM: "the system does not allow a link to this file",
    errno.EACCES: "the system does not allow a link to this file",
    errno.EMLINK: "it has as many links as the file system allows",
    errno.ENOTSUP: "the file system has no hard links",
    errno.EOPNOTSUPP: "the file system has no hard links",
    errno.ENOSYS: "the file system has no hard links",
}


@dataclass(frozen=True)
class Staged:
    """A file whose bytes are verified: in place already (`partial` None), or waiting to be renamed to `final`."""

    action: FileAction
    final: Path
    partial: Path | None
    sha256: str
    size_bytes: int
    source: str
    linked: bool = False


@dataclass(frozen=True)
class Stager:
    """Stages the files of one payload folder. `on_note` gets one line when a link had to become a copy."""

    directory: Path
    cache_dir: Path
    fetcher: Fetcher
    on_note: Callable[[str], None]

    def places(self, action: FileAction) -> tuple[Path, Path]:
        """(final, partial) of a file. Raises UnsafePathError."""
        final = safe_join(self.directory, action.file.name)
        return final, safe_join(self.directory, action.file.name + PARTIAL_SUFFIX)

    def ready(self, action: FileAction) -> Staged | None:
        """The file when its bytes are here already: in place, or completely downloaded by an earlier run."""
        final, partial = self.places(action)
        if self._holds(final, action):
            return Staged(action, final, None, action.file.sha256, final.stat().st_size, "")
        if action.how == "download" and self._holds(partial, action):
            return Staged(action, final, partial, action.file.sha256, partial.stat().st_size, "")
        return None

    def _holds(self, path: Path, action: FileAction) -> bool:
        """Whether `path` is a regular file with the pinned bytes; it is only read when its size can be right."""
        wanted = action.file
        try:
            status = path.lstat()
            if not wanted.sha256 or not stat.S_ISREG(status.st_mode):
                return False
            if wanted.size_bytes and status.st_size != wanted.size_bytes:
                return False
            return file_sha256(path, self.cache_dir) == wanted.sha256
        except OSError:
            return False

    def stage(self, action: FileAction, on_bytes: OnBytes) -> Staged:
        """Link, copy or download one file. Raises FetchError; nothing but a `.partial` is ever touched."""
        final, partial = self.places(action)
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.unlink(missing_ok=True)
        except OSError as error:
            raise _store_access(partial, error) from error
        if action.how == "link":
            return self._link(action, final, partial, on_bytes)
        if action.how == "copy":
            return self._copy(action, final, partial, on_bytes)
        if action.file.origin.kind == "path":  # planned as present, but its bytes have changed since
            return self._link(_from_origin(action), final, partial, on_bytes)
        return self._download(action, final, partial, on_bytes)

    def _download(self, action: FileAction, final: Path, partial: Path, on_bytes: OnBytes) -> Staged:
        file = action.file
        want = Want(file.name, file.sha256, file.size_bytes or action.size_bytes, gguf=file.name.endswith(".gguf"))
        fetched = self.fetcher.fetch(file.origin, partial, want, on_bytes)
        return Staged(action, final, partial, fetched.sha256, fetched.size_bytes, fetched.source)

    def _link(self, action: FileAction, final: Path, partial: Path, on_bytes: OnBytes) -> Staged:
        """Link to a name beside the final one: the old file stays whole until the rename.

        The source is hashed, not the link: an unchanged source is then known from the digest cache.
        """
        # link(2) does not follow a symbolic link, and hub caches are full of them
        source = Path(os.path.realpath(action.source))
        try:
            before = _regular(source)
            digest = file_sha256(source, self.cache_dir)
        except OSError as error:
            raise _source_access(source, error) from error
        _check_source(action, source, digest, before.st_size)
        try:
            os.link(source, partial)
        except OSError as error:
            if error.errno in _NO_LINK:
                self.on_note(f"{action.file.name}: copied, not linked: {_NO_LINK[error.errno]}")
                return self._copy(action, final, partial, on_bytes)
            raise _store_access(partial, error) from error
        after = partial.stat()
        if (after.st_ino, after.st_size, after.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
            partial.unlink(missing_ok=True)
            raise FetchError(
                f"{source}: changed while it was linked", cure="apply again when it rests", code="SOURCE_CHANGED"
            )
        on_bytes(before.st_size, before.st_size)
        return Staged(action, final, partial, digest, before.st_size, str(source), linked=True)

    def _copy(self, action: FileAction, final: Path, partial: Path, on_bytes: OnBytes) -> Staged:
        source = Path(os.path.realpath(action.source))
        try:
            size = _regular(source).st_size
        except OSError as error:
            raise _source_access(source, error) from error
        try:
            digest, done = _copy_bytes(source, partial, size, on_bytes)
            _check_source(action, source, digest, done)
        except FetchError:
            partial.unlink(missing_ok=True)
            raise
        return Staged(action, final, partial, digest, done, str(source))


def _from_origin(action: FileAction) -> FileAction:
    return FileAction(file=action.file, how="link", size_bytes=action.size_bytes, source=action.file.origin.path)


def _regular(path: Path) -> os.stat_result:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise FetchError(f"{path}: is not a regular file", cure="name the file itself", code="SOURCE_KIND")
    return status


def _copy_bytes(source: Path, target: Path, size: int, on_bytes: OnBytes) -> tuple[str, int]:
    digest, done = hashlib.sha256(), 0
    try:
        with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
            while block := reader.read(BLOCK_BYTES):
                writer.write(block)
                digest.update(block)
                done += len(block)
                on_bytes(done, size)
            os.fsync(writer.fileno())
    except OSError as error:
        if is_full(error):
            raise full_disk(target, done, size) from error
        raise _store_access(target, error) from error
    return digest.hexdigest(), done


def _check_source(action: FileAction, source: Path, digest: str, size: int) -> None:
    wanted = action.file
    if wanted.sha256 and digest != wanted.sha256:
        if wanted.size_bytes and size < wanted.size_bytes:
            raise short_body(str(source), size, wanted.size_bytes)
        raise wrong_digest(f"{wanted.name} from {source}", wanted.sha256, digest)


def _source_access(path: Path, error: OSError) -> FetchError:
    if isinstance(error, FetchError):
        return error
    cure = "check the path and that the user who runs gezelctl may read it"
    return FetchError(
        f"{path}: {error.strerror}",
        cure=cure,
        code="SOURCE_MISSING" if error.errno == errno.ENOENT else "SOURCE_ACCESS",
    )


def _store_access(path: Path, error: OSError) -> FetchError:
    if is_full(error):
        return full_disk(path, 0, 0)
    return FetchError(f"{path}: {error.strerror}", cure="check the store's permissions", code="STORE_ACCESS")

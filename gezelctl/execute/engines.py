"""Fetch and unpack an engine build: verified by sha256, unpacked beside its place, renamed into it when complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

from gezelctl.catalog.names import name_fault
from gezelctl.catalog.types import Origin
from gezelctl.config.model import Archive
from gezelctl.config.redact import public_url
from gezelctl.errors import EngineError, FetchError
from gezelctl.execute.disk import full_disk, is_full, require_space
from gezelctl.execute.fetch import Fetcher, OnBytes, Want
from gezelctl.store.digests import BLOCK_BYTES, file_sha256
from gezelctl.store.files import sync_directory
from gezelctl.store.layout import DIGEST_CHARS, Paths, find_program
from gezelctl.store.lock import directory_lock

MAX_UNPACKED_BYTES: Final = 32 << 30
MAX_ENTRIES: Final = 100_000


def install_engine(paths: Paths, name: str, archive: Archive, fetcher: Fetcher, on_bytes: OnBytes) -> Path:
    """The program of the archive, absolute; fetched and unpacked when it is not there yet.

    The folder appears by one rename, so its existence means complete. Raises FetchError, and EngineError
    ARCHIVE_UNSAFE, ARCHIVE_BROKEN or ENGINE_MISSING (no such program in it); nothing stays then.
    """
    target = paths.engine_dir(name, archive.sha256)
    with directory_lock(target.parent, lambda: None):
        if not target.is_dir():
            _install(target, archive, fetcher, on_bytes)
    program = find_program(target, archive.binary)
    if program is None:
        raise _no_program(archive)
    return program


def _no_program(archive: Archive) -> EngineError:
    return EngineError(
        f"{public_url(archive.url)}: holds no executable `{archive.binary}`",
        cure="name the program in archive.binary, or another archive",
        code="ENGINE_MISSING",
    )


def _install(target: Path, archive: Archive, fetcher: Fetcher, on_bytes: OnBytes) -> None:
    digest = archive.sha256[:DIGEST_CHARS]
    partial = target.with_name(f".{digest}.archive.partial")
    unpacked = target.with_name(f".{digest}.unpacking")
    _remove_tree(unpacked)
    if not (partial.is_file() and file_sha256(partial, None) == archive.sha256):
        fetcher.fetch(
            Origin(kind="url", url=archive.url), partial, Want(f"engine {target.parent.name}", archive.sha256), on_bytes
        )
    try:
        unpack(partial, unpacked, public_url(archive.url))
        if find_program(unpacked, archive.binary) is None:
            raise _no_program(archive)
        os.replace(unpacked, target)  # noqa: PTH105 - crash tests wrap os.replace by name
        sync_directory(target.parent)
    finally:
        _remove_tree(unpacked)
        partial.unlink(missing_ok=True)


def _remove_tree(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)


@dataclass(frozen=True)
class _Entry:
    """One member: `link` is the target of a symbolic (or, `hard`, hard) link, "" for files and folders."""

    name: str
    size_bytes: int
    executable: bool
    folder: bool
    link: str = ""
    hard: bool = False
    special: str = ""


def unpack(archive: Path, directory: Path, shown: str) -> None:
    """Unpack a tar (gzip, bzip2, xz) or zip into the new folder `directory`.

    Every name is checked before anything is written: no absolute or `..` names, no links that leave the folder, no
    devices, at most 32 GiB and 100,000 entries as the archive declares them and as they turn out. Raises EngineError
    ARCHIVE_UNSAFE or ARCHIVE_BROKEN, and FetchError DISK_FULL.
    """
    try:
        with _open(archive) as source:
            entries = source.entries()
            _check(entries, shown)
            require_space(directory.parent, sum(e.size_bytes for e in entries))
            directory.mkdir(parents=True)
            _write(source, entries, directory, shown)
    except (EngineError, FetchError):
        raise
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
        raise _broken(shown, error, "name a tar.gz or zip archive") from error
    except OSError as error:
        if is_full(error):
            raise full_disk(directory, 0, 0) from error
        raise _broken(shown, error, "check the archive and the store's permissions") from error


def _broken(shown: str, error: Exception, cure: str) -> EngineError:
    return EngineError(f"{shown}: cannot be unpacked: {error}", cure=cure, code="ARCHIVE_BROKEN")


class _Tar:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._members: dict[str, tarfile.TarInfo] = {}

    def entries(self) -> list[_Entry]:
        result: list[_Entry] = []
        for member in self._archive:
            if len(result) >= MAX_ENTRIES:
                raise ValueError(f"more than {MAX_ENTRIES:,} entries")
            name = _plain(member.name)
            if name:
                self._members[name] = member
                result.append(_tar_entry(name, member))
        return result

    def read(self, entry: _Entry) -> IO[bytes]:
        stream = self._archive.extractfile(self._members[entry.name])
        if stream is None:
            raise ValueError(f"{entry.name} has no bytes")
        return stream


def _tar_entry(name: str, member: tarfile.TarInfo) -> _Entry:
    special = "" if member.isfile() or member.isdir() or member.issym() or member.islnk() else "a device or pipe"
    link = member.linkname if member.issym() else _plain(member.linkname) if member.islnk() else ""
    if (member.issym() or member.islnk()) and not link:
        special = "a link to nothing"
    size = member.size if member.isfile() else 0
    return _Entry(name, size, bool(member.mode & stat.S_IXUSR), member.isdir(), link, member.islnk(), special)


class _Zip:
    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._members: dict[str, zipfile.ZipInfo] = {}

    def entries(self) -> list[_Entry]:
        infos = self._archive.infolist()
        if len(infos) > MAX_ENTRIES:
            raise ValueError(f"more than {MAX_ENTRIES:,} entries")
        result: list[_Entry] = []
        for info in infos:
            name = _plain(info.filename)
            if name:
                self._members[name] = info
                result.append(_zip_entry(name, info, self._archive))
        return result

    def read(self, entry: _Entry) -> IO[bytes]:
        return self._archive.open(self._members[entry.name])


def _zip_entry(name: str, info: zipfile.ZipInfo, archive: zipfile.ZipFile) -> _Entry:
    mode = info.external_attr >> 16
    kind = stat.S_IFMT(mode)
    special = "" if kind in {0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK} else "a device or pipe"
    link = ""
    if kind == stat.S_IFLNK:
        link = archive.read(info).decode("utf-8", "replace") if info.file_size <= 4096 else "/"
        special = special or ("" if link else "a link to nothing")
    size = 0 if link else info.file_size
    return _Entry(name, size, bool(mode & stat.S_IXUSR), info.is_dir(), link, special=special)


def _plain(name: str) -> str:
    """A member's name without a leading `./` and a trailing slash; "" for the root itself."""
    while name.startswith("./"):
        name = name[2:]
    return "" if name == "." else name.rstrip("/") or name


@contextlib.contextmanager
def _open(archive: Path) -> Iterator[_Tar | _Zip]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            yield _Zip(opened)
    else:
        with tarfile.open(archive) as tar:
            yield _Tar(tar)


def _check(entries: list[_Entry], shown: str) -> None:
    links = {e.name for e in entries if e.link and not e.hard}
    seen: set[str] = set()
    for entry in entries:
        fault = name_fault(entry.name)
        if not fault and not entry.folder and entry.name in seen:
            fault = "stands in it twice"
        seen.add(entry.name)
        if not fault and entry.special:
            fault = f"is {entry.special}"
        if not fault and any(str(parent) in links for parent in PurePosixPath(entry.name).parents):
            fault = "stands below a symbolic link"
        if not fault and entry.link and not _stays_inside(entry):
            fault = f"links out of its folder, to `{entry.link}`"
        if fault:
            raise _unsafe(f"{shown}: `{entry.name}` {fault}")
    total = sum(e.size_bytes for e in entries)
    if total > MAX_UNPACKED_BYTES:
        raise _unsafe(f"{shown}: would unpack to {total:,} bytes, more than {MAX_UNPACKED_BYTES:,}")


def _stays_inside(entry: _Entry) -> bool:
    """Whether a link's target, taken from its own folder (hard links: from the root), stays in the archive."""
    if entry.link.startswith("/") or "\\" in entry.link or "\0" in entry.link:
        return False
    depth = 0 if entry.hard else len(PurePosixPath(entry.name).parts) - 1
    for part in entry.link.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            return False
    return True


def _unsafe(message: str) -> EngineError:
    return EngineError(message, cure="do not use this archive", code="ARCHIVE_UNSAFE")


def _write(source: _Tar | _Zip, entries: list[_Entry], directory: Path, shown: str) -> None:
    """Files and folders first, then hard links, then symbolic links: nothing is written through a link."""
    left = MAX_UNPACKED_BYTES
    for entry in (e for e in entries if not e.link):
        path = directory / entry.name
        if entry.folder:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with source.read(entry) as reader, path.open("wb") as writer:
            while block := reader.read(BLOCK_BYTES):
                left -= len(block)
                if left < 0:
                    raise _unsafe(f"{shown}: unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
                writer.write(block)
            writer.flush()
            os.fsync(writer.fileno())
        path.chmod(0o755 if entry.executable else 0o644)
    for entry in sorted((e for e in entries if e.link), key=lambda e: not e.hard):
        path = directory / entry.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.hard:
            path.hardlink_to(directory / entry.link)
        else:
            path.symlink_to(entry.link)
    root = os.path.realpath(directory)
    for entry in entries:
        # one link may lead through another, which the check of the names alone does not see
        if entry.link and os.path.commonpath((root, os.path.realpath(directory / entry.name))) != root:
            raise _unsafe(f"{shown}: `{entry.name}` links out of the archive, to `{entry.link}`")

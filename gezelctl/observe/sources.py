"""Local files that payloads can come from: `path` sources, MLX folders, and the adoptFrom roots by sha256."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from gezelctl.catalog.servers import Resolved
from gezelctl.catalog.types import PayloadFile
from gezelctl.config.source import is_text
from gezelctl.errors import GgufError
from gezelctl.gguf.cache import cached_summary
from gezelctl.observe.mounts import Mounts
from gezelctl.observe.types import SourceFact
from gezelctl.store.digests import file_sha256
from gezelctl.store.layout import Paths
from gezelctl.store.types import InstalledPayload

FolderFiles = tuple[tuple[str, int, str], ...]
"""(name, bytes, sha256) of each payload file."""

_MLX_FILES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "preprocessor_config.json",
        "processor_config.json",
        "video_preprocessor_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
    }
)
_MLX_SUFFIXES = (".safetensors", ".safetensors.index.json")
_LATER_SHARD = re.compile(r"-(?!0*1-of-)\d+-of-\d+\.gguf$", re.IGNORECASE)
_WALK_DEPTH = 8
_WALK_FOLDERS = 20_000


class Sources(NamedTuple):
    """`facts` and `directories` by absolute path, `adoptable` sha256 → absolute path, `problems` in words."""

    facts: dict[str, SourceFact]
    directories: dict[str, FolderFiles]
    adoptable: dict[str, str]
    problems: tuple[str, ...]


class _Wanted(NamedTuple):
    size_bytes: int
    role: str


def read_sources(
    resolved: Iterable[Resolved],
    installed: Iterable[InstalledPayload],
    adopt_from: Iterable[str],
    paths: Paths,
    mounts: Mounts,
) -> Sources:
    """Every local file that the resolved servers could use. A file is hashed once, then remembered in the cache."""
    files = [file for item in resolved for file in item.all_files]
    facts: dict[str, SourceFact] = {}
    directories: dict[str, FolderFiles] = {}
    for path, file in sorted({f.origin.path: f for f in files if f.origin.kind == "path"}.items()):
        if file.name:
            facts[path] = source_fact(path, file, paths, mounts)
        else:
            _add_folder(path, paths, mounts, facts, directories)
    wanted = _wanted(files, installed)
    adoptable, problems = find_adoptable(wanted, adopt_from, paths.cache)
    for sha256, path in adoptable.items():
        facts[path] = _adoptable_fact(path, sha256, wanted[sha256].role, paths, mounts)
    return Sources(dict(sorted(facts.items())), directories, dict(sorted(adoptable.items())), problems)


def source_fact(path: str, file: PayloadFile, paths: Paths, mounts: Mounts) -> SourceFact:
    """One file with its sha256 and, for a GGUF that begins a model, its header or what is wrong with it."""
    fact = _stat(path, mounts)
    if fact.kind != "file":
        return fact
    if file.role != "file":
        fact = _with_header(fact, paths)
    return fact if fact.error else _with_digest(fact, paths)


def _stat(path: str, mounts: Mounts) -> SourceFact:
    place = Path(path)
    try:
        status = place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return SourceFact(path=path, kind="missing", cure="correct source.path, or put the file there")
    except OSError as error:
        return _unreadable(path, error)
    if stat.S_ISDIR(status.st_mode):
        return SourceFact(path=path, kind="directory")
    if not stat.S_ISREG(status.st_mode):
        return SourceFact(path=path, kind="other")
    if not os.access(place, os.R_OK):
        return SourceFact(path=path, kind="unreadable", cure=f"let the user who runs gezelctl read {path}")
    return SourceFact(path=path, kind="file", size_bytes=status.st_size, file_system=mounts.file_system(place))


def _unreadable(path: str, error: OSError) -> SourceFact:
    cure = f"let the user who runs gezelctl read it ({error.strerror})"
    return SourceFact(path=path, kind="unreadable", cure=cure)


def _with_header(fact: SourceFact, paths: Paths) -> SourceFact:
    """Later shards have no model header of their own; the first one's check covers the set."""
    if _LATER_SHARD.search(fact.path):
        return fact
    try:
        return replace(fact, gguf=cached_summary(Path(fact.path), paths.cache / "gguf"))
    except GgufError as error:
        message = error.message.removeprefix(f"{fact.path}: ").removeprefix(f"{Path(fact.path).name}: ")
        return replace(fact, error_code=error.code, error=message, cure=error.cure)
    except OSError as error:
        return _unreadable(fact.path, error)


def _with_digest(fact: SourceFact, paths: Paths) -> SourceFact:
    try:
        return replace(fact, sha256=file_sha256(Path(fact.path), paths.cache))
    except OSError as error:
        return _unreadable(fact.path, error)


def _add_folder(
    path: str, paths: Paths, mounts: Mounts, facts: dict[str, SourceFact], directories: dict[str, FolderFiles]
) -> None:
    """An MLX folder: itself, and each of its payload files with its digest."""
    facts[path] = _stat(path, mounts)
    if facts[path].kind != "directory":
        return
    try:
        names = sorted(name for name in os.listdir(path) if is_mlx_file(name))  # noqa: PTH208 - names only
    except OSError as error:
        facts[path] = _unreadable(path, error)
        return
    found = [_with_digest(_stat(f"{path}/{name}", mounts), paths) for name in names]
    facts.update((fact.path, fact) for fact in found)
    directories[path] = tuple((Path(f.path).name, f.size_bytes, f.sha256) for f in found if f.kind == "file")


def is_mlx_file(name: str) -> bool:
    """Whether a file of a model folder belongs to an MLX payload: weights, index, settings, tokenizer, template."""
    return name in _MLX_FILES or name.endswith(_MLX_SUFFIXES)


def _wanted(files: Iterable[PayloadFile], installed: Iterable[InstalledPayload]) -> dict[str, _Wanted]:
    """Pinned files that would be downloaded, by sha256."""
    have = {f.sha256 for p in installed for f in p.manifest.files if f.name not in p.damaged}
    pinned = (f for f in files if f.sha256 and f.origin.kind != "path" and f.sha256 not in have)
    return {f.sha256: _Wanted(f.size_bytes, f.role) for f in pinned}


def find_adoptable(
    wanted: Mapping[str, _Wanted], roots: Iterable[str], cache: Path
) -> tuple[dict[str, str], tuple[str, ...]]:
    """sha256 → path in the first root that has it, and what could not be looked through.

    Hugging Face and Ollama name their blobs by sha256, so those are found without reading a byte. Elsewhere a file of
    the wanted size is hashed (once, then remembered). Links are not followed.
    """
    found: dict[str, str] = {}
    problems: list[str] = []
    for name in roots:
        root = Path(name).expanduser()
        missing = {sha: want for sha, want in wanted.items() if sha not in found}
        if not missing:
            break
        if not root.is_dir():
            continue
        found.update(_by_name(root, missing))
        by_size: dict[int, set[str]] = {}
        for sha, want in missing.items():
            if sha not in found and want.size_bytes:
                by_size.setdefault(want.size_bytes, set()).add(sha)
        found.update(_by_hash(root, by_size, cache, problems))
    return found, tuple(problems)


def _by_name(root: Path, wanted: Mapping[str, _Wanted]) -> Iterator[tuple[str, str]]:
    """`models--owner--name/blobs/<sha256>` of a hub cache, `blobs/sha256-<sha256>` of Ollama."""
    folders = [(blobs, "sha256-") for blobs in (root / "blobs", root / "models" / "blobs")]
    folders += [(blobs, "") for top in (root, root / "hub") for blobs in sorted(top.glob("models--*/blobs"))]
    for folder, prefix in folders:
        for sha, want in wanted.items():
            if _is_file(folder / f"{prefix}{sha}", want.size_bytes):
                yield sha, str(folder / f"{prefix}{sha}")


def _is_file(path: Path, size_bytes: int) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and size_bytes in (0, status.st_size)


def _by_hash(root: Path, by_size: dict[int, set[str]], cache: Path, problems: list[str]) -> Iterator[tuple[str, str]]:
    """Files of a wanted size whose bytes are wanted; looks no further when all are found."""
    left = set().union(*by_size.values())
    for path, size in _walk(root) if left else ():
        if size not in by_size:
            continue
        try:
            sha = file_sha256(path, cache)
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror}")
            continue
        if sha in left:
            yield sha, str(path)
            left.discard(sha)
            if not left:
                return


def _walk(root: Path) -> Iterator[tuple[Path, int]]:
    """Regular files below `root` with their sizes, in order; at most 8 folders deep and 20,000 folders."""
    for count, (folder, folders, files) in enumerate(os.walk(root)):
        place = Path(folder)
        deep = len(place.relative_to(root).parts) >= _WALK_DEPTH
        folders[:] = [] if deep or count >= _WALK_FOLDERS else sorted(folders)
        for name in sorted(files):
            path = place / name
            if not is_text(str(path)):
                continue
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield path, status.st_size


def _adoptable_fact(path: str, sha256: str, role: str, paths: Paths, mounts: Mounts) -> SourceFact:
    """The digest is the file's name or was measured; the header is read where the model begins in it."""
    fact = replace(_stat(path, mounts), sha256=sha256)
    if role not in {"weights", "draft", "mmproj"} or fact.kind != "file":
        return fact
    try:
        return replace(fact, gguf=cached_summary(Path(path), paths.cache / "gguf"))
    except (GgufError, OSError):
        return fact  # the bytes are those of the catalog; what is wrong with them shows once they are installed

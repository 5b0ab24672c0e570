"""Installed manifests: what is really on disk, one `manifest.json` a payload, written last."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gezelctl.catalog.names import SHA256, STORE_ID, is_device, name_fault
from gezelctl.store.files import StateError, encode, read_struct, sync_directory, write_atomic
from gezelctl.store.layout import MANIFEST_NAME, PENDING_MANIFEST_NAME, Paths, UnsafePathError, safe_join
from gezelctl.store.types import InstalledFile, InstalledManifest, InstalledPayload

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Inventory:
    """All payloads of a store, sorted by engine and id, and what could not be read, one line each."""

    payloads: tuple[InstalledPayload, ...]
    problems: tuple[str, ...] = ()


def installed(paths: Paths) -> tuple[InstalledPayload, ...]:
    """The payloads of the store; see `scan` for what could not be read."""
    return scan(paths).payloads


def scan(paths: Paths) -> Inventory:
    """Every `models/<engine>/<id>/manifest.json`, with its files checked by size (no payload byte is read).

    Symbolic links, dot-files and folders without a manifest are passed over; a folder being filled is none of ours
    to report. A manifest that cannot be read is a problem, never an exception.
    """
    payloads: list[InstalledPayload] = []
    problems: list[str] = []
    for engine in _folders(paths.models, problems):
        for directory in _folders(engine, problems):
            try:
                payload = read_installed(directory, engine.name)
            except (StateError, UnsafePathError) as error:
                problems.append(error.message)
                continue
            if payload is not None:
                payloads.append(payload)
    return Inventory(tuple(payloads), tuple(problems))


def _folders(root: Path, problems: list[str]) -> list[Path]:
    try:
        entries = sorted(root.iterdir())
        return [
            p for p in entries if not p.is_symlink() and p.is_dir() and STORE_ID.match(p.name) and not is_device(p.name)
        ]
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"{root}: {error.strerror}")
        return []


def read_installed(directory: Path, engine: str) -> InstalledPayload | None:
    """The payload in `directory` with its damaged files; None when nothing is installed. Raises StateError."""
    manifest = read_manifest(directory, engine)
    if manifest is None:
        return None
    damaged = {f.name for f in manifest.files if _size(directory, f.name) != f.size_bytes}
    damaged |= _in_doubt(directory, manifest)
    return InstalledPayload(path=str(directory), manifest=manifest, damaged=tuple(sorted(damaged)))


def _in_doubt(directory: Path, manifest: InstalledManifest) -> set[str]:
    """Files that an interrupted publish may have replaced already: the old manifest no longer speaks for them."""
    try:
        pending = read_struct(directory / PENDING_MANIFEST_NAME, InstalledManifest)
    except StateError:
        return set(manifest.digests)
    if pending is None:
        return set()
    return {name for name, sha256 in manifest.digests.items() if pending.digests.get(name) not in (None, sha256)}


def _size(directory: Path, name: str) -> int | None:
    """Size of a regular file below `directory`; None for anything else, including a path over a symbolic link."""
    try:
        status = safe_join(directory, name).lstat()
    except (OSError, UnsafePathError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def read_manifest(directory: Path, engine: str) -> InstalledManifest | None:
    """The manifest in `directory`, also in the form that Gezel writes; None when there is none.

    `engine` is the name of the folder above. Raises StateError when the file is damaged, of a newer schema, or names
    files outside its folder.
    """
    path = safe_join(directory, MANIFEST_NAME)
    raw = read_struct(path, dict[str, object])
    if raw is None:
        return None
    try:
        manifest = (
            msgspec.convert(raw, InstalledManifest)
            if "schemaVersion" in raw or "engine" in raw
            else _from_gezel(raw, directory, engine)
        )
    except msgspec.ValidationError as error:
        raise _damaged(path, str(error)) from error
    if manifest.schema_version > SCHEMA_VERSION:
        raise StateError(
            f"{path}: has schema version {manifest.schema_version}, this program knows {SCHEMA_VERSION}",
            cure="update gezelctl",
            code="STATE_NEWER",
        )
    for file in manifest.files:
        if fault := name_fault(file.name):
            raise _damaged(path, f"file name `{file.name}` {fault}")
    return manifest


def write_pending(directory: Path, manifest: InstalledManifest) -> Path:
    """Write the manifest of a publish that is about to begin; renaming it to `manifest.json` completes the publish."""
    path = directory / PENDING_MANIFEST_NAME
    write_atomic(path, encode(manifest))
    return path


def commit_pending(directory: Path) -> None:
    """Make the pending manifest `manifest.json`, in one rename. Raises OSError."""
    os.replace(directory / PENDING_MANIFEST_NAME, directory / MANIFEST_NAME)  # noqa: PTH105 - crash tests wrap os.replace
    sync_directory(directory)


class _GezelShard(msgspec.Struct, frozen=True, rename="camel"):
    filename: str
    sha256: str = ""
    size_bytes: int = 0


class _GezelManifest(msgspec.Struct, frozen=True, rename="camel"):
    """What Gezel writes beside a model; `weights_filename` for llama.cpp, `files` for MLX."""

    id: str
    name: str
    installed_at: str
    weights_filename: str = ""
    sha256: str = ""
    shards: tuple[_GezelShard, ...] = ()
    mmproj_filename: str = ""
    draft_model_filename: str = ""
    files: tuple[str, ...] = ()
    file_sha256: dict[str, str] = {}
    catalog_version: str = ""
    huggingface_repo: str = ""
    payload_fingerprint: str = ""


def _from_gezel(raw: dict[str, object], directory: Path, engine: str) -> InstalledManifest:
    """Sizes come from the disk, and a missing file keeps the size that the shards table says, which marks it damaged.

    Digests come from `fileSha256`, which holds what was measured; the catalog's pins only fill its gaps.
    """
    old = msgspec.convert({k: v for k, v in raw.items() if v is not None}, _GezelManifest)
    roles = _gezel_roles(old)
    if not roles:
        raise msgspec.ValidationError("names neither weightsFilename nor files")
    pins = {s.filename.rpartition("/")[2]: s for s in old.shards}
    files = []
    for name, role in roles.items():
        pin = pins.get(name)
        digest = (
            old.file_sha256.get(name)
            or (pin.sha256 if pin else "")
            or (old.sha256 if name == old.weights_filename else "")
        )
        size = _size(directory, name) if not name_fault(name) else None
        declared = pin.size_bytes if pin and pin.size_bytes else size
        checked = digest.lower() if SHA256.match(digest.lower()) else ""
        # -1 equals no size on disk, so that a file that is gone counts as damaged
        files.append(
            InstalledFile(name=name, role=role, sha256=checked, size_bytes=-1 if declared is None else declared)
        )
    return InstalledManifest(
        engine=engine,
        id=old.id,
        name=old.name,
        catalog_version=old.catalog_version,
        fingerprint=old.payload_fingerprint,
        files=tuple(files),
        installed_at=old.installed_at,
        repo=old.huggingface_repo,
        tool="gezel",
    )


def _gezel_roles(old: _GezelManifest) -> dict[str, str]:
    if old.files:
        return dict.fromkeys(old.files, "file")
    roles: dict[str, str] = {}
    if old.weights_filename:
        roles[old.weights_filename] = "shard" if len(old.shards) > 1 else "weights"
    if len(old.shards) > 1:
        roles |= dict.fromkeys((s.filename.rpartition("/")[2] for s in old.shards), "shard")
    for name, role in ((old.mmproj_filename, "mmproj"), (old.draft_model_filename, "draft")):
        if name:
            roles[name] = role
    return roles


def _damaged(path: Path, what: str) -> StateError:
    return StateError(f"{path} is damaged: {what}", cure="move it away and apply again", code="STATE_DAMAGED")

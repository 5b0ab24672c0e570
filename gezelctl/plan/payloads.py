"""Which payload files are missing, and whether each is linked, copied or downloaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec.structs import replace

from gezelctl.catalog.servers import Resolved
from gezelctl.catalog.types import Payload, PayloadFile
from gezelctl.config.model import StoreConfig
from gezelctl.observe.types import Disk, Observed, SourceFact
from gezelctl.plan.types import Change, FileAction, PayloadMeta
from gezelctl.store.types import InstalledPayload


class PayloadNeed(msgspec.Struct, frozen=True):
    """One payload and the files of it that the selected servers need, with digests and sizes filled in."""

    payload: Payload
    files: tuple[PayloadFile, ...]
    servers: tuple[str, ...]

    @property
    def address(self) -> str:
        return payload_address(self.payload)


class Problem(msgspec.Struct, frozen=True):
    """Why a file or payload cannot be used, and what to do."""

    reason: str
    cause: str
    cure: str


def payload_address(payload: Payload) -> str:
    """`payload.<engine>.<id>`."""
    return f"payload.{payload.engine}.{payload.model_id}"


def effective_files(files: Iterable[PayloadFile], observed: Observed) -> tuple[PayloadFile, ...]:
    """The wanted files with what the host knows: folders expanded, digests and sizes of local files filled in."""
    result: list[PayloadFile] = []
    for file in files:
        if file.origin.kind != "path":
            result.append(file)
        elif not file.name:
            for name, size, sha256 in observed.directories.get(file.origin.path, ()):
                origin = replace(file.origin, path=f"{file.origin.path}/{name}")
                result.append(PayloadFile(name=name, role="file", origin=origin, sha256=sha256, size_bytes=size))
        else:
            fact = observed.sources.get(file.origin.path)
            known = fact if fact and fact.kind == "file" else None
            result.append(
                replace(
                    file,
                    sha256=file.sha256 or (known.sha256 if known else ""),
                    size_bytes=file.size_bytes or (known.size_bytes if known else 0),
                )
            )
    return tuple(result)


def needs(resolved: Iterable[Resolved], observed: Observed) -> tuple[PayloadNeed, ...]:
    """The payloads of the given servers and of the draft models that they name, one each, sorted by address.

    The files are the union over the servers.
    """
    grouped: dict[str, list[tuple[Payload, tuple[PayloadFile, ...], str]]] = {}
    for item in resolved:
        if item.payload:
            named = item.drafter.payload if item.drafter else None
            parts = [(item.payload, item.files), *([(named, item.drafter.files)] if item.drafter and named else [])]
            for payload, files in parts:
                grouped.setdefault(payload_address(payload), []).append((payload, files, item.server.name))
    result = []
    for _, parts_of in sorted(grouped.items()):
        wanted: dict[str, PayloadFile] = {}
        for _, files, _ in parts_of:
            wanted |= {f.name: f for f in effective_files(files, observed)}
        servers = tuple(sorted({name for _, _, name in parts_of}))
        result.append(PayloadNeed(payload=parts_of[0][0], files=tuple(wanted.values()), servers=servers))
    return tuple(result)


def installed_of(payload: Payload, observed: Observed) -> InstalledPayload | None:
    """The installed copy of a payload, whatever its version."""
    return observed.installed_by_id.get((payload.engine, payload.model_id))


def plan_payload(need: PayloadNeed, observed: Observed, store: StoreConfig) -> Change | None:
    """The change that makes a payload complete; None when nothing is missing; `blocked` when it cannot be."""
    problem = _problem(need, observed)
    if problem:
        return Change(
            address=need.address, action="blocked", reason=problem.reason, cause=problem.cause, cure=problem.cure
        )
    have = installed_of(need.payload, observed)
    actions = tuple(_file_action(f, need.payload, have, observed, store) for f in need.files)
    missing = [a for a in actions if a.how != "present"]
    if not missing:
        return None
    download = sum(a.size_bytes for a in missing if a.how == "download")
    linked = sum(a.size_bytes for a in missing if a.how != "download")
    return Change(
        address=need.address,
        action="fetch" if any(a.how == "download" for a in missing) else "link",
        reason=_reason(have, missing),
        cause=_cause(have, missing, need),
        download_bytes=download,
        link_bytes=linked,
        files=actions,
        payload=PayloadMeta(
            engine=need.payload.engine,
            model_id=need.payload.model_id,
            name=need.payload.model_id,
            version=need.payload.version,
            fingerprint=need.payload.fingerprint,
            repo=need.payload.repo,
            companions=_companions(need),
        ),
        observed_fingerprint=have.manifest.fingerprint if have else "",
    )


def _companions(need: PayloadNeed) -> dict[str, str]:
    needed = {f.name for f in need.files}
    return {f.name: f.sha256 for f in need.payload.files if f.sha256 and f.name not in needed}


def _reason(have: InstalledPayload | None, missing: list[FileAction]) -> str:
    if have is None:
        return "model_missing"
    return "payload_damaged" if any(a.file.name in have.damaged for a in missing) else "payload_changed"


def _cause(have: InstalledPayload | None, missing: list[FileAction], need: PayloadNeed) -> str:
    names = ", ".join(sorted(a.file.name for a in missing)[:3]) + (" and more" if len(missing) > 3 else "")
    if have is None:
        return f"not in the store; {len(need.files)} file{'s' if len(need.files) != 1 else ''}"
    damaged = sorted(a.file.name for a in missing if a.file.name in have.damaged)
    if damaged:
        return f"missing or of another size on disk: {', '.join(damaged[:3])}"
    known = have.manifest.digests
    word = "new in the payload" if all(a.file.name not in known for a in missing) else "other bytes wanted"
    return f"{word}: {names}"


def _file_action(
    file: PayloadFile, payload: Payload, have: InstalledPayload | None, observed: Observed, store: StoreConfig
) -> FileAction:
    if have and file.sha256 and have.manifest.digests.get(file.name) == file.sha256 and file.name not in have.damaged:
        return FileAction(file=file, how="present", size_bytes=file.size_bytes)
    best = next(iter(_candidates(file, payload, observed)), None)
    if best is None:
        return FileAction(file=file, how="download", size_bytes=file.size_bytes)
    source, why = best
    how, reason = _link_or_copy(source, observed, store)
    return FileAction(file=file, how=how, size_bytes=file.size_bytes, source=source, reason=reason or why)


def _candidates(file: PayloadFile, payload: Payload, observed: Observed) -> Iterable[tuple[str, str]]:
    """Local files with the wanted bytes, best first, each with why it qualifies."""
    if file.origin.kind == "path":
        yield file.origin.path, "the source itself"
        return
    for other in observed.installed:
        same_folder = other.manifest.engine == payload.engine and other.manifest.id == payload.model_id
        for entry in other.manifest.files:
            if entry.sha256 == file.sha256 and entry.name not in other.damaged:
                if same_folder and entry.name == file.name:
                    continue
                yield f"{other.path}/{entry.name}", f"same bytes in {other.manifest.engine}/{other.manifest.id}"
    if file.sha256 in observed.adoptable:
        yield observed.adoptable[file.sha256], "same bytes in an adoptFrom folder"


def _link_or_copy(source: str, observed: Observed, store: StoreConfig) -> tuple[Literal["link", "copy"], str]:
    if store.link == "copy":
        return "copy", "store.link is copy"
    disk = store_disk(observed)
    fact = observed.sources.get(source)
    if disk and not disk.hard_links:
        return "copy", "the store's file system has no hard links"
    if disk and fact and fact.file_system and fact.file_system != disk.file_system:
        return "copy", "on another file system than the store"
    return "link", ""


def store_disk(observed: Observed) -> Disk | None:
    """The disk that the store stands on."""
    return next((d for d in observed.facts.disks if d.path == observed.store_path), None)


def _problem(need: PayloadNeed, observed: Observed) -> Problem | None:
    if need.payload.disabled_reason:
        return Problem("payload_disabled", need.payload.disabled_reason, "choose another engine or model")
    for file in need.files:
        if file.origin.kind == "path":
            found = source_problem(file, observed.sources.get(file.origin.path))
            if found:
                return found
    if not need.files:
        return Problem("source_empty", "the source folder has no payload files", "name a folder with safetensors")
    return None


def source_problem(file: PayloadFile, fact: SourceFact | None) -> Problem | None:
    """What is wrong with a local file; None when nothing is, or when it was not looked at."""
    path = file.origin.path
    if fact is None:
        return None
    if fact.kind == "directory":
        return Problem("source_is_directory", f"{path} is a folder", "name the GGUF file in it")
    if fact.kind != "file":
        words = {"missing": "does not exist", "unreadable": "cannot be read", "other": "is not a regular file"}
        return Problem(f"source_{fact.kind}", f"{path} {words[fact.kind]}", fact.cure or "correct source.path")
    if fact.error:
        return Problem(fact.error_code or "source_broken", f"{path}: {fact.error}", fact.cure)
    if file.sha256 and fact.sha256 and file.sha256 != fact.sha256:
        return Problem(
            "hash_mismatch",
            f"{path} has sha256 {fact.sha256}, models.yaml pins {file.sha256}",
            "restore the file or correct source.sha256",
        )
    return None

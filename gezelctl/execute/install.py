"""Make one payload complete: stage every file, check the models, publish by renames, write the manifest last.

A crash at any byte leaves the old payload or the new one: until the pending manifest stands, nothing final is touched;
from then on it names what the renames put in place, and readers doubt exactly those files until `manifest.json` is
replaced by it. The next run finds the bytes that are already there by their digests and finishes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gezelctl import __version__
from gezelctl.errors import FetchError, GgufError
from gezelctl.execute.disk import require_space
from gezelctl.execute.fetch import Fetcher, OnBytes
from gezelctl.execute.stage import Staged, Stager
from gezelctl.gguf.reader import read_summary_from
from gezelctl.gguf.source import LocalFile
from gezelctl.gguf.types import GgufSummary
from gezelctl.plan.types import FileAction, PayloadMeta
from gezelctl.store.digests import remember
from gezelctl.store.files import StateError, sync_directory
from gezelctl.store.layout import Paths, UnsafePathError, safe_join
from gezelctl.store.lock import directory_lock
from gezelctl.store.manifests import commit_pending, read_installed, write_pending
from gezelctl.store.types import InstalledFile, InstalledManifest, InstalledPayload


@dataclass(frozen=True)
class Installer:
    """Installs payloads into one store. `on_note` gets lines for a person; `now` stamps the manifest."""

    paths: Paths
    fetcher: Fetcher
    now: Callable[[], datetime]
    on_note: Callable[[str], None]
    on_bytes: OnBytes

    def install(
        self, meta: PayloadMeta, actions: Sequence[FileAction], *, keep_others: bool = False
    ) -> InstalledManifest:
        """Carry out the file actions of one payload and return its new manifest.

        Files of the old payload that neither `actions` nor the companions of `meta` name are removed at the end, unless
        `keep_others` (a narrowed plan does not know what the other servers need). Raises FetchError and GgufError with
        codes; nothing is published then, and files that arrived whole wait as `.partial` for the next run.
        """
        directory = self.paths.payload_dir(meta.engine, meta.model_id)
        # two stacks may share a store: their locks differ, and both would write the same `.partial`
        with directory_lock(directory, lambda: self.on_note("waiting: another gezelctl is filling this payload")):
            return self._install(directory, meta, actions, keep_others=keep_others)

    def _install(
        self, directory: Path, meta: PayloadMeta, actions: Sequence[FileAction], *, keep_others: bool
    ) -> InstalledManifest:
        old = self._old(directory, meta.engine)
        stager = Stager(directory, self.paths.cache, self.fetcher, self.on_note)
        try:
            staged = self._stage_all(stager, actions)
            summary = self._check_models(meta, staged)
        except BaseException:
            _remove_if_empty(directory)
            raise
        kept = [f for f in _others(old, actions) if keep_others or meta.companions.get(f.name) == f.sha256]
        manifest = self._manifest(meta, staged, old, kept, summary)
        self._publish(directory, staged, manifest)
        if old is not None:
            self._remove_stale(directory, old.manifest, manifest)
        return manifest

    def _old(self, directory: Path, engine: str) -> InstalledPayload | None:
        try:
            return read_installed(directory, engine)
        except StateError as error:
            self.on_note(f"{error.message}; it is replaced")
            return None

    def _stage_all(self, stager: Stager, actions: Sequence[FileAction]) -> list[Staged]:
        ready = [stager.ready(action) for action in actions]
        missing = [a for a, r in zip(actions, ready, strict=True) if r is None]
        total = sum(_size(a) for a in missing)
        require_space(stager.directory, sum(_size(a) for a in missing if a.how != "link"))
        staged: list[Staged] = []
        brought = 0
        for action, found in zip(actions, ready, strict=True):
            entry = found or stager.stage(action, _shifted(self.on_bytes, brought, total))
            brought += 0 if found else entry.size_bytes
            staged.append(entry)
        return staged

    def _check_models(self, meta: PayloadMeta, staged: Sequence[Staged]) -> GgufSummary | None:
        """The header of the weights. Raises GgufError when any GGUF of the payload is broken; nothing stays then."""
        if meta.engine != "llama-cpp":
            return None
        weights = [s for s in staged if s.action.file.role in {"weights", "shard"}]
        try:
            for companion in staged:
                if companion not in weights and companion.final.suffix == ".gguf":
                    _read_headers([companion])
            return _read_headers(weights) if weights else None
        except GgufError:
            for entry in staged:
                if entry.partial is not None:
                    entry.partial.unlink(missing_ok=True)
            raise

    def _manifest(
        self,
        meta: PayloadMeta,
        staged: Sequence[Staged],
        old: InstalledPayload | None,
        kept: Sequence[InstalledFile],
        summary: GgufSummary | None,
    ) -> InstalledManifest:
        before = {f.name: f for f in old.manifest.files} if old else {}
        return InstalledManifest(
            engine=meta.engine,
            id=meta.model_id,
            name=meta.name or meta.model_id,
            catalog_version=meta.version,
            fingerprint=meta.fingerprint,
            files=(*(_entry(s, before.get(s.action.file.name)) for s in staged), *kept),
            installed_at=self.now().astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            repo=meta.repo,
            gguf=summary,
            tool=f"gezelctl {__version__}",
        )

    def _publish(self, directory: Path, staged: Sequence[Staged], manifest: InstalledManifest) -> None:
        write_pending(directory, manifest)
        try:
            for entry in staged:
                if entry.partial is not None:
                    os.replace(entry.partial, entry.final)  # noqa: PTH105 - crash tests wrap os.replace by name
                    # renaming one link of a file over another link of it does nothing at all
                    entry.partial.unlink(missing_ok=True)
            for folder in {entry.final.parent for entry in staged}:
                sync_directory(folder)
            commit_pending(directory)
        except OSError as error:
            raise FetchError(
                f"{directory}: cannot be published: {error.strerror}",
                cure="correct it and apply again",
                code="STORE_ACCESS",
            ) from error
        for entry in staged:
            remember(entry.final.resolve(), entry.final.stat(), entry.sha256, self.paths.cache)

    def _remove_stale(self, directory: Path, old: InstalledManifest, new: InstalledManifest) -> None:
        """Remove what only the old manifest names: regular files that were installed, never anything else."""
        for name in sorted(old.digests.keys() - new.digests.keys()):
            try:
                path = safe_join(directory, name)
                if path.is_file() and not path.name.startswith("."):
                    path.unlink()
                    self.on_note(f"{name}: removed, no longer part of the payload")
            except (OSError, UnsafePathError) as error:
                self.on_note(f"{name}: no longer part of the payload, but cannot be removed: {error}")


def _shifted(on_bytes: OnBytes, base: int, total: int) -> OnBytes:
    """Progress of one file as progress of all."""
    return lambda done, _: on_bytes(base + done, total)


def _size(action: FileAction) -> int:
    return action.file.size_bytes or action.size_bytes


def _read_headers(staged: Sequence[Staged]) -> GgufSummary:
    with ExitStack() as stack:
        sources = []
        for entry in staged:
            source = stack.enter_context(LocalFile(entry.partial or entry.final))
            source.name = str(entry.final)  # the error names the file that the person knows
            sources.append(source)
        return read_summary_from(sources)


def _entry(staged: Staged, before: InstalledFile | None) -> InstalledFile:
    """A file that was in place already keeps the story of how it came, if the old manifest knew those bytes."""
    if staged.partial is None and before is not None and before.sha256 == staged.sha256:
        return before
    return InstalledFile(
        name=staged.action.file.name,
        role=staged.action.file.role,
        sha256=staged.sha256,
        size_bytes=staged.size_bytes,
        source=staged.source,
        linked=staged.linked,
    )


def _others(old: InstalledPayload | None, actions: Sequence[FileAction]) -> tuple[InstalledFile, ...]:
    named = {action.file.name for action in actions}
    return tuple(f for f in old.manifest.files if f.name not in named and f.name not in old.damaged) if old else ()


def _remove_if_empty(directory: Path) -> None:
    folders = [p for p in directory.rglob("*") if p.is_dir() and not p.is_symlink()] if directory.is_dir() else []
    for folder in (*sorted(folders, reverse=True), directory):
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()

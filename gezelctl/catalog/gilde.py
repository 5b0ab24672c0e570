"""A catalog folder in the Gilde layout.

    chat-models/<first two letters of id>/<id>/manifest.json                     what the model is, tuning
    chat-models/<first two letters of id>/<id>/versions/<semver>/manifest.json   which files, with which hashes

A lookup reads the identity of the one model and the version that is chosen. A model that is asked for and cannot be
used is a finding with its place; the reference system leaves such a model out without a word.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gezelctl.catalog.findings import Findings, fault, file_fault
from gezelctl.catalog.layers import Version, folder_fault, has_source, merge, read_identity, read_version
from gezelctl.catalog.names import CATALOG_ID, SEMVER
from gezelctl.catalog.reading import JsonDocument, read_json
from gezelctl.catalog.types import Model
from gezelctl.catalog.versions import Listed, ModelRef, newest_first
from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, Place

_ABSENT = (FileNotFoundError, NotADirectoryError)


class GildeCatalog:
    """A catalog folder; nothing is read before it is asked for. `file` names the folder in messages."""

    def __init__(self, root: Path, file: str) -> None:
        self.file = file
        self._root = root
        self._models = root / "chat-models"

    def find(self, ref: ModelRef) -> tuple[Model, tuple[Diagnostic, ...]] | None:
        """The model at the asked version, or at the highest eligible one, with warnings; None when it is not here.

        A pin reaches yanked and floored versions, but must exist. A version folder that does not count (its manifest
        states another version, no date, no source) is passed over with a warning, unless it is pinned; a version that
        counts and is broken is an error, so that a typo never rolls a host back to older files.
        Raises InvalidConfig: E0201 to E0208, E0211, E0212.
        """
        folder = self._models / ref.id[:2] / ref.id
        document = self._read(folder / "manifest.json")
        if document is None:
            return None
        findings = Findings(document.place, document.source)
        identity = read_identity(document, ref.id, findings)
        findings.check()
        assert identity is not None  # noqa: S101 - narrowing: None always comes with an error
        names = self._version_names(folder / "versions", findings)
        eligible = [name for name in names if identity.eligible(name)]
        candidates = [name for name in names if name == ref.version] if ref.version else eligible
        for name in candidates:
            chosen = self._version(folder / "versions" / name, findings, pinned=bool(ref.version))
            if chosen is None:
                eligible = [other for other in eligible if other != name]
                continue
            version, own = chosen
            model = merge(identity, version, name, eligible, identity_findings=findings, version_findings=own)
            findings.extend(own.all)
            findings.check()
            return model, findings.warnings
        raise self._none_left(ref, names, eligible, candidates, findings)

    def listing(self) -> tuple[Listed, ...]:
        """All models, sorted by display name; `index.json` is the fast path where it is usable."""
        models = self._index()
        if models is None:
            models = list(self._walk())
        return tuple(sorted(models, key=lambda listed: (listed.name.casefold(), listed.id)))

    def describe(self) -> str:
        """The catalog for a "searched" list, with why it holds nothing where that is plain."""
        there = os.path.isdir(self._models)  # noqa: PTH112 - unlike is_dir, no error of the disk escapes it
        return self.file if there else f"{self.file} (has no chat-models folder)"

    def _name(self, path: Path) -> str:
        return str(Path(self.file) / path.relative_to(self._root))

    def _read(self, path: Path) -> JsonDocument | None:
        try:
            return read_json(path, self._name(path))
        except _ABSENT:
            return None

    def _entries(self, folder: Path) -> list[str]:
        """Names in a folder, sorted; none when it is missing. Any other failure raises E0201: never "empty"."""
        try:
            return sorted(path.name for path in folder.iterdir())
        except _ABSENT:
            return []
        except OSError as error:
            cause = error.strerror or str(error)
            raise file_fault(
                self._name(folder), f"the folder cannot be listed: {cause}", cure="make it a readable folder"
            ) from error

    def _version_names(self, folder: Path, findings: Findings) -> list[str]:
        names = [name for name in self._entries(folder) if not name.startswith(".")]
        odd = [name for name in names if not SEMVER.match(name)]
        findings.extend(
            Diagnostic(
                "E0205",
                f"{self._name(folder / name)} is not a version",
                cure="name version folders N.N.N",
                severity="warning",
                place=Place(self._name(folder / name), 1, 1),
            )
            for name in odd
        )
        return newest_first([name for name in names if name not in odd])

    def _version(self, folder: Path, findings: Findings, *, pinned: bool) -> tuple[Version, Findings] | None:
        """One version with the findings of its own file; None, with a warning, when the folder does not count."""
        document = self._read(folder / "manifest.json")
        code, problem = "E0205", "manifest.json is missing"
        if document is not None:
            own = Findings(document.place, document.source)
            problem = folder_fault(document, folder.name)
            version = None if problem else read_version(document, own)
            own.check()
            if version is not None and has_source(version):
                return version, own
            if not problem:
                code, problem = "E0206", "has none of llamaCpp, mlx, ds4 and ollama"
        place = document.place(("version",)) if document else Place(self._name(folder / "manifest.json"), 1, 1)
        cure = "correct the manifest" if pinned else "correct it; this version is passed over until then"
        summary = f"version {folder.name}: {problem}"
        if pinned:
            raise fault(code, summary, cure=cure, place=place)
        findings.extend([Diagnostic(code, summary, cure=cure, severity="warning", place=place)])
        return None

    def _none_left(
        self, ref: ModelRef, names: list[str], eligible: list[str], tried: list[str], findings: Findings
    ) -> InvalidConfig:
        known = ", ".join(names)
        place = Place(self._name(self._models / ref.id[:2] / ref.id / "manifest.json"), 1, 1)
        if ref.version:
            cure = f"use one of: {known}" if names else "add a version folder"
            found = Diagnostic("E0211", f"{ref.id} has no version {ref.version}", cure=cure, place=place)
        elif names and not eligible and not tried:
            cure = f"pin one of them, for example {ref.id}@{names[0]}"
            summary = f"every version of {ref.id} is yanked or below its floor ({known})"
            found = Diagnostic("E0212", summary, cure=cure, place=place)
        else:
            cure = "add versions/N.N.N/manifest.json with a source"
            found = Diagnostic("E0205", f"{ref.id} has no usable version", cure=cure, place=place)
        return InvalidConfig([found, *findings.warnings])

    def _index(self) -> list[Listed] | None:
        try:
            document = self._read(self._models / "index.json")
        except InvalidConfig:
            return None  # an index is only a fast path; the folders are the truth
        if document is None or document.data.get("kind") != "chat-model":
            return None
        entries = document.data.get("entries")
        if not isinstance(entries, list):
            return None
        manifests = (entry.get("manifest") for entry in entries if isinstance(entry, dict))
        return [listed for manifest in manifests if (listed := _listed(manifest))]

    def _walk(self) -> Iterator[Listed]:
        for prefix in self._entries(self._models):
            for model_id in self._entries(self._models / prefix):
                try:
                    document = self._read(self._models / prefix / model_id / "manifest.json")
                except InvalidConfig:
                    continue  # a listing passes over what it cannot read; a lookup of this id tells why
                listed = _listed(document.data) if document else None
                if listed and listed.id == model_id and model_id[:2] == prefix:
                    yield listed


def _listed(manifest: object) -> Listed | None:
    if not isinstance(manifest, dict) or manifest.get("kind") != "chat-model":
        return None
    model_id, name = manifest.get("id"), manifest.get("name")
    if not (isinstance(model_id, str) and CATALOG_ID.match(model_id) and isinstance(name, str)):
        return None
    return Listed(model_id, name)

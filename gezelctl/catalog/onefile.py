"""A catalog in one YAML or JSON file, for a lab's own models:

    apiVersion: gezelctl/v1
    kind: Catalog
    models:
      - id: my-model-q4
        version: 1.0.0
        contextWindow: 32768
        llamaCpp: {huggingfaceRepo: lab/my-model, filename: m.gguf, sha256: …, approxSizeBytes: 123}
        tuning: {engine: {llamaCpp: {flashAttn: on}}}

The blocks `llamaCpp`, `mlx` and `tuning` are those of a Gilde manifest. One entry is one version of a model; the
highest version wins, an entry without one is the lowest. The format is ours, so an unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from gezelctl.catalog.blocks import Block, Semver, decode, decode_known
from gezelctl.catalog.described import Described
from gezelctl.catalog.findings import Findings, fault, file_fault
from gezelctl.catalog.findings import Path as ValuePath
from gezelctl.catalog.manifest import payloads
from gezelctl.catalog.names import CATALOG_ID, is_device
from gezelctl.catalog.reading import decode_text, parse_json, read_bytes
from gezelctl.catalog.types import Model
from gezelctl.catalog.versions import Listed, ModelRef, newest_first
from gezelctl.config.diagnostics import Diagnostic, Place
from gezelctl.config.source import SourceText

SUFFIXES = frozenset({".yaml", ".yml", ".json"})


class Parsed(msgspec.Struct, frozen=True):
    """The file as plain data, with the place of each value."""

    data: Any
    place: Callable[[ValuePath], Place]
    source: SourceText

    def findings(self) -> Findings:
        return Findings(self.place, self.source, strict=True)


class CatalogFile(Block, frozen=True, kw_only=True):
    """The top of the file. Entries are decoded one by one."""

    api_version: Literal["gezelctl/v1"]
    kind: Literal["Catalog"]
    models: list[dict[str, Any]]


class Key(Block, frozen=True, kw_only=True):
    """What tells entries apart."""

    id: str
    version: Semver | None = None


class Entry(Described, frozen=True, kw_only=True):
    """One version of one model."""

    version: Semver | None = None
    name: str = ""
    description: str = ""
    llama_cpp: Any = None
    mlx: Any = None


class OneFileCatalog:
    """A catalog file, read at the first question and kept. `file` names it in messages."""

    def __init__(self, path: Path, file: str) -> None:
        self.file = file
        self._path = path
        self._document: Parsed | None = None
        self._entries: dict[str, dict[str, int]] = {}

    def find(self, ref: ModelRef) -> tuple[Model, tuple[Diagnostic, ...]] | None:
        """The model at the asked or the highest version; None when the id is not here.

        Raises InvalidConfig: E0201 to E0209 and E0214 for the file or the entry, E0211 for a version that it lacks.
        """
        document = self._load()
        versions = self._entries.get(ref.id)
        if versions is None:
            return None
        names = newest_first([name for name in versions if name])
        version = ref.version or (names[0] if names else "")
        if version not in versions:
            cure = f"use one of: {', '.join(names)}" if names else f"use {ref.id} without a version; it states none"
            place = document.place(("models", next(iter(versions.values())), "id"))
            raise fault("E0211", f"{ref.id} has no version {ref.version}", cure=cure, place=place)
        return self._model(document, versions[version], version, names)

    def listing(self) -> tuple[Listed, ...]:
        """The models of the file, sorted by id."""
        self._load()
        return tuple(Listed(model_id, model_id) for model_id in sorted(self._entries))

    def describe(self) -> str:
        return self.file

    def _load(self) -> Parsed:
        if self._document is None:
            document = _read(self._path, self.file)
            self._entries = _entries(document)
            self._document = document
        return self._document

    def _model(
        self, document: Parsed, index: int, version: str, names: list[str]
    ) -> tuple[Model, tuple[Diagnostic, ...]]:
        findings = document.findings().under("models", index)
        entry = decode(document.data["models"][index], Entry, findings)
        findings.check()
        assert entry is not None  # noqa: S101 - narrowing: None always comes with an error
        if entry.llama_cpp is None and entry.mlx is None:
            findings.add("E0206", f"{entry.id} has neither `llamaCpp` nor `mlx`", cure="say where its files are")
        files = payloads(entry.llama_cpp, entry.mlx, entry.id, version, findings)
        model = entry.model(entry.name or entry.id, version, names, files, findings)
        findings.check()
        return model, findings.warnings


def _read(path: Path, file: str) -> Parsed:
    try:
        text = decode_text(read_bytes(path, file), file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise file_fault(file, "the file does not exist", cure="correct the path under `catalogs`") from error
    source = SourceText(file, text)
    if path.suffix.lower() == ".json":
        json = parse_json(text, file)
        return Parsed(json.data, json.place, source)
    from gezelctl.config.yaml12 import load

    yaml = load(text, file)
    return Parsed(yaml.data, yaml.place, source)


def _entries(document: Parsed) -> dict[str, dict[str, int]]:
    """Index of each entry by id and version ("" = none stated). Raises E0203, E0209, E0213 and E0214, all at once."""
    findings = document.findings()
    top = decode(document.data, CatalogFile, findings)
    entries: dict[str, dict[str, int]] = {}
    for index, value in enumerate(top.models if top else []):
        view = findings.under("models", index)
        key = decode_known(value, Key, view)
        if key is None:
            continue
        if ":" in key.id or not CATALOG_ID.match(key.id) or is_device(key.id):
            view.add("E0213", f"{key.id!r} is not a model id", ("id",), cure="use 2 to 64 of a-z 0-9 . and -")
            continue
        versions = entries.setdefault(key.id, {})
        if (version := key.version or "") in versions:
            name = f"{key.id}@{version}" if version else key.id
            first = document.place(("models", versions[version])).line
            view.add("E0214", f"{name} is already there, in line {first}", ("id",), cure="remove one of the two")
        versions.setdefault(version, index)
    findings.check()
    return entries

"""The vocabularies of models and their separate draft models, wherever both are on this host's disks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gezelctl.catalog.servers import Resolved
from gezelctl.catalog.types import PayloadFile
from gezelctl.errors import GgufError
from gezelctl.gguf.cache import cached_vocab
from gezelctl.gguf.types import VocabDigest
from gezelctl.observe.headers import stored_file
from gezelctl.observe.types import SourceFact
from gezelctl.store.types import InstalledPayload


class _Here(NamedTuple):
    sha256: str
    path: str


def read_vocabs(
    resolved: Iterable[Resolved],
    installed: Sequence[InstalledPayload],
    sources: Mapping[str, SourceFact],
    adoptable: Mapping[str, str],
    cache_dir: Path,
) -> dict[str, VocabDigest]:
    """sha256 → vocabulary. A file that has none (an EAGLE3 head) or cannot be read is left out."""
    found: dict[str, VocabDigest] = {}
    for item in resolved:
        target = _here(next(iter(item.files), None), installed, sources, adoptable)
        drafts = [here for here in _drafts(item, installed, sources, adoptable) if here]
        if target is None or not drafts:
            continue
        for here in (target, *drafts):
            vocab = found.get(here.sha256) or _read(here.path, cache_dir)
            if vocab is not None:
                found[here.sha256] = vocab
    return dict(sorted(found.items()))


def _drafts(
    item: Resolved,
    installed: Sequence[InstalledPayload],
    sources: Mapping[str, SourceFact],
    adoptable: Mapping[str, str],
) -> Iterator[_Here | None]:
    """Every file that the server could draft with: of its payload, named by it, or named by the catalog."""
    if item.model is None or item.payload is None or item.payload.engine != "llama-cpp":
        return
    named = item.drafter.files[:1] if item.drafter else ()
    for file in (*(f for f in item.files if f.role == "draft"), *named):
        yield _here(file, installed, sources, adoptable)
    wanted = set(_catalog_ids(item.model.spec))
    for payload in installed:
        manifest = payload.manifest
        if manifest.id in wanted and manifest.engine == "llama-cpp" and manifest.files:
            yield _Here(manifest.files[0].sha256, f"{payload.path}/{manifest.files[0].name}")


def _catalog_ids(spec: Mapping[str, object]) -> Iterator[str]:
    """`draftModelId` of the catalog's block and of its overlays."""
    table = spec.get("byBackend")
    for block in (spec, *(table.values() if isinstance(table, dict) else ())):
        name = block.get("draftModelId") if isinstance(block, Mapping) else None
        if isinstance(name, str):
            yield name


def _here(
    file: PayloadFile | None,
    installed: Sequence[InstalledPayload],
    sources: Mapping[str, SourceFact],
    adoptable: Mapping[str, str],
) -> _Here | None:
    """Where a wanted file stands on this host, None when it does not."""
    if file is None:
        return None
    if file.origin.kind == "path":
        fact = sources.get(file.origin.path)
        return _Here(fact.sha256, fact.path) if fact and fact.sha256 else None
    path = stored_file(file.sha256, installed) or adoptable.get(file.sha256, "")
    return _Here(file.sha256, path) if path else None


def _read(path: str, cache_dir: Path) -> VocabDigest | None:
    try:
        return cached_vocab(Path(path), cache_dir)
    except (GgufError, OSError):
        return None

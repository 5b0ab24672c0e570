"""A model reference (`id`, `id@version`) and the choice among a model's versions."""

from __future__ import annotations

import msgspec

from gezelctl.catalog.findings import fault
from gezelctl.catalog.names import CATALOG_ID, SEMVER, SemverKey, is_device, semver_key
from gezelctl.config.diagnostics import Place


class ModelRef(msgspec.Struct, frozen=True):
    """What `model:` names; `version` is "" when the highest eligible one is meant."""

    id: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.id}@{self.version}" if self.version else self.id


class Listed(msgspec.Struct, frozen=True):
    """A model of a listing."""

    id: str
    name: str


def parse_ref(text: str, place: Place | None = None) -> ModelRef:
    """`id` or `id@version`; an Ollama-style `:latest` behind the id is dropped. Raises InvalidConfig E0213.

    An id with another colon is legal in a Gilde catalog, but it can be no folder on every file system and no part of
    an address, so it is refused here, before anything is installed under it.
    """
    model_id, at, version = text.partition("@")
    model_id = model_id.removesuffix(":latest")
    problem = ""
    if ":" in model_id:
        problem = "has a colon in its id, which cannot be a folder name everywhere"
    elif not CATALOG_ID.match(model_id):
        problem = "is not a model id (2 to 64 of a-z 0-9 . -, a letter or digit first)"
    elif is_device(model_id):
        problem = "is a device name on Windows"
    elif at and not SEMVER.match(version):
        problem = "does not end in a version such as 1.2.0"
    if problem:
        raise fault("E0213", f"model {text!r} {problem}", cure="write the model as id or id@version", place=place)
    return ModelRef(model_id, version)


def newest_first(versions: list[str]) -> list[str]:
    """Versions by semver, highest first. Build metadata does not order; the text decides between such twins."""

    def key(version: str) -> tuple[SemverKey, str]:
        order = semver_key(version)
        return (order or (-1, -1, -1, False, ()), version)

    return sorted(versions, key=key, reverse=True)


def below(version: str, floor: str) -> bool:
    """Whether `version` is lower than `floor`; False when there is no floor."""
    order, limit = semver_key(version), semver_key(floor)
    return order is not None and limit is not None and order < limit

"""The two layers of a Gilde manifest, identity and version, and their merge into one Model.

The merge takes a fixed list of fields from each layer. A field on the wrong layer has no effect, and is reported.
`minGezelVersion` floors name releases of the reference application; gezelctl is another product with its own
numbers, so they hold no version back here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from gezelctl.catalog.blocks import Block, Bytes, Semver, decode_known
from gezelctl.catalog.described import Described
from gezelctl.catalog.findings import Findings
from gezelctl.catalog.manifest import payloads
from gezelctl.catalog.names import near_names
from gezelctl.catalog.reading import JsonDocument
from gezelctl.catalog.types import Model
from gezelctl.catalog.versions import below

SOURCES = ("ollama", "llamaCpp", "mlx", "ds4")
"""A version has at least one of these; gezelctl serves llamaCpp and mlx."""


class Identity(Described, frozen=True, kw_only=True):
    """What of an identity manifest a deployment needs."""

    schema_version: Literal[1]
    kind: Literal["chat-model"]
    name: Annotated[str, Meta(min_length=1)]
    yanked_versions: tuple[str, ...] = ()
    min_supported_version: Semver | None = None

    def eligible(self, version: str) -> bool:
        """Whether a version can be chosen without a pin: neither yanked nor below the floor."""
        return version not in self.yanked_versions and not below(version, self.min_supported_version or "")


class Version(Block, frozen=True, kw_only=True):
    """What of a version manifest a deployment needs. A source that is null counts as absent."""

    schema_version: Literal[1]
    approx_size_bytes: Bytes
    ollama: Any = None
    llama_cpp: Any = None
    mlx: Any = None
    ds4: Any = None


_IDENTITY_ELSEWHERE = frozenset({
    "description", "maintainer", "maker", "logo", "licenseClass", "licenseShortName", "licenseUrl", "recoScore",
    "minGezelVersion", "supportsTools", "upstream", "category", "style", "behaviors", "evalHints", "updatedAt",
    "version", "releasedAt", "approxSizeBytes", "notes", *SOURCES,
})  # fmt: skip
"""Keys of an identity that say nothing about a deployment; the sources are copies for older readers."""

_VERSION_ELSEWHERE = frozenset({"version", "releasedAt", "notes", "minGezelVersion"})
_IDENTITY_ONLY = frozenset(
    {"tuning", "contextWindow", "kvBytesPerTokenF16", "kvFixedBytesF16", "yankedVersions", "minSupportedVersion"}
)


def read_identity(document: JsonDocument, model_id: str, findings: Findings) -> Identity | None:
    """The identity layer; None after E0203, or E0204 when `kind` or `id` is not what the folder says."""
    disagrees = False
    for key, wanted in (("kind", "chat-model"), ("id", model_id)):
        value = document.data.get(key)
        if isinstance(value, str) and value != wanted:
            cure = f"set it to {wanted!r}, or move the manifest"
            findings.add("E0204", f"{value!r} does not agree with the folder, which says {wanted!r}", (key,), cure=cure)
            disagrees = True
    if disagrees:
        return None
    _report_near_misses(document.data, Identity, _IDENTITY_ELSEWHERE, findings)
    return decode_known(document.data, Identity, findings)


def folder_fault(document: JsonDocument, folder: str) -> str:
    """Why a version folder does not count, by its manifest; "" when it does."""
    if document.data.get("version") != folder:
        return f"`version` is {document.data.get('version')!r}, but the folder is {folder!r}"
    if not isinstance(document.data.get("releasedAt"), str):
        return "`releasedAt` is not a date text"
    return ""


def read_version(document: JsonDocument, findings: Findings) -> Version | None:
    """The version layer; None after E0203."""
    for key in document.data.keys() & _IDENTITY_ONLY:
        findings.add(
            "E0209",
            "has no effect in a version manifest",
            (key,),
            cure="move it to the model's own manifest.json",
            severity="warning",
        )
    _report_near_misses(document.data, Version, _VERSION_ELSEWHERE | _IDENTITY_ONLY, findings)
    return decode_known(document.data, Version, findings)


def has_source(version: Version) -> bool:
    return any(source is not None for source in (version.ollama, version.llama_cpp, version.mlx, version.ds4))


def merge(
    identity: Identity,
    version: Version,
    name: str,
    available: Sequence[str],
    *,
    identity_findings: Findings,
    version_findings: Findings,
) -> Model:
    """Identity and chosen version as one Model. What is wrong in a block goes to the findings of its layer."""
    files = payloads(version.llama_cpp, version.mlx, identity.id, name, version_findings)
    return identity.model(identity.name, name, available, files, identity_findings)


def _report_near_misses(
    data: dict[str, object], kind: type[Block], elsewhere: frozenset[str], findings: Findings
) -> None:
    """E0209 for an unknown key that looks like a known one. Other unknown keys are a newer catalog's."""
    known = set(kind.__struct_encode_fields__) | elsewhere
    for key in sorted(data.keys() - known):
        if near := near_names(key, sorted(known), cutoff=0.85):
            cure = f"did you mean `{near[0]}`?"
            findings.add("E0209", "unknown key", (key,), cure=cure, severity="warning")

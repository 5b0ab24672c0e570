"""The typed blocks of a manifest, and decoding them with a place for what is wrong.

Decoding reports to a Findings and goes on, so that one run shows all faults of a manifest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from gezelctl.catalog.findings import Findings, Path
from gezelctl.catalog.names import HUB_REPO, REVISION, SEMVER, SHA256
from gezelctl.config.hints import did_you_mean

Sha256 = Annotated[str, Meta(pattern=f"^{SHA256.pattern}")]
Repo = Annotated[str, Meta(pattern=f"^{HUB_REPO.pattern}", max_length=256)]
Semver = Annotated[str, Meta(pattern=f"^{SEMVER.pattern}", max_length=128)]
RevisionText = Annotated[str, Meta(pattern=f"^{REVISION.pattern}")]
Bytes = Annotated[int, Meta(gt=0, le=2**53 - 1)]
"""A positive count that every JSON reader keeps exactly."""
Count = Annotated[int, Meta(gt=0, le=2**31 - 1)]
KvBytes = Annotated[float, Meta(gt=0, le=1e15)]
"""f16 KV bytes a token."""
KvFixed = Annotated[float, Meta(ge=0, le=1e15)]
"""f16 KV bytes a sequence that do not grow with the context (windowed layers, recurrent state)."""
Accelerators = tuple[Annotated[str, Meta(pattern=r"^[a-z0-9_\-]+\Z")], ...]

_HINTS = {
    "sha256": "give the 64 lower-case hexadecimal digits of the file's sha256",
    "huggingfaceRepo": "write it as owner/name",
    "sizeBytes": "give the size in bytes, a positive integer",
    "approxSizeBytes": "give the total size in bytes, a positive integer",
}
_AT = re.compile(r" - at (?:`key` in )?`\$(?P<path>.*)`\Z")
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>[0-9]+)\]")

B = TypeVar("B", bound="Block")


class Block(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of the decoded blocks; unknown keys are reported by `decode`, not by msgspec."""


class FileEntry(Block, frozen=True, kw_only=True):
    """A pinned file: `name` in lists, `filename` for companions; both are paths inside the repo."""

    name: str = ""
    filename: str = ""
    sha256: Sha256
    size_bytes: Bytes


class DraftEntry(FileEntry, frozen=True, kw_only=True):
    """A drafter. It may live in a repo of its own, at a revision of its own, and be for some accelerators only."""

    huggingface_repo: Repo | None = None
    revision: RevisionText | None = None
    backends: Accelerators = ()


class SourceBlock(Block, frozen=True, kw_only=True):
    """What `llamaCpp` and `mlx` share. `excludedBackends`: accelerators on which the build is known not to work."""

    huggingface_repo: Repo
    revision: RevisionText = "main"
    approx_size_bytes: Bytes
    resident_bytes: Bytes | None = None
    quantization: str = ""
    excluded_backends: Accelerators = ()


class LlamaCppBlock(SourceBlock, frozen=True, kw_only=True):
    filename: str | None = None
    sha256: Sha256 | None = None
    shards: list[Any] | None = None
    mmproj: dict[str, Any] | None = None
    draft_model: dict[str, Any] | None = None


class MlxBlock(SourceBlock, frozen=True, kw_only=True):
    """`subdir` is the model's folder inside a repo of several builds; `disabledReason` = known not to load."""

    files: list[Any]
    subdir: str | None = None
    chat_template: str = ""
    disabled_reason: str = ""


def decode(value: object, kind: type[B], findings: Findings) -> B | None:
    """`value` as a struct; None after reporting E0203. Unknown keys are reported as E0209 and left out."""
    if isinstance(value, dict):
        report_unknown(value, kind.__struct_encode_fields__, findings)
    return decode_known(value, kind, findings)


def decode_known(value: object, kind: type[B], findings: Findings) -> B | None:
    """`value` as a struct; None after reporting E0203. Unknown keys are left out without a word."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        report_invalid(error, findings)
    return None


def report_invalid(error: msgspec.ValidationError, findings: Findings) -> None:
    """Turn a msgspec error into E0203 at the value that it is about."""
    message = str(error)
    at = _AT.search(message)
    steps: Path = ()
    if at:
        message = message[: at.start()]
        steps = tuple(step["key"] or int(step["index"]) for step in _STEP.finditer(at["path"]))
    missing = re.search(r"missing required field `(.+)`", message)
    name = missing[1] if missing else str(steps[-1]) if steps else ""
    summary = f"`{name}` is missing" if missing else message[:1].lower() + message[1:]
    findings.add("E0203", summary, steps, cure=_HINTS.get(name, "correct the value"))


def report_unknown(value: Mapping[str, object], known: Iterable[str], findings: Findings) -> None:
    """E0209 for each key outside `known`: an error in our own format, a warning in one that may be newer."""
    names = list(known)
    for key in value:
        if key not in names:
            findings.add(
                "E0209",
                "unknown key",
                (key,),
                cure=did_you_mean(str(key), names, kind="keys"),
                severity="error" if findings.strict else "warning",
            )

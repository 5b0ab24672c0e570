"""What a payload consists of, which of it a host needs, and its fingerprint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

import msgspec

from gezelctl.catalog.findings import Findings, Path
from gezelctl.catalog.names import collation_key, disk_key, name_fault
from gezelctl.catalog.types import Payload, PayloadFile

RESERVED_NAMES = frozenset({"manifest.json"})
"""The store writes its installed manifest beside the files."""

PARTIAL_SUFFIX = ".partial"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf\Z", re.IGNORECASE)


def basename(name: str) -> str:
    """The name on disk of a llama.cpp file: sub-folders of the repo are flattened, so shards stand together."""
    return name.rpartition("/")[2]


def shard_names(first: str) -> tuple[str, ...]:
    """All file names of the set that `first` belongs to, by llama.cpp's pattern `<stem>-00001-of-0000N.gguf`.

    Only `first` itself when the name does not follow the pattern (llama_split_prefix in llama.cpp).
    """
    match = _SHARD.match(first)
    if match is None:
        return (first,)
    count = int(match["count"])
    suffix = first[match.end("count") :]
    return tuple(f"{match['stem']}-{n:05d}-of-{count:05d}{suffix}" for n in range(1, count + 1))


def shard_position(name: str) -> tuple[int, int]:
    """(number, count) that a shard's name states, from 1; (1, 1) for a name that is not of a set."""
    match = _SHARD.match(name)
    return (int(match["number"]), int(match["count"])) if match else (1, 1)


def build(payload: Payload, findings: Findings, where: Sequence[Path]) -> Payload:
    """Check the names of a payload and complete it with its fingerprint.

    `where[i]` is the path of the name of `files[i]` below `findings`. Findings: E0208, and E0207 for shards that
    llama.cpp would not find.
    """
    taken = _Taken()
    for file, path in zip(payload.files, where, strict=True):
        if problem := name_fault(file.name) or taken.claim(file.name):
            findings.add(
                "E0208",
                f"{file.name!r} {problem}",
                path,
                cure="use a unique relative path without `..`, backslashes or reserved names",
            )
    shards = tuple(file.name for file in payload.files if file.role == "shard")
    if shards and shards != shard_names(shards[0]):
        cure = "list the whole set in order, named <stem>-00001-of-0000N.gguf: llama.cpp finds the others by name"
        findings.add("E0207", f"{shards[0]!r} and the {len(shards) - 1} others are not one set", where[0], cure=cure)
    return msgspec.structs.replace(payload, fingerprint=fingerprint(payload))


class _Taken:
    """The names and folders of a payload so far, compared as a case-insensitive disk compares them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._folders: set[str] = set()

    def claim(self, name: str) -> str:
        """Take `name`; why that cannot be, or ""."""
        key = disk_key(name)
        if key in RESERVED_NAMES or key.endswith(PARTIAL_SUFFIX):
            return "is a name that the store uses itself"
        if key in self._names:
            other = self._names[key]
            return "is in the payload twice" if other == name else f"is {other!r} again where case does not count"
        parents = {key[:i] for i, char in enumerate(key) if char == "/"}
        if key in self._folders or not parents.isdisjoint(self._names):
            return "is both a file and a folder"
        self._names[key] = name
        self._folders |= parents
        return ""


def fingerprint(payload: Payload) -> str:
    """sha256 (hex) over repo, names, hashes and pinned chat template; "" when a file pins no hash.

    Compact JSON `{"repo":…,"files":[[name,sha256],…],"chatTemplate":…}` with the files in root collation order:
    equal to what the reference system records. Sizes, versions, revisions and the place of the files stay out: same
    names and hashes are the same bytes. The optional projector is in it, and so is each drafter, also one that is
    limited to other accelerators: a fingerprint names what the catalog describes, not what one host fetched (the
    reference leaves such a drafter out, so there moving an install to another backend looks like new content).
    """
    if any(not file.sha256 for file in payload.files):
        return ""
    files = sorted(payload.files, key=lambda file: collation_key(file.name))
    body: dict[str, object] = {"repo": payload.repo, "files": [[file.name, file.sha256.lower()] for file in files]}
    if payload.chat_template:
        body["chatTemplate"] = payload.chat_template
    return hashlib.sha256(msgspec.json.encode(body)).hexdigest()


def draft_applies(file: PayloadFile, accelerator: str) -> bool:
    """Whether a drafter is for this accelerator. Limited drafter, unknown accelerator: no."""
    return not file.backends or accelerator in file.backends


def applicable_files(payload: Payload, *, accelerator: str, vision: bool, drafter: bool) -> tuple[PayloadFile, ...]:
    """The files that must be on disk for one server, in payload order.

    The projector only with `vision`; a drafter only with `drafter` and where it applies to the accelerator.
    """
    wanted: dict[str, Callable[[PayloadFile], bool]] = {
        "mmproj": lambda _: vision,
        "draft": lambda file: drafter and draft_applies(file, accelerator),
    }
    return tuple(file for file in payload.files if file.role not in wanted or wanted[file.role](file))

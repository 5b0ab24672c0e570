"""The draft model that a server would use: which file it is, where it stands, and what is known of the pair."""

from __future__ import annotations

import msgspec

from gezelctl.catalog.servers import Resolved
from gezelctl.catalog.types import PayloadFile
from gezelctl.engines.llama_cpp.planner import LaunchQuestion
from gezelctl.engines.llama_cpp.spec import SpecPlan, resolve_spec
from gezelctl.engines.llama_cpp.specinput import spec_request
from gezelctl.engines.types import LaunchSpec
from gezelctl.gguf.types import GgufSummary
from gezelctl.observe.types import Observed
from gezelctl.plan.headers import companion_header
from gezelctl.plan.inputs import Locations
from gezelctl.plan.payloads import effective_files


class DraftFile(msgspec.Struct, frozen=True):
    """The first file of a draft model. `external` = not a file of the server's own payload."""

    sha256: str
    size_bytes: int
    gguf: GgufSummary | None
    external: bool


def draft_paths(item: Resolved, observed: Observed, place: Locations) -> dict[str, str]:
    """Absolute path of every draft model that can be named by an id; a named one counts before it is fetched."""
    found = observed.installed_weights
    if item.drafter and item.drafter.payload:
        return {**found, item.drafter.name: f"{place.draft_dir}/{item.drafter.files[0].name}"}
    return found


def with_drafter(question: LaunchQuestion, item: Resolved, observed: Observed) -> LaunchQuestion:
    """The question with all that is known of the drafter that it would use."""
    found = draft_file(resolve_spec(spec_request(question)).draft_model, question.files, item, observed)
    if found is None:
        return question
    weights = next((f for f in question.files if f.role in {"weights", "shard"}), None)
    digest = question.probe.digest if question.probe else ""
    return msgspec.structs.replace(
        question,
        draft_gguf=found.gguf,
        draft_bytes=found.size_bytes if found.external else 0,
        vocab=observed.vocabs.get(weights.sha256) if weights else None,
        draft_vocab=observed.vocabs.get(found.sha256),
        broken_drafter=observed.broken_drafters.get(f"{digest}/{found.sha256}", ""),
    )


def draft_file(
    draft_model: str, files: tuple[PayloadFile, ...], item: Resolved, observed: Observed
) -> DraftFile | None:
    """What a `spec.draftModel` value of a launch names: a file of the payload, or a path; None for "" and unknown."""
    own = next((f for f in files if f.role == "draft" and draft_model.rpartition("/")[2] == f.name), None)
    named = effective_files(item.drafter.files, observed) if item.drafter else ()
    if not draft_model:
        return None
    if named:
        summary = _named_header(named[0], observed)
        return DraftFile(named[0].sha256, sum(f.size_bytes for f in named), summary, external=True)
    if own is not None:
        return DraftFile(own.sha256, own.size_bytes, companion_header(own, observed), external=False)
    for payload in observed.installed:
        listed = payload.manifest.files
        if listed and f"{payload.path}/{listed[0].name}" == draft_model:
            size = sum(f.size_bytes for f in listed if f.role in {"weights", "shard"})
            return DraftFile(listed[0].sha256, size, payload.manifest.gguf, external=True)
    return None


def _named_header(file: PayloadFile, observed: Observed) -> GgufSummary | None:
    for payload in observed.installed:
        listed = payload.manifest.files
        if listed and file.sha256 and listed[0].sha256 == file.sha256 and payload.manifest.gguf:
            return payload.manifest.gguf
    return companion_header(file, observed)


def draft_digests(
    launch: LaunchSpec, files: tuple[PayloadFile, ...], item: Resolved, observed: Observed
) -> dict[str, str]:
    """Path → sha256 of the drafter of a launch when it is not a file of the payload, so that other bytes restart it."""
    path = next((str(v.value) for v in launch.values if v.name == "spec.draftModel"), "")
    found = draft_file(path, files, item, observed)
    return {path: found.sha256} if found and found.external and found.sha256 else {}


def launched_spec(launch: LaunchSpec) -> SpecPlan:
    """How a recorded launch speculates."""
    values = {v.name: v for v in launch.values if v.name.startswith("spec.")}
    types = values.get("spec.type")
    if types is None or types.value == "none":
        return SpecPlan()

    def number(name: str) -> int | None:
        value = values[name].value if name in values else None
        return value if isinstance(value, int) else None

    return SpecPlan(
        types=tuple(str(types.value).split(",")),
        draft_model=str(values["spec.draftModel"].value) if "spec.draftModel" in values else "",
        n_max=number("spec.nMax"),
        n_min=number("spec.nMin"),
        origin="server" if types.origin == "server" else "catalog",
    )

"""Speculative decoding: which algorithm and drafter a server gets (reference behaviour 9 and 19.4). Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

NEEDS_DRAFT = frozenset({"draft-simple", "draft-dflash", "draft-eagle3", "draft-dspark"})
"""Algorithms that cannot run without a separate draft GGUF; draft-mtp can use the target's own layers."""


class SpecRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`base` is the catalog's block with its `byBackend`; `operator_*` come from the server's `spec`.

    `operator_draft` and `sidecar` are absolute paths, "" when there is none; `unresolved_draft` is an operator's
    drafter id that is not installed. `drafts` maps catalog ids to paths. nextn counts are None when the header is
    not known.
    """

    backend: str
    base: dict[str, object] = {}
    operator_type: str | None = None
    operator_draft: str = ""
    unresolved_draft: str = ""
    operator_n_max: int | None = None
    operator_n_min: int | None = None
    sidecar: str = ""
    drafts: dict[str, str] = {}
    target_nextn: int | None = None
    sidecar_nextn: int | None = None


class Problem(msgspec.Struct, frozen=True):
    """Something that the engine would accept silently or die of. `field` is the models.yaml name."""

    summary: str
    cure: str
    field: str = "spec"
    code: str = "E0306"


class SpecPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`types` is empty for plain decoding. `draft_model` is a path or ""."""

    types: tuple[str, ...] = ()
    draft_model: str = ""
    n_max: int | None = None
    n_min: int | None = None
    origin: Literal["server", "catalog"] = "catalog"
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def needs_draft(types: tuple[str, ...]) -> bool:
    return any(name in NEEDS_DRAFT for name in types)


def resolve_spec(request: SpecRequest) -> SpecPlan:
    """Lay the operator over the catalog, find the drafter, fall back where the catalog's wish cannot be met."""
    spec, notes = _laid_over(request)
    forced = request.operator_type is not None
    types = _types(request.operator_type or spec.get("type"))
    draft = request.operator_draft or _drafter(request, spec, types)
    if needs_draft(types) and not draft and not forced:
        spec, types, note = _fallback(request)
        notes.append(note)
        draft = _drafter(request, spec, types)
    problems = _problems(request, types, draft)
    if "draft-mtp" in types and not _has_mtp(request, draft):
        types, draft, problem = _without_mtp(types, draft, forced=forced)
        notes.append("draft-mtp left out: the model has no MTP layers")
        problems += problem if forced else ()
    n_max = request.operator_n_max or _integer(spec, "nMax")
    n_min = request.operator_n_min if request.operator_n_min is not None else _integer(spec, "nMin")
    if n_max is not None and n_min is not None and n_min > n_max:
        problems += (Problem(f"spec.nMin {n_min} is above nMax {n_max}", "Lower spec.nMin.", "spec.nMin", "E0304"),)
    return SpecPlan(
        types=types,
        draft_model=draft if types else "",
        n_max=n_max if types else None,
        n_min=n_min if types else None,
        origin="server" if forced else "catalog",
        notes=tuple(notes),
        problems=problems,
    )


def _types(value: object) -> tuple[str, ...]:
    names = tuple(part.strip() for part in str(value or "none").split(","))
    return () if names == ("none",) else names


def _integer(spec: dict[str, object], name: str) -> int | None:
    value = spec.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _table(request: SpecRequest) -> dict[str, dict[str, object]]:
    table = request.base.get("byBackend")
    return table if isinstance(table, dict) else {}


def _without_table(request: SpecRequest) -> dict[str, object]:
    return {key: value for key, value in request.base.items() if key != "byBackend"}


def _laid_over(request: SpecRequest) -> tuple[dict[str, object], list[str]]:
    """The base with its overlay for the backend; a forced other algorithm sets the overlay aside (9.2)."""
    base = _without_table(request)
    overlay = _table(request).get(request.backend, {})
    stands = request.operator_type is None or overlay.get("type", request.operator_type) == request.operator_type
    if overlay and not stands:
        return base, [f"the catalog's overlay for {request.backend} is set aside: spec.type {request.operator_type}"]
    return {**base, **overlay}, []


def _drafter(request: SpecRequest, spec: dict[str, object], types: tuple[str, ...]) -> str:
    """The sidecar when it belongs to the algorithm (9.3), else the catalog's drafter id when it is installed."""
    if not types or request.unresolved_draft:
        return ""
    if request.sidecar and _sidecar_loads(request, types):
        return request.sidecar
    return request.drafts.get(str(spec.get("draftModelId", "")), "") if needs_draft(types) else ""


def _sidecar_loads(request: SpecRequest, types: tuple[str, ...]) -> bool:
    if needs_draft(types):
        return True
    return "draft-mtp" in types and not _target_has_mtp(request) and not _table(request)


def _target_has_mtp(request: SpecRequest) -> bool:
    """By the header; before it is known, by the catalog: its note, unless it brings a separate assistant."""
    if request.target_nextn is not None:
        return request.target_nextn > 0
    return request.base.get("mtp") is True and not request.sidecar


def _has_mtp(request: SpecRequest, draft: str) -> bool:
    """An unknown header counts as having them: the catalog or the operator vouches until it is read."""
    if request.target_nextn is None or request.target_nextn > 0:
        return True
    return bool(draft) and (request.sidecar_nextn is None or request.sidecar_nextn > 0)


def _fallback(request: SpecRequest) -> tuple[dict[str, object], tuple[str, ...], str]:
    """The base spec when only the overlay needs the missing drafter, else plain decoding (9.2, step 7)."""
    base = _without_table(request)
    types = _types(base.get("type"))
    if _table(request).get(request.backend) and types and not needs_draft(types):
        return base, types, f"the drafter for {request.backend} is not there; using the catalog's {','.join(types)}"
    return {}, (), "speculation left out: its draft model is not there"


def _without_mtp(
    types: tuple[str, ...], draft: str, *, forced: bool
) -> tuple[tuple[str, ...], str, tuple[Problem, ...]]:
    rest = tuple(name for name in types if name != "draft-mtp")
    cure = "Remove spec, or use a model whose GGUF has nextn layers."
    problem = Problem("spec.type draft-mtp needs MTP (nextn) layers, which the model does not have", cure, "spec.type")
    return rest, draft if needs_draft(rest) else "", (problem,) if forced else ()


def _problems(request: SpecRequest, types: tuple[str, ...], draft: str) -> tuple[Problem, ...]:
    """What llama-server takes without a word and then does not do, or dies of."""
    found = []
    drafting = [name for name in types if name.startswith("draft-")]
    if "none" in types:
        found.append(Problem("spec.type mixes none with other types", "Remove none from the list.", "spec.type"))
    if len(drafting) > 1:
        text = f"spec.type combines {' and '.join(drafting)}; the engine runs one drafter"
        found.append(Problem(text, "Keep one draft-… type; ngram types may be added.", "spec.type"))
    if request.unresolved_draft:
        text = f"draft model {request.unresolved_draft} is neither a path nor an installed catalog model"
        found.append(Problem(text, "Declare a server for it, or give the path of a GGUF.", "spec.draftModel"))
    elif needs_draft(types) and not draft:
        text = f"spec.type {','.join(types)} needs a draft model and there is none"
        found.append(Problem(text, "Set spec.draftModel, or choose another spec.type.", "spec.type"))
    if request.operator_draft and not drafting:
        text = f"spec.draftModel is not used by spec.type {','.join(types) or 'none'}, but the engine would load it"
        found.append(Problem(text, "Remove spec.draftModel, or set a draft-… type.", "spec.draftModel"))
    return tuple(found)

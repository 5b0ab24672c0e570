"""The load-time part of `tuning`: engine options, the speculative block, the thinking budget."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gezelctl.catalog.blocks import Block, Count, decode, report_invalid, report_unknown
from gezelctl.catalog.findings import Findings
from gezelctl.config.settings import LLAMA_CPP_SETTINGS


class SpecBlock(Block, frozen=True, kw_only=True):
    """`tuning.engine.llamaCpp.spec`, and each overlay in its `byBackend`."""

    type: Annotated[str, Meta(min_length=1)] | None = None
    mtp: bool | None = None
    draft_model_id: Annotated[str, Meta(min_length=1)] | None = None
    n_max: Count | None = None
    n_min: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    by_backend: dict[str, Any] | None = None


class Tuning(msgspec.Struct, frozen=True):
    """The load-time part of `tuning`: engine options as written, the speculative block, the thinking budget."""

    engine_options: dict[str, bool | int | float | str] = {}
    spec: dict[str, object] = {}
    thinking_budget: int = 0


_OPTION_TYPES: dict[str, Any] = {setting.name: setting.type for setting in LLAMA_CPP_SETTINGS} | {
    "contextSize": Count,  # tokens a turn; the planner's target and its ceiling of growth, no flag of its own
    "chatTemplate": Annotated[str, Meta(min_length=1)],
}


def tuning(value: object, findings: Findings) -> Tuning:
    """The load-time part of `tuning`. What a client sends with each request (sampling, …) is not ours to read."""
    if value is None:
        return Tuning()
    if not isinstance(value, dict):
        findings.add("E0203", "expected a mapping", cure="correct the value")
        return Tuning()
    options: dict[str, bool | int | float | str] = {}
    spec: dict[str, object] = {}
    engine = _mapping(value, ("engine", "llamaCpp"), findings)
    view = findings.under("engine", "llamaCpp")
    report_unknown(engine, (*_OPTION_TYPES, "spec"), view)
    for name, kind in _OPTION_TYPES.items():
        if name in engine and (option := _option(engine[name], name, kind, view)) is not None:
            options[name] = option
    if "spec" in engine:
        spec = _spec(engine["spec"], view.under("spec"))
    return Tuning(options, spec, _thinking_budget(value, findings))


def _option(value: object, name: str, kind: Any, findings: Findings) -> bool | int | float | str | None:
    try:
        option: bool | int | float | str = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        report_invalid(error, findings.under(name))
        return None
    return option


def _spec(value: object, findings: Findings) -> dict[str, object]:
    block = decode(value, SpecBlock, findings)
    if block is None:
        return {}
    clean: dict[str, object] = msgspec.to_builtins(block)
    overlays: dict[str, object] = {}
    for backend, overlay in (block.by_backend or {}).items():
        view = findings.under("byBackend", backend)
        decoded = decode(overlay, SpecBlock, view)
        if decoded is not None and decoded.by_backend is not None:
            view.add("E0203", "an overlay has no table of its own", ("byBackend",), cure="remove the inner byBackend")
        elif decoded is not None:
            overlays[backend] = _present(msgspec.to_builtins(decoded))
    if block.by_backend is not None:
        clean["byBackend"] = overlays
    return _present(clean)


def _present(values: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None}


def _thinking_budget(value: object, findings: Findings) -> int:
    """The budget of the coding profile, else the model's own; 0 when neither is set."""
    for path in (("profiles", "thinking-coding", "reasoning"), ("reasoning",)):
        reasoning = _mapping(value, path, findings)
        if "thinkingBudget" in reasoning:
            try:
                return msgspec.convert(reasoning["thinkingBudget"], Count)
            except msgspec.ValidationError as error:
                report_invalid(error, findings.under(*path, "thinkingBudget"))
    return 0


def _mapping(value: object, path: tuple[str, ...], findings: Findings) -> dict[str, Any]:
    """The mapping at `path`, {} when absent; E0203 when something on the way is not a mapping."""
    at = value
    for depth in range(len(path) + 1):
        if at is None:
            return {}
        if not isinstance(at, dict):
            findings.add("E0203", "expected a mapping", path[:depth], cure="correct the value")
            return {}
        if depth < len(path):
            at = at.get(path[depth])
    return at if isinstance(at, dict) else {}

"""The plan as data: JSON, YAML, names; the digest that reviewers quote; the seal of a saved plan (ux contract 3.7).

Minor versions only add keys: a reader ignores keys that it does not know and refuses another major.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from gezelctl.config.redact import public_url
from gezelctl.engines.types import LaunchSpec
from gezelctl.errors import GezelctlError, RefusedError, StalePlan, UsageFault
from gezelctl.plan.types import FORMAT_VERSION, Change, Plan

_PLAN_AGAIN = "Make it again with gezelctl plan --out FILE."


def plan_json(plan: Plan, pretty: bool = True) -> str:
    """The plan as JSON, keys in the order of the types and mappings sorted; ends with a newline."""
    data = encode_json(_public(plan))
    return (msgspec.json.format(data, indent=2) if pretty else data).decode() + "\n"


def plan_yaml(plan: Plan) -> str:
    """The same document as YAML."""
    import yaml

    return yaml.safe_dump(
        msgspec.json.decode(encode_json(_public(plan))), sort_keys=False, allow_unicode=True, width=120
    )


def _public(plan: Plan) -> Plan:
    """Without what signed addresses carry: a saved plan is carried out from models.yaml, so nothing is lost."""
    return replace(plan, changes=tuple(_without_secrets(c) if c.files else c for c in plan.changes))


def _without_secrets(change: Change) -> Change:
    files = tuple(
        replace(a, file=replace(a.file, origin=replace(a.file.origin, url=public_url(a.file.origin.url))))
        if a.file.origin.url
        else a
        for a in change.files
    )
    return replace(change, files=files)


def plan_names(plan: Plan, *, show_unchanged: bool = False) -> str:
    """One address a line, in the plan's order, without no-ops."""
    return "".join(f"{c.address}\n" for c in plan.changes if show_unchanged or c.action != "noop")


def plan_from_json(text: str | bytes, *, name: str = "the plan") -> Plan:
    """Reads `plan_json`. `name` is what messages call the file.

    Raises UsageFault for text that is not JSON (PLAN_BROKEN), not a plan (NOT_A_PLAN) or has wrong types
    (PLAN_BROKEN), StalePlan for another major format version (PLAN_OTHER_MAJOR).
    """
    head = _head(text, name)
    if head.get("kind") != "Plan":
        kind = f" but a {head['kind']}" if isinstance(head.get("kind"), str) else ""
        raise UsageFault(f"{name} is not a gezelctl plan{kind}", cure=_PLAN_AGAIN, code="NOT_A_PLAN")
    version = head.get("formatVersion")
    if not isinstance(version, str) or version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise StalePlan(
            f"{name} has format version {version}; this gezelctl reads {FORMAT_VERSION}",
            cure="Make the plan and apply it with the same gezelctl.",
            code="PLAN_OTHER_MAJOR",
        )
    try:
        return msgspec.json.decode(text, type=Plan)
    except msgspec.ValidationError as error:
        raise _broken(name, error) from error


def _head(text: str | bytes, name: str) -> Mapping[str, object]:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _broken(name, error) from error
    except RecursionError as error:
        raise _broken(name, ValueError("nested too deeply")) from error
    if not isinstance(document, dict):
        raise UsageFault(f"{name} is not a gezelctl plan", cure=_PLAN_AGAIN, code="NOT_A_PLAN")
    return document


def _broken(name: str, error: Exception) -> GezelctlError:
    return UsageFault(f"{name} is broken: {error}", cure=_PLAN_AGAIN, code="PLAN_BROKEN")


def seal(plan: Plan) -> Plan:
    """The plan with its checksum, ready to be saved."""
    return replace(plan, checksum=_checksum(plan))


def verify(plan: Plan) -> None:
    """Raises RefusedError for a plan that was never saved for apply, StalePlan when it was changed since."""
    if not plan.checksum:
        raise RefusedError(
            "this plan has no checksum, so it was printed, not saved for apply", cure=_PLAN_AGAIN, code="PLAN_NOT_SAVED"
        )
    if plan.checksum != _checksum(plan):
        raise StalePlan("the saved plan was changed after it was saved", cure=_PLAN_AGAIN, code="PLAN_CHECKSUM")


def _checksum(plan: Plan) -> str:
    return _sha256(encode_json(replace(_public(plan), checksum="")))


def plan_digest(changes: Iterable[Change]) -> str:
    """ "sha256:…" over what apply would do, so that a reviewed plan is known again on the host.

    In: addresses, actions, the fields' new values, launches (argv, environment names, files, engine build), payload
    file digests. Out: times, ids, serials, free space, downtime, memory, places in files, how a file gets here, and
    what apply does not act on (no-ops, kept things). The order of `changes` does not matter.
    """
    acting = [c for c in changes if c.action not in {"noop", "keep"}]
    normal = [_normal(c) for c in sorted(acting, key=lambda c: (c.address, c.action))]
    return _sha256(encode_json(normal))


def _normal(change: Change) -> dict[str, object]:
    fields = sorted(change.fields, key=lambda f: f.path)
    return {
        "address": change.address,
        "action": change.action,
        "fields": [(f.path, f.reason if f.sensitive else f.after) for f in fields],
        "files": sorted((a.file.name, a.file.sha256) for a in change.files),
        "launch": _normal_launch(change.launch) if change.launch else None,
    }


def _normal_launch(launch: LaunchSpec) -> object:
    """Named values are left out: argv says the same, and a value's place moves with every edit above it."""
    return msgspec.to_builtins(replace(launch, values=()))


def _sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def encode_json(value: object) -> bytes:
    """Compact and stable: struct fields in the order of their types, mapping keys sorted.

    Names on disk and of processes may hold bytes that are not UTF-8, which JSON cannot say: those are escaped.
    """
    try:
        return msgspec.json.encode(value, order="deterministic")
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(msgspec.to_builtins(value, order="deterministic")))


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list | tuple) else value

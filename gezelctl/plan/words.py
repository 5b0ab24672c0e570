"""What a plan says in words, once, for the text and the markdown view: phrases, values and the five answers.

The five questions that every plan answers, also when the answer is "nothing" or "none": what restarts, for how long,
how much is downloaded, does it fit in memory and on disk, is anything deleted.

A capacity's `resource` reads `<kind>` or `<kind>:<name>`: `memory:host`, `memory:<device>`, `disk`, `port:8081`.
`before` and `after` are what is used, `limit` is what there is (for memory: what may be used); a port has limit 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from gezelctl.catalog.types import Origin
from gezelctl.config.redact import mask_tokens, public_url
from gezelctl.engines.types import Scalar
from gezelctl.plan.types import Capacity, Change, Field, FileAction, Plan
from gezelctl.plan.units import count, format_bytes, format_duration, format_pair, format_time

Shown = Callable[[str], str]
"""Makes foreign text safe for one view (`printable`, markdown escaping)."""

_BARE = re.compile(r"[\w./:@+,=%~-]+\Z")
_DIGEST_SHOWN = 12
_NO_LIMIT = 1 << 60
"""A limit of an exbibyte and more is none: `defaults.memoryMib` below 1 GiB turns the limit off."""


def value_text(value: Scalar | None) -> str:
    """A setting's value as models.yaml would hold it; text that is not one plain word is quoted as JSON."""
    if value is None:
        return "(not set)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return str(value)
    text = mask_tokens(value)
    if _BARE.match(text):
        return text
    import json

    return json.dumps(text, ensure_ascii=False)


def secret_text(field: Field, *, new: bool) -> str:
    """ "(secret, set)" and so on: never a value, a length or a digest (ux contract 3.12)."""
    word = {"added": "set", "set": "set", "removed": "removed", "unchanged": "unchanged"}.get(field.reason, "changed")
    return f"(secret, {'set' if new and word == 'changed' else word})"


def effect_text(field: Field) -> str:
    """What changing this setting does to a running server."""
    return {"live": "in place", "restart": "needs a restart", "replace": "is replaced"}[field.effect]


def origin_text(field: Field) -> str:
    """ "models.yaml:19", or the layer that decided when no file did."""
    return field.place.short if field.place else field.origin


def source_text(origin: Origin) -> str:
    """Where a file comes from, without credentials: user part, query and fragment of a URL are dropped."""
    if origin.kind == "path":
        return origin.path
    if origin.kind == "huggingface":
        return f"huggingface {origin.repo}@{origin.revision}"
    return public_url(origin.url)


def file_source(action: FileAction) -> str:
    """Where this file's bytes will come from."""
    return action.source if action.how in {"link", "copy"} and action.source else source_text(action.file.origin)


def shown_fields(change: Change) -> tuple[Field, ...]:
    """What differs; for a new server, which differs in everything, what it is launched with."""
    launch = change.launch
    if change.fields or change.action != "create" or launch is None:
        return change.fields
    port = Field(path="port", after=launch.port, origin="server")
    values = (Field(path=v.name, after=v.value, origin=v.origin, place=v.place, reason=v.reason) for v in launch.values)
    secrets = (Field(path=f"secret.{s.name}", sensitive=True, reason="added") for s in launch.secret_env)
    return (port, *values, *secrets)


def gap_text(change: Change) -> str:
    """The expected time without service."""
    if change.downtime_s is None:
        return "for an unknown time without service"
    return f"about {format_duration(change.downtime_s)} without service" if change.downtime_s else "no gap in service"


def action_text(change: Change) -> str:
    """The headline of one change, without foreign text."""
    if change.action == "fetch":
        size = format_bytes(change.download_bytes) if change.download_bytes else "of a size that is not known"
        return ", ".join([f"download {size}", *_local([change], "hard-link {}", "copy {}")])
    if change.action == "link":
        known = ", ".join(_local([change], "hard-link {}", "copy {}"))
        return f"{known} that this host already has" if known else "link files of a size that is not known"
    return {
        "create": "create",
        "update": "change in place, no restart",
        "restart": f"restart, {gap_text(change)}",
        "delete": "stop and remove",
        "keep": "",
        "noop": "unchanged",
        "blocked": "blocked",
    }[change.action]


def _local(changes: Sequence[Change], link: str, copy: str) -> list[str]:
    """What this host already has, as far as there is any, in two phrases with {} for the bytes."""
    copied = sum(a.size_bytes for c in changes for a in c.files if a.how == "copy")
    linked = sum(c.link_bytes for c in changes) - copied
    return [text.format(format_bytes(size)) for text, size in ((link, linked), (copy, copied)) if size > 0]


def by_action(plan: Plan, *actions: str) -> tuple[Change, ...]:
    """The changes of these actions, in the plan's order."""
    return tuple(c for c in plan.changes if c.action in actions)


def blocked_by(plan: Plan) -> dict[str, str]:
    """Of each server that is blocked by its engine or payload: that address, where cause and cure are told."""
    stopped = {c.address for c in plan.changes if c.action == "blocked"}
    heads = {c.address: c.cause.partition(" is blocked: ")[0] for c in plan.changes if c.action == "blocked"}
    return {address: head for address, head in heads.items() if head in stopped}


def hindrances_text(plan: Plan) -> str:
    """What keeps a plan from being applied, counted: "2 blocked, 1 error, memory does not fit"."""
    errors = sum(d.severity == "error" for d in plan.diagnostics)
    parts = [f"{plan.summary.blocked} blocked"] if plan.summary.blocked else []
    parts += [count(errors, "error")] if errors else []
    kinds = dict.fromkeys(_kind(c)[0] for c in misfits(plan.capacity))
    parts += [f"{kind} does not fit" for kind in kinds]
    return ", ".join(parts)


def restarts_answer(plan: Plan, show: Shown) -> str:
    """Which servers restart and for how long each is away; they restart one after another."""
    restarts = by_action(plan, "restart")
    if not restarts:
        return "nothing; no gap in service."
    items = ", ".join(f"{show(c.address)} ({_gap_short(c)})" for c in restarts)
    known = sum(c.downtime_s or 0 for c in restarts)
    if len(restarts) == 1:
        return f"{items}."
    unknown = any(c.downtime_s is None for c in restarts)
    if not known:
        return f"{items}; one after another."
    return f"{items}; {'at least' if unknown else 'about'} {format_duration(known)} in all, one after another."


def _gap_short(change: Change) -> str:
    return "unknown time" if change.downtime_s is None else f"about {format_duration(change.downtime_s)}"


def download_answer(plan: Plan) -> str:
    """How many bytes come over the network, and how many do not have to."""
    files = sum(a.how == "download" for c in plan.changes if c.action in {"fetch", "link"} for a in c.files)
    size = plan.summary.download_bytes
    text = "nothing"
    if size or files:
        text = format_bytes(size) if size else "an unknown number of bytes"
        text += f" in {count(files, 'file')}" if files else ""
    engines = [c for c in by_action(plan, "fetch") if c.address.startswith("engine.") and not c.download_bytes]
    if engines:
        archives = f"{count(len(engines), 'engine archive')} of a size that is not known"
        text = archives if text == "nothing" else f"{text}, and {archives}"
    return f"{'; '.join([text, *_local(plan.changes, '{} hard-linked from this host', '{} copied on this host')])}."


def deletes_answer(plan: Plan, show: Shown) -> str:
    """What stops for good. Payload files are never deleted by a plan."""
    deleted = by_action(plan, "delete")
    if not deleted:
        return "nothing."
    return f"{', '.join(show(c.address) for c in deleted)}; payload files stay."


def fits_answer(plan: Plan, show: Shown) -> str:
    """Memory, disk and ports. "yes" only when memory was planned and disk too or not needed; what was not is said."""
    kinds: dict[str, list[Capacity]] = {}
    for capacity in plan.capacity:
        kinds.setdefault(_kind(capacity)[0], []).append(capacity)
    complete = ("memory" in kinds or _starts_nothing(plan)) and ("disk" in kinds or not _writes(plan))
    kinds.setdefault("memory", [])
    kinds.setdefault("disk", [])
    parts = [_kind_text(kind, kinds[kind], plan, show) for kind in sorted(kinds, key=lambda k: (k == "port", k))]
    verdict = "NO: " if misfits(plan.capacity) else "yes: " if complete else ""
    return f"{verdict}{'; '.join(parts)}."


def _kind_text(kind: str, capacities: list[Capacity], plan: Plan, show: Shown) -> str:
    if kind == "port":
        return _ports_text(capacities, show)
    if kind == "memory" and capacities:
        return ", ".join(
            capacity_text(c, show) if _is_ram(c) else f"memory {capacity_text(c, show)}" for c in capacities
        )
    if capacities:
        name = kind if kind == "disk" else show(kind)
        return f"{name} {', '.join(capacity_text(c, show) for c in capacities)}"
    if kind == "memory":
        return "nothing starts" if _starts_nothing(plan) else "memory is not planned"
    return "disk is not known" if _writes(plan) else "nothing is written to disk"


def _is_ram(capacity: Capacity) -> bool:
    return capacity.resource == "memory:ram"


def _starts_nothing(plan: Plan) -> bool:
    return not by_action(plan, "create", "restart", "update", "blocked")


def _writes(plan: Plan) -> bool:
    copies = any(a.how == "copy" for c in plan.changes for a in c.files)
    return bool(plan.summary.download_bytes or copies or by_action(plan, "fetch"))


def misfits(capacities: Iterable[Capacity]) -> tuple[Capacity, ...]:
    """What does not fit."""
    return tuple(c for c in capacities if not c.fits)


def capacity_text(capacity: Capacity, show: Shown) -> str:
    """One resource without its kind: "GPU 0 21.3 of 24.0 GiB (now 18.9 GiB, estimate)", "RAM 3.0 of 16.0 GiB"."""
    name = _kind(capacity)[1]
    limited = capacity.limit < _NO_LIMIT
    numbers = format_pair(capacity.after, capacity.limit) if limited else f"{format_bytes(capacity.after)}, no limit"
    notes = [f"now {format_bytes(capacity.before)}"] if capacity.before != capacity.after else []
    notes += ["estimate"] if capacity.basis == "estimate" else []
    notes += [] if capacity.fits else ["DOES NOT FIT"]
    shown = "RAM" if _is_ram(capacity) else show(name)
    text = f"{shown} {numbers}" if name else numbers
    return f"{text} ({', '.join(notes)})" if notes else text


def _kind(capacity: Capacity) -> tuple[str, str]:
    kind, _, name = capacity.resource.partition(":")
    return kind, name


def _ports_text(ports: list[Capacity], show: Shown) -> str:
    free = [show(_kind(c)[1]) for c in ports if c.fits]
    taken = [show(_kind(c)[1]) for c in ports if not c.fits]
    texts = [f"port{'s' if len(free) > 1 else ''} {', '.join(free)} free or ours"] if free else []
    texts += [f"port{'s' if len(taken) > 1 else ''} {', '.join(taken)} TAKEN"] if taken else []
    return "; ".join(texts)


def counts_text(plan: Plan) -> str:
    """The counts of the summary; creations, restarts and deletions are always named."""
    s = plan.summary
    parts = [f"{s.create} to create", f"{s.update} to change in place", f"{s.restart} to restart"]
    parts += [f"{s.delete} to delete"]
    parts += [f"{s.fetch} to download"] if s.fetch else []
    parts += [f"{s.link} to link"] if s.link else []
    parts += [f"{s.kept} kept"] if s.kept else []
    parts += [f"{s.blocked} blocked"] if s.blocked else []
    parts += [f"{s.noop} unchanged"] if s.noop else []
    return ", ".join(parts)


def against_text(plan: Plan, show: Shown) -> str:
    """What the plan was compared with, and how old that is."""
    against = plan.against
    if against.kind == "live":
        return f"this host, seen {show(format_time(against.seen))}"
    age = f", {format_duration(against.age_s)} old" if against.age_s is not None else ""
    return f"snapshot {show(against.path)} of {show(format_time(against.seen))}{age}"


def sources_text(plan: Plan, show: Shown) -> str:
    """The configuration files with the head of their sha256."""
    named = [f"{show(s.path)} (sha256 {show(s.sha256[:_DIGEST_SHOWN])})" for s in plan.source]
    return ", ".join(named) if named else "no file"


def narrowed_text(plan: Plan, show: Shown) -> str:
    """The one notice of a plan that does not cover everything; "" when it does."""
    if plan.complete:
        return ""
    parts = [f"only {', '.join(map(show, plan.only))}"] if plan.only else []
    parts += [f"without {', '.join(map(show, plan.excluded))}"] if plan.excluded else []
    narrowed = " ".join(parts) or "not everything could be compared"
    return f"Partial plan: {narrowed}. Nothing is pruned, and it does not count as the applied revision."

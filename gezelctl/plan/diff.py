"""Two launch specs, field by field. A hash never decides: only a named difference makes a change (ux contract 1.5)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from gezelctl.engines.types import LaunchSpec, Scalar, Value
from gezelctl.plan.types import Field


def diff_launch(
    old: LaunchSpec, new: LaunchSpec, *, old_macs: Mapping[str, str], new_macs: Mapping[str, str]
) -> tuple[Field, ...]:
    """What differs between the recorded launch and the wanted one, sorted by field name.

    `*_macs` map secret variables to their HMAC on this host. Argv is compared only when no named value explains a
    difference, so that a change is told in the words of models.yaml and never twice.
    """
    fields = [*_values(old.values, new.values), *_plain(old, new), *_secrets(old_macs, new_macs)]
    fields += _mapping("env", old.env, new.env)
    fields += _mapping("payload", old.payload, new.payload, shorten=True)
    restarts = [f for f in fields if f.effect == "restart"]
    if not restarts:
        fields += _residue(old, new)
    return tuple(sorted(fields, key=lambda f: f.path))


def _values(old: Iterable[Value], new: Iterable[Value]) -> list[Field]:
    before = {v.name: v for v in old}
    after = {v.name: v for v in new}
    fields = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was and now and was.value == now.value and type(was.value) is type(now.value):
            continue
        carrier = now or was
        if carrier is None:
            continue
        fields.append(
            Field(
                path=name,
                before=was.value if was else None,
                after=now.value if now else None,
                effect=carrier.effect,
                origin=now.origin if now else "",
                place=now.place if now else None,
                reason=now.reason if now else "no longer set",
            )
        )
    return fields


def _plain(old: LaunchSpec, new: LaunchSpec) -> list[Field]:
    pairs: tuple[tuple[str, Scalar, Scalar], ...] = (
        ("engine", old.engine, new.engine),
        ("program", old.program, new.program),
        ("engineBuild", old.engine_digest, new.engine_digest),
        ("host", old.host, new.host),
        ("port", old.port, new.port),
    )
    fields = [Field(path=name, before=a, after=b) for name, a, b in pairs if a != b]
    if old.start_timeout_s != new.start_timeout_s:
        fields.append(Field(path="startTimeoutS", before=old.start_timeout_s, after=new.start_timeout_s, effect="live"))
    if old.backend != new.backend:
        fields.append(Field(path="backend", before=old.backend, after=new.backend, effect="live"))
    return fields


def _mapping(kind: str, old: Mapping[str, str], new: Mapping[str, str], *, shorten: bool = False) -> list[Field]:
    def shown(text: str | None) -> str | None:
        if text is None or not shorten:
            return text
        return text[:12] or "unknown"

    return [
        Field(path=f"{kind}.{name}", before=shown(old.get(name)), after=shown(new.get(name)))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _secrets(old: Mapping[str, str], new: Mapping[str, str]) -> list[Field]:
    fields = []
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name), new.get(name)
        if was == now:
            continue
        word = "added" if was is None else "removed" if now is None else "changed"
        fields.append(Field(path=f"secret.{name}", sensitive=True, reason=word))
    return fields


def _residue(old: LaunchSpec, new: LaunchSpec) -> list[Field]:
    fields = []
    if old.argv != new.argv:
        before, after = _only(old.argv, new.argv), _only(new.argv, old.argv)
        fields.append(
            Field(path="argv", before=shlex.join(before), after=shlex.join(after), reason="rendered differently")
        )
    contents = {f.path: f.content for f in old.config_files}
    fields += [
        Field(path=f"config.{f.path.rpartition('/')[2]}", reason="content differs")
        for f in new.config_files
        if contents.get(f.path) != f.content
    ]
    return fields


def _only(mine: tuple[str, ...], other: tuple[str, ...]) -> list[str]:
    """The words of `mine` between the shared head and the shared tail, so that a field shows the change alone."""
    start = 0
    while start < min(len(mine), len(other)) and mine[start] == other[start]:
        start += 1
    end = 0
    while end < min(len(mine), len(other)) - start and mine[-1 - end] == other[-1 - end]:
        end += 1
    return list(mine[start : len(mine) - end])

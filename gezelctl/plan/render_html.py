"""The plan as one HTML page for a report or a build artefact; the template's text is given, so this stays pure."""

from __future__ import annotations

import shlex

import msgspec

from gezelctl.plan import words
from gezelctl.plan.render_markdown import verdict
from gezelctl.plan.types import SYMBOLS, Change, Field, Plan
from gezelctl.plan.units import format_time


class _FieldRow(msgspec.Struct, frozen=True):
    path: str
    text: str
    origin: str


class _Row(msgspec.Struct, frozen=True):
    symbol: str
    address: str
    what: str
    cause: str
    blocked: bool
    open: bool
    fields: tuple[_FieldRow, ...]
    command: str


def render_html(plan: Plan, template: str) -> str:
    """`template` is Jinja2 and sees `plan`, `verdict`, `against`, `answers`, `rows`; every value is escaped."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(template).render(
        plan=plan,
        verdict=verdict(plan),
        against="the host itself" if plan.against.kind == "live" else f"a snapshot of {format_time(plan.against.seen)}",
        answers=(
            ("Restarts", words.restarts_answer(plan, str)),
            ("Download", words.download_answer(plan)),
            ("Fits", words.fits_answer(plan, str)),
            ("Deletes", words.deletes_answer(plan, str)),
        ),
        rows=[_row(c) for c in plan.changes if c.action != "noop"],
    )


def _row(change: Change) -> _Row:
    launch = change.launch
    what = words.action_text(change) or "kept"
    return _Row(
        symbol=SYMBOLS[change.action],
        address=change.address,
        what=what,
        cause="; cure: ".join(filter(None, (change.cause, change.cure))),
        blocked=change.action == "blocked",
        open=change.action in {"restart", "update"},
        fields=tuple(_field(f) for f in words.shown_fields(change)),
        command=shlex.join((launch.program, *launch.argv)) if launch else "",
    )


def _field(field: Field) -> _FieldRow:
    if field.sensitive:
        return _FieldRow(field.path, words.secret_text(field, new=False), "")
    before, after = words.value_text(field.before), words.value_text(field.after)
    text = after if field.before is None else f"{before} → {after}"
    return _FieldRow(field.path, text, " ".join(filter(None, (words.origin_text(field), field.reason))))

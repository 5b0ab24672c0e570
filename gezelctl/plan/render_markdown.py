"""The plan as a pull-request comment (ux contract 3.5).

The first line is a hidden marker that names stack and host, so that CI keeps one comment for each. Nothing in it
depends on the time of a live look, so an unchanged plan is an unchanged comment.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import msgspec

from gezelctl.config.diagnostics import Diagnostic
from gezelctl.config.redact import mask_tokens
from gezelctl.plan import words
from gezelctl.plan.markdown import code, comment, fence, prose
from gezelctl.plan.types import SYMBOLS, Change, Field, Plan
from gezelctl.plan.units import count, format_bytes, format_duration, format_time

DEFAULT_MAX_CHARS = 60_000
"""GitHub refuses comments beyond 65,536 characters; the rest is room for what CI adds around it."""
_SHORT_VALUE = 60
_SHORT_FIELDS = 3


class _Detail(msgspec.Struct, frozen=True):
    """One change told field by field; `text` is a whole block."""

    address: str
    text: str


class _Page(msgspec.Struct, frozen=True):
    """The parts of a comment and how much of them is left out."""

    head: tuple[str, ...]
    rows: tuple[str, ...]
    tail: tuple[str, ...]
    details: tuple[_Detail, ...]
    rows_cut: int = 0
    details_cut: int = 0

    def text(self) -> str:
        parts = list(self.head)
        kept = self.rows[: len(self.rows) - self.rows_cut]
        if kept:
            parts.append("\n".join(["| | address | what | away | download |", "|---|---|---|---|---|", *kept]))
        parts += self.tail
        if self.rows_cut or self.details_cut:
            parts.append(_cut_note(self.rows_cut, self.details_cut))
        if self.details:
            body = "\n\n".join(d.text for d in self.details)
            parts.append(f"<details><summary>Settings, field by field</summary>\n\n{body}\n\n</details>")
        return "\n\n".join(parts) + "\n"


def render_markdown(plan: Plan, *, max_chars: int = DEFAULT_MAX_CHARS) -> str:
    """The comment, at most `max_chars` characters, ending with a newline.

    When it is too long, details go first, the largest first; then rows from the end of the table; what went is said.
    The head and the answers always stay, so a limit below their length is not kept.
    """
    page = _Page(
        head=tuple(_head(plan)),
        rows=tuple(_rows(plan)),
        tail=tuple(_answers(plan)),
        details=tuple(d for d in map(_detail, plan.changes) if d),
    )
    for victim in sorted(page.details, key=lambda d: (-len(d.text), d.address)):
        if len(page.text()) <= max_chars:
            break
        left = tuple(d for d in page.details if d is not victim)
        page = msgspec.structs.replace(page, details=left, details_cut=page.details_cut + 1)
    return _cut_rows(page, max_chars).text()


def _cut_rows(page: _Page, max_chars: int) -> _Page:
    """The page with as few rows cut as the limit allows, by bisection."""
    low, high = 0, len(page.rows)
    while low < high:
        middle = (low + high) // 2
        if len(msgspec.structs.replace(page, rows_cut=middle).text()) <= max_chars:
            high = middle
        else:
            low = middle + 1
    return msgspec.structs.replace(page, rows_cut=low)


def _cut_note(rows: int, details: int) -> str:
    texts = [f"{count(rows, 'row')} of the table"] if rows else []
    texts += [f"the details of {count(details, 'change')}"] if details else []
    return f"**Cut for length:** {' and '.join(texts)}. The JSON plan holds everything."


def _head(plan: Plan) -> list[str]:
    marker = f"<!-- gezelctl:plan stack={comment(plan.stack)} host={comment(plan.host)} -->"
    lines = [f"{marker}\n### {prose(plan.host)}: {verdict(plan)}"]
    lines.append(f"Compared with {_against(plan)}. {_sources(plan)} Plan digest {code(plan.digest)}.")
    narrowed = words.narrowed_text(plan, code)
    return [*lines, narrowed] if narrowed else lines


def _against(plan: Plan) -> str:
    if plan.against.kind == "live":
        return "the host itself"
    return f"the host's snapshot of {prose(format_time(plan.against.seen))}"


def _sources(plan: Plan) -> str:
    named = ", ".join(f"{code(s.path)} at {code(s.sha256[:12])}" for s in plan.source)
    return f"Config {named}." if named else "No config file."


def verdict(plan: Plan) -> str:
    """The outcome in a few words; deletions are always spoken of, what blocks the plan comes first."""
    s = plan.summary
    parts = [f"{s.blocked} blocked"] if s.blocked else []
    parts += ["does not fit"] if words.misfits(plan.capacity) else []
    errors = sum(d.severity == "error" for d in plan.diagnostics)
    parts += [count(errors, "error")] if errors else []
    if not s.changes and not parts:
        return "no changes"
    parts += [count(s.restart, "restart")] if s.restart else []
    creates = sum(c.action == "create" and c.address.startswith("server.") for c in plan.changes)
    parts += [count(creates, "new server")] if creates else []
    parts += [f"{s.update} changed in place"] if s.update else []
    parts += [count(s.fetch, "download")] if s.fetch else []
    parts += [count(s.link, "link")] if s.link else []
    parts.append(f"{s.delete} deleted" if s.delete else "nothing deleted")
    return ", ".join(parts)


def _rows(plan: Plan) -> list[str]:
    rows = []
    blocked_by = words.blocked_by(plan)
    for change in plan.changes:
        if change.action in {"noop", "keep"}:
            continue
        away = _away(change)
        download = format_bytes(change.download_bytes) if change.download_bytes else ""
        symbol = code(SYMBOLS[change.action])
        by = blocked_by.get(change.address)
        what = f"**blocked** by {code(by)}" if by else _what(change)
        rows.append(f"| {symbol} | {code(change.address)} | {what} | {away} | {download} |")
    return rows


def _away(change: Change) -> str:
    if change.action == "update":
        return "0"
    if change.action != "restart":
        return ""
    return "unknown" if change.downtime_s is None else f"~{format_duration(change.downtime_s)}"


def _what(change: Change) -> str:
    if change.action == "blocked":
        cure = f"; cure: {prose(change.cure)}" if change.cure else ""
        return f"**blocked:** {prose(change.cause or change.reason)}{cure}"
    if change.action in {"restart", "update"} and change.fields:
        shown = [_short_field(f) for f in change.fields[:_SHORT_FIELDS]]
        more = len(change.fields) - len(shown)
        return ", ".join(shown) + (f", and {more} more" if more else "")
    word = {"create": "new", "delete": "stop and remove"}.get(change.action, words.action_text(change))
    word += f", port {change.launch.port}" if change.action == "create" and change.launch else ""
    return f"{word}: {prose(change.cause)}" if change.cause else word


def _short_field(field: Field) -> str:
    name = prose(field.path)
    drift = " (drift)" if field.drift else ""
    if field.sensitive:
        return f"{name} {words.secret_text(field, new=False)}{drift}"
    if field.before is None and field.after is None:
        return f"{name}: {prose(field.reason)}{drift}"
    return f"{name} {_short(field.before)} → {_short(field.after)}{drift}"


def _short(value: bool | float | str | None) -> str:
    text = words.value_text(value)
    return code(text if len(text) <= _SHORT_VALUE else f"{text[:_SHORT_VALUE]}…")


def _answers(plan: Plan) -> list[str]:
    lines = [
        f"**Restarts:** {words.restarts_answer(plan, code)}",
        f"**Download:** {words.download_answer(plan)}",
        f"**Fits:** {words.fits_answer(plan, code)}",
        f"**Deletes:** {words.deletes_answer(plan, code)}",
    ]
    lines += [f"**Kept:** {code(c.address)}: {prose(c.cause or c.reason)}" for c in words.by_action(plan, "keep")]
    lines += [f"**{d.severity.capitalize()} {prose(d.code)}:** {_diagnostic(d)}" for d in plan.diagnostics]
    noops = plan.summary.noop
    lines += [f"{count(noops, 'thing')} unchanged and left out."] if noops else []
    return ["  \n".join(lines)]


def _diagnostic(found: Diagnostic) -> str:
    where = f"{code(found.place.short)} " if found.place else ""
    cure = f"; cure: {prose(found.cure)}" if found.cure else ""
    return f"{where}{prose(found.summary)}{cure}"


def _detail(change: Change) -> _Detail | None:
    lines = [*_field_lines(change), *_argv_lines(change)]
    if change.action in {"noop", "keep"} or not lines:
        return None
    title = f"! {change.address} ({change.action})"
    return _Detail(address=change.address, text="\n".join(fence([title, *lines], "diff")))


def _field_lines(change: Change) -> Iterator[str]:
    fields = words.shown_fields(change)
    width = max((len(f.path) for f in fields if len(f.path) <= _SHORT_VALUE), default=0)
    for field in fields:
        origin = words.origin_text(field)
        where = f"     {origin}" if origin else ""
        if field.sensitive:
            yield f"!   {field.path:<{width}}  {words.secret_text(field, new=change.action == 'create')}{where}"
            continue
        if field.before is not None:
            yield f"-   {field.path:<{width}}  {words.value_text(field.before)}"
        if field.after is not None:
            yield f"+   {field.path:<{width}}  {words.value_text(field.after)}{where}"


def _argv_lines(change: Change) -> list[str]:
    """The command line, one flag with its value a line. The old one is known only when the run record has it."""
    if change.launch is None or (change.action != "create" and not change.argv_before):
        return []
    before, after = _flag_lines(change.argv_before), _flag_lines(change.launch.argv)
    signs = {"- ": "-", "+ ": "+", "  ": " "}
    compared = (line for line in difflib.ndiff(before, after) if line[:2] in signs)
    return ["", f"  {change.launch.program}", *(f"{signs[line[:2]]}   {mask_tokens(line[2:])}" for line in compared)]


def _flag_lines(argv: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for word in argv:
        if lines and not word.startswith("--") and " " not in lines[-1] and lines[-1].startswith("-"):
            lines[-1] = f"{lines[-1]} {word}"
        else:
            lines.append(word)
    return lines

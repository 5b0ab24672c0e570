"""The plan for a terminal (ux contract 3.4): one block a change, then the answers. Equal plans give equal bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gezelctl.config.diagnostics import Diagnostic, render_diagnostics
from gezelctl.plan import words
from gezelctl.plan.types import SYMBOLS, Change, Field, FileAction, Plan
from gezelctl.plan.units import count, format_bytes, printable

_ESC = "\x1b["
_INDENT = "      "
_MIN_VALUE = 24
_NAME_CAP = 32
_ADDRESS_CAP = 44
_LEGEND = {
    "create": "create",
    "update": "in place",
    "restart": "restart",
    "delete": "stop and remove",
    "fetch": "download",
    "link": "hard link",
}


class Palette(msgspec.Struct, frozen=True):
    """SGR parameters by role; the action names are roles. Colour is never the only carrier of a meaning."""

    create: str = "32"
    update: str = "33"
    restart: str = "35"
    delete: str = "31"
    fetch: str = "36"
    link: str = "36"
    keep: str = "33"
    noop: str = "2"
    blocked: str = "1;31"
    address: str = "1"
    dim: str = "2"
    bad: str = "1;31"

    def paint(self, role: str, text: str) -> str:
        return f"{_ESC}{getattr(self, role)}m{text}{_ESC}0m" if text else text


def render_text(
    plan: Plan,
    *,
    width: int = 100,
    color: Palette | None = None,
    ascii_only: bool = False,
    show_unchanged: bool = False,
    wide: bool = False,
) -> str:
    """The whole plan, ending with a newline.

    `width` in columns bounds how much of a value is shown; `wide` shows all of it, files that are already there, and
    memory. `ascii_only` escapes what the stream cannot encode. Without changes it is one line that says what was
    compared, after whatever is kept or found.
    """
    return _TextView(width=width, color=color, ascii_only=ascii_only, wide=wide).render(plan, show_unchanged)


class _TextView:
    def __init__(self, *, width: int, color: Palette | None, ascii_only: bool, wide: bool) -> None:
        self.width = max(width, 40)
        self.color = color
        self.ascii_only = ascii_only
        self.wide = wide
        self.address_width = 0
        self.blocked_by: dict[str, str] = {}
        self.told: dict[str, Diagnostic] = {}

    def show(self, text: str) -> str:
        return printable(text, ascii_only=self.ascii_only)

    def paint(self, role: str, text: str) -> str:
        return self.color.paint(role, text) if self.color else text

    def render(self, plan: Plan, show_unchanged: bool) -> str:
        shown = [c for c in plan.changes if show_unchanged or c.action != "noop"]
        self.address_width = _column([self.show(c.address) for c in shown], _ADDRESS_CAP)
        self.blocked_by = words.blocked_by(plan)
        self.told = _told(plan)
        blocks = [self.change(c) for c in shown]
        quiet = not plan.summary.changes and not plan.summary.blocked and not words.misfits(plan.capacity)
        parts = [] if quiet and not blocks and not plan.diagnostics else [self.header(plan)]
        parts += ["\n".join(block) for block in blocks]
        found = [d for d in plan.diagnostics if d not in self.told.values()]
        parts += [self.diagnostics(found)] if found else []
        parts.append(self.no_changes(plan) if quiet else "\n".join(self.summary(plan)))
        return "\n\n".join(parts) + "\n"

    def header(self, plan: Plan) -> str:
        seen = words.against_text(plan, self.show)
        files = words.sources_text(plan, self.show)
        where = f"{self.show(plan.host)}, stack {self.show(plan.stack)}."
        lines = [f"{where} Compared with: {seen}. {files}, state serial {plan.serial}."]
        if plan.checksum:
            lines.append(f"Saved plan {self.show(plan.digest)}.")
        if plan.against.kind != "live":
            lines.append("Speculative: made away from the host, so it cannot be saved for apply.")
        narrowed = words.narrowed_text(plan, self.show)
        return "\n".join([*lines, narrowed] if narrowed else lines)

    def change(self, change: Change) -> list[str]:
        symbol = self.paint(change.action, f"{SYMBOLS[change.action]:>3}")
        address = f"{self.show(change.address):<{self.address_width}}"
        if change.address in self.blocked_by:
            return [
                f"{symbol} {self.paint('address', address)}  blocked by {self.show(self.blocked_by[change.address])}"
            ]
        joined = change.action in {"keep", "noop", "blocked"}
        cause = self.show(change.cause or (change.reason.replace("_", " ") if joined else ""))
        head = words.action_text(change)
        title = ": ".join(part for part in (head, cause) if part) if joined else head
        title += self.where(change)
        lines = [f"{symbol} {self.paint('address', address)}  {title}"]
        lines += [f"{_INDENT}why: {cause}"] if cause and not joined else []
        lines += self.files(change.files)
        lines += self.fields(change)
        lines += [f"{_INDENT}({note})" for note in [self.unchanged(change)] if note]
        lines += [f"{_INDENT}cure: {self.show(change.cure)}"] if change.cure else []
        return lines

    def where(self, change: Change) -> str:
        """Code and place of the finding that blocks a server."""
        found = self.told.get(change.address)
        if found is None:
            return ""
        return f" ({self.show(found.place.short)}, {found.code})" if found.place else f" ({found.code})"

    def unchanged(self, change: Change) -> str:
        notes = [f"{count(change.unchanged_count, 'setting')} unchanged"] if change.unchanged_count else []
        if change.memory_after_bytes or change.memory_before_bytes:
            text = f"memory {format_bytes(change.memory_after_bytes)}"
            differs = change.memory_before_bytes and change.memory_before_bytes != change.memory_after_bytes
            notes.append(f"{text}, now {format_bytes(change.memory_before_bytes)}" if differs else text)
        return "; ".join(notes)

    def files(self, files: Iterable[FileAction]) -> list[str]:
        shown = [f for f in files if self.wide or f.how != "present"]
        names = [self.show(f.file.name) for f in shown]
        name_width = _column(names, 60)
        sizes = [format_bytes(f.size_bytes) if f.size_bytes else "size unknown" for f in shown]
        size_width = _column(sizes, 20)
        lines = []
        for action, name, size in zip(shown, names, sizes, strict=True):
            sign = {"download": "<=", "link": "&=", "copy": "+ ", "present": "  "}[action.how]
            origin = "already there" if action.how == "present" else f"from {self.show(words.file_source(action))}"
            why = f" ({self.show(action.reason)})" if action.reason else ""
            role = "fetch" if action.how == "download" else "link"
            lines.append(f"   {self.paint(role, sign)} {name:<{name_width}}  {size:>{size_width}}  {origin}{why}")
        return lines

    def fields(self, change: Change) -> list[str]:
        new = change.action == "create"
        fields = words.shown_fields(change)
        names = [self.show(f.path) for f in fields]
        origins = [self.show(words.origin_text(f)) for f in fields]
        effects = [self.effect(f, new) for f in fields]
        name_width, origin_width = _column(names, _NAME_CAP), _column(origins, _NAME_CAP)
        room = self.width - len(_INDENT) - name_width - origin_width - _column(effects, _NAME_CAP) - 6
        values = [self.value(f, new, max(room, _MIN_VALUE)) for f in fields]
        value_width = _column(values, max(room, _MIN_VALUE))
        lines = []
        for name, value, origin, effect in zip(names, values, origins, effects, strict=True):
            tail = (
                f"  {self.paint('dim', f'{origin:<{origin_width}}')}  {effect}"
                if effect
                else f"  {self.paint('dim', origin)}"
            )
            lines.append(
                f"{_INDENT}{name:<{name_width}}  {value:<{value_width}}{tail if origin or effect else ''}".rstrip()
            )
        return lines

    def value(self, field: Field, new: bool, room: int) -> str:
        if field.sensitive:
            return words.secret_text(field, new=new)
        if field.before is None and field.after is None:
            return ""
        after = self.show(words.value_text(field.after))
        if new:
            return self.cut(after, room)
        before = self.show(words.value_text(field.before))
        half = (room - len(" -> ")) // 2
        fits = len(before) + len(after) + len(" -> ") <= room
        return f"{before} -> {after}" if fits else f"{self.cut(before, half)} -> {self.cut(after, half)}"

    def cut(self, text: str, room: int) -> str:
        if self.wide or len(text) <= room:
            return text
        return f"{text[: max(room - 3, 1)]}..."

    def effect(self, field: Field, new: bool) -> str:
        notes = [] if new else [words.effect_text(field)]
        notes += ["drift: changed on this host"] if field.drift else []
        notes += [self.show(field.reason)] if field.reason and not field.sensitive else []
        return "; ".join(notes)

    def diagnostics(self, diagnostics: Sequence[Diagnostic]) -> str:
        text = render_diagnostics(diagnostics).rstrip("\n")
        return text.encode("ascii", "backslashreplace").decode() if self.ascii_only else text

    def summary(self, plan: Plan) -> list[str]:
        fits = words.fits_answer(plan, self.show)
        acting = [c for c in plan.changes if c.action not in {"noop", "keep"}]
        lines = [
            f"Restarts: {words.restarts_answer(plan, self.show)}",
            f"Download: {words.download_answer(plan)}",
            f"Fits:     {self.paint('bad', fits) if words.misfits(plan.capacity) else fits}",
            f"Deletes:  {words.deletes_answer(plan, self.show)}",
            f"Plan:     {words.counts_text(plan)}.",
        ]
        lines += self.items(acting)
        if not plan.applyable:
            lines.append(self.paint("bad", f"This plan cannot be applied: {words.hindrances_text(plan)}."))
        return [*lines, f"Legend:   {self.legend(plan)}"]

    def items(self, changes: Sequence[Change]) -> list[str]:
        """Symbol and address of each change, as many on a line as the width holds."""
        lines: list[str] = []
        room = 0
        for change in changes:
            address = self.show(change.address)
            size = len(f"   {SYMBOLS[change.action]} {address}")
            item = f"{self.paint(change.action, SYMBOLS[change.action])} {address}"
            if lines and size <= room:
                lines[-1] += f"   {item}"
                room -= size
            else:
                lines.append(f"          {item}")
                room = self.width - len("          ") - size + len("   ")
        return lines

    def legend(self, plan: Plan) -> str:
        used = {c.action for c in plan.changes}
        used |= {"link" for c in plan.changes for a in c.files if a.how == "link"}
        texts = [f"{SYMBOLS[action]} {word}" for action, word in _LEGEND.items() if action in used]
        special = [w for a, w in (("keep", "kept"), ("blocked", "blocked")) if a in used]
        return "   ".join([*texts, f"! {' or '.join(special)}"] if special else texts) or "(no changes)"

    def no_changes(self, plan: Plan) -> str:
        servers = sum(c.action == "noop" and c.address.startswith("server.") for c in plan.changes)
        same = f"{count(servers, 'server')} as wanted" if servers else "nothing to do"
        narrowed = words.narrowed_text(plan, self.show)
        return (
            f"No changes: {self.show(plan.host)}, stack {self.show(plan.stack)}: {same} by "
            f"{words.sources_text(plan, self.show)}, compared with {words.against_text(plan, self.show)}. "
            f"Nothing restarts, is downloaded or is deleted.{f' {narrowed}' if narrowed else ''}"
        )


def _told(plan: Plan) -> dict[str, Diagnostic]:
    """The findings that are the very cause of a blocked change, by its address: they are told once, there."""
    causes = {c.address: c.cause for c in plan.changes if c.action == "blocked"}
    errors = (d for d in plan.diagnostics if d.severity == "error")
    return {d.address: d for d in errors if causes.get(d.address) == d.summary}


def _column(texts: Sequence[str], cap: int) -> int:
    """The width of a column: its longest text, without the few that are far too long."""
    return max((len(t) for t in texts if len(t) <= cap), default=0)

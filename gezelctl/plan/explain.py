"""Why a server is launched as it is: every value with who decided it (`plan --explain server.NAME`)."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from gezelctl.engines.types import Value
from gezelctl.errors import UsageFault
from gezelctl.plan.types import Decision, Plan
from gezelctl.plan.units import printable
from gezelctl.plan.words import value_text

_HEADER = ("NAME", "VALUE", "ORIGIN", "WHERE OR WHY")
_CAP = 48


def render_explain(plan: Plan, address: str) -> str:
    """A table of the launch values of one server in launch order, then the planner's notes; ends with a newline.

    Raises UsageFault when the plan decides no launch under that address.
    """
    decision = find_decision(plan, address)
    rows = [_HEADER, *(_row(v) for v in decision.values)]
    notes = [f"  {printable(note)}" for note in decision.notes]
    return "\n".join([printable(decision.address), *_table(rows), *notes]) + "\n"


def find_decision(plan: Plan, address: str) -> Decision:
    """The decision for `server.NAME`; a bare NAME works too."""
    known = {d.address: d for d in plan.decisions}
    found = known.get(address) or known.get(f"server.{address}")
    if found:
        return found
    near = difflib.get_close_matches(address, sorted(known), n=1)
    cure = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(sorted(known)) or 'none'}."
    raise UsageFault(f"the plan launches nothing called {printable(address)}", cure=cure, code="UNKNOWN_ADDRESS")


def _row(value: Value) -> tuple[str, str, str, str]:
    where = "; ".join(part for part in (value.place.short if value.place else "", value.reason) if part)
    return (printable(value.name), printable(value_text(value.value)), value.origin, printable(where))


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max((len(row[i]) for row in rows if len(row[i]) <= _CAP), default=0) for i in range(len(_HEADER))]
    return ["  " + "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]

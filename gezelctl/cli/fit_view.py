"""What `gezelctl fit` prints: the breakdown by device, the table of what fits, the launch."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from gezelctl.engines.llama_cpp.fitting import TABLE_SLOTS, FitCell
from gezelctl.engines.llama_cpp.memory import DeviceMemory
from gezelctl.engines.llama_cpp.planner import HostMemory
from gezelctl.plan.units import format_bytes, format_pair, printable
from gezelctl.plan.words import value_text

if TYPE_CHECKING:
    from gezelctl.cli.fitting import Outcome

_COLUMNS = (
    ("weights", "weights_bytes"),
    ("context", "context_bytes"),
    ("compute", "compute_bound_bytes"),
    ("output", "output_bytes"),
    ("draft", "draft_bytes"),
    ("projector", "projector_bytes"),
    ("overhead", "overhead_bytes"),
    ("total", "total_bytes"),
)
_MARKS = {"device": "", "offload": " +RAM", "no": " -"}


def fit_document(outcome: Outcome) -> str:
    """JSON: all figures of the estimate at the top in bytes, then devices, launch, refusal and table."""
    report = outcome.report
    found, answer = report.estimate, report.answer
    figures = {k: v for k, v in msgspec.to_builtins(found).items() if k.endswith("Bytes")}
    plan = msgspec.to_builtins(found.plan)
    spec = outcome.launch.spec if outcome.launch else None
    document = {
        "kind": "Fit",
        "source": outcome.subject.shown,
        "architecture": outcome.header.architecture,
        "host": outcome.facts.host,
        "fits": answer.refusal is None,
        **figures,
        **plan,
        "kvCache": report.kv_cache,
        "exact": found.exact,
        "devices": msgspec.to_builtins(found.devices),
        "notes": [*found.notes, *report.notes],
        "memory": msgspec.to_builtins(outcome.memory),
        "launch": None if answer.refusal else msgspec.to_builtins(answer),
        "argv": [spec.program, *spec.argv] if spec else [],
        "refusal": msgspec.to_builtins(answer.refusal),
        "table": msgspec.to_builtins(report.table),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def render_fit(outcome: Outcome) -> str:
    """Text for a person; figures are rounded, -o json has them in bytes."""
    lines = [f"{printable(outcome.subject.shown)} on {printable(outcome.facts.host)}", *_host(outcome.memory), ""]
    lines += [*_breakdown(outcome), "", *_table(outcome), "", *_launch(outcome)]
    return "\n".join(lines)


def _host(memory: HostMemory) -> list[str]:
    kind = "unified memory" if memory.shape == "unified" else "RAM"
    lines = [f"  {kind}: {format_pair(memory.ram_bytes, memory.ram_total_bytes)} to plan with"]
    lines += [
        f"  {printable(card.name)}: {format_pair(card.usable_bytes, card.total_bytes)} to plan with"
        for card in memory.cards
    ]
    return lines


def _breakdown(outcome: Outcome) -> list[str]:
    report = outcome.report
    found = report.estimate
    plan = found.plan
    head = f"{plan.slots} slots, {plan.n_ctx_seq:,} tokens each, {plan.n_ctx:,} in all"
    if plan.slots == 1:
        head = f"1 slot of {plan.n_ctx:,} tokens"
    elif plan.unified:
        head = f"{plan.slots} slots over one pool of {plan.n_ctx:,} tokens"
    columns = [(title, field) for title, field in _COLUMNS if field == "total_bytes" or getattr(found, field)]
    rows = [_row(device.device, device, columns) for device in found.devices]
    if len(rows) > 1:
        rows.append(["all", *(format_bytes(getattr(found, field)) for _, field in columns)])
    notes = [f"  note: {note}" for note in (*found.notes, *report.notes)]
    exact = [] if found.exact else ["  context bytes are an estimate for this architecture"]
    return [
        f"{head}, KV cache {report.kv_cache}",
        *_aligned([["", *(title for title, _ in columns)], *rows]),
        *exact,
        *notes,
    ]


def _row(name: str, device: DeviceMemory, columns: list[tuple[str, str]]) -> list[str]:
    return [name, *(format_bytes(getattr(device, field)) for _, field in columns)]


def _aligned(rows: list[list[str]]) -> list[str]:
    """Columns to the right, the first one to the left, two spaces between."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  "
        + "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def _table(outcome: Outcome) -> list[str]:
    cells = {(cell.context, cell.slots): cell for cell in outcome.report.table}
    contexts = sorted({context for context, _ in cells})
    kinds = {cell.fits for cell in cells.values()}
    width = max(len(_MARKS[kind]) for kind in kinds)
    heads = (f"{slots} slot{'s' if slots > 1 else ''}{'':{width}}" for slots in TABLE_SLOTS)
    rows = [["tokens a slot", *heads]]
    rows += [[f"{context:,}", *(_cell(cells[context, slots], width) for slots in TABLE_SLOTS)] for context in contexts]
    legend = [f"KV cache {outcome.report.kv_cache}"]
    legend += ["+RAM: a part of the model in RAM"] if "offload" in kinds else []
    legend += ["-: does not fit"] if "no" in kinds else []
    return [f"what fits ({'; '.join(legend)}):", *(line.rstrip() for line in _aligned(rows))]


def _cell(cell: FitCell, width: int) -> str:
    return f"{format_bytes(cell.total_bytes)}{_MARKS[cell.fits]:{width}}"


def _launch(outcome: Outcome) -> list[str]:
    answer = outcome.report.answer
    if answer.refusal is not None:
        return [f"no launch: {answer.refusal.summary}", f"  cure: {answer.refusal.cure}"]
    width = max((len(value.name) for value in answer.values), default=0)
    lines = ["the launch it would choose:"]
    lines += [
        f"  {v.name:<{width}}  {value_text(v.value)}" + (f"  ({v.reason})" if v.reason else "") for v in answer.values
    ]
    lines += [f"  note: {note}" for note in answer.notes]
    launch = outcome.launch
    if launch and launch.spec:
        lines.append("  " + printable(shlex.join([launch.spec.program, *launch.spec.argv])))
    elif launch:
        lines += [f"  {d.severity}: {d.summary}" for d in launch.diagnostics]
    return lines

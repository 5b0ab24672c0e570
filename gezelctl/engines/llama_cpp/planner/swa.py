"""Full or windowed cache for sliding-window layers (reference behaviour 7.8)."""

from __future__ import annotations

import msgspec

from gezelctl.engines.llama_cpp.planner.ladder import Grant


class SwaVerdict(msgspec.Struct, frozen=True, rename="camel"):
    """`full` is None where nothing is decided and the engine's own default (windowed) holds."""

    full: bool | None
    grant: Grant | None
    reason: str = ""


def full_costs(grant: Grant | None, planned_slots: int, requested: int, *, fits_fast: bool) -> str:
    """What a full cache would cost in words, "" when nothing."""
    if grant is None:
        return "does not fit"
    if grant.slots < planned_slots:
        return f"leaves {grant.slots} of {planned_slots} slots"
    if grant.context < requested:
        return f"leaves {grant.context} of {requested} tokens a slot"
    return "" if fits_fast else "does not fit in fast memory"


def swa_verdict(
    full: Grant | None, windowed: Grant | None, planned_slots: int, requested: int, *, fits_fast: bool
) -> SwaVerdict:
    """A full cache where it costs neither slots nor context nor speed, else the plan with the windowed cache.

    Prefix reuse is what a full cache buys; context is worth more than that.
    """
    cost = full_costs(full, planned_slots, requested, fits_fast=fits_fast)
    if not cost:
        return SwaVerdict(full=True, grant=full, reason="a full cache for windowed layers fits and keeps prefix reuse")
    return SwaVerdict(full=None, grant=windowed, reason=f"windowed cache: a full one {cost}")

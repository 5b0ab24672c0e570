"""One model under one request, resolved: what every memory rule looks at."""

from __future__ import annotations

import msgspec

from gezelctl.engines.llama_cpp.context import ContextPlan, ContextRequest, plan_context
from gezelctl.engines.llama_cpp.geometry import Geometry, read_geometry
from gezelctl.engines.llama_cpp.weights import Placement, place_layers
from gezelctl.gguf.types import GgufSummary


class Layout(msgspec.Struct, frozen=True):
    """A header, its geometry, the request, and the sizes and layer placement that follow."""

    summary: GgufSummary
    geometry: Geometry
    request: ContextRequest
    plan: ContextPlan
    placement: Placement


def lay_out(summary: GgufSummary, request: ContextRequest) -> Layout:
    """Resolve a request for a model.

    Raises:
        ValueError: for a request that llama.cpp would abort on.
    """
    geometry = read_geometry(summary)
    plan = plan_context(request, summary.context_length, rollback=geometry.rollback)
    return Layout(summary, geometry, request, plan, place_layers(request, summary.block_count))

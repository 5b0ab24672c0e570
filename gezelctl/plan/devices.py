"""GPUs by their stable id: what models.yaml calls by UUID or PCI address gets the engine build's own name for it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gezelctl.catalog.servers import Resolved
from gezelctl.config.settings import option_values
from gezelctl.engines.llama_cpp.planner import host_memory
from gezelctl.engines.llama_cpp.planner.placement import engine_names
from gezelctl.observe.types import Observed


def with_engine_devices(item: Resolved, observed: Observed) -> Resolved:
    """The server with `device` in the engine's own names (CUDA0, Vulkan1), which change with order and build.

    An id that no card has stays as it is, and is then refused as a device that the build does not list.
    """
    server, backend = item.server, item.server.backend
    own, shared = server.engine_options.get("device"), option_values(backend.engine_options).get("device")
    probe = observed.engines.get(server.backend_name)
    if probe is None or not (own or shared):
        return item
    cards = host_memory(observed.facts).cards
    names = dict(zip((card.id for card in cards), engine_names(cards, probe.devices), strict=False))

    def named(value: object) -> str:
        return ",".join(names.get(part, part) for part in str(value).split(","))

    if own:
        server = replace(server, engine_options={**server.engine_options, "device": named(own)})
    if shared:
        options: Any = backend.engine_options  # made from the settings table, so it has no static fields
        server = replace(server, backend=replace(backend, engine_options=replace(options, device=named(shared))))
    return replace(item, server=server)

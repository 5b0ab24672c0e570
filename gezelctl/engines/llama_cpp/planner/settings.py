"""What somebody set of a launch, and what the planner may therefore not change."""

from __future__ import annotations

from gezelctl.engines.llama_cpp.planner.types import LaunchQuestion
from gezelctl.engines.types import Scalar

OFFLOAD_NAMES = ("nGpuLayers", "cpuMoe", "nCpuMoe", "tensorSplit", "splitMode", "mainGpu", "device", "rpc")
"""Any of these set by hand makes the whole offload the operator's: the engine's fit gives up on them as well."""
PLANNED_OFFLOAD = ("device", "nGpuLayers", "nCpuMoe", "cpuMoe", "tensorSplit", "fit")
"""What the planner gives when it decides the offload."""


class Settings:
    """Launch values by name: server over backend over catalog, and under them those of a running launch.

    `kept` is consulted last and only when the planner tries to leave a running server as it is. `keeps_offload` = its
    layers stay where they are, which may be where the engine's own fit put them.
    """

    def __init__(self, question: LaunchQuestion, *, keep: bool = False) -> None:
        server = question.server
        self._set: dict[str, Scalar] = {
            **question.model.engine_options,
            **server.backend_options,
            **server.engine_options,
        }
        named = {"context": server.context, "slots": server.slots, "kvCache": server.kv_cache}
        self._set |= {name: value for name, value in named.items() if value is not None}
        running = question.running if keep else None
        self.keeps_offload = running is not None and not self.sets_offload
        self.kept: dict[str, Scalar] = {}
        if running is not None:
            skipped = () if self.keeps_offload else PLANNED_OFFLOAD
            values = {"swaFull": False, **running.values}
            self.kept = {name: values[name] for name in values if name not in self._set and name not in skipped}

    @property
    def sets_offload(self) -> bool:
        """Whether somebody, not the planner, says where layers go."""
        return any(name in self._set for name in OFFLOAD_NAMES)

    @property
    def keeps(self) -> bool:
        """Whether a running launch is being kept as it is."""
        return bool(self.kept)

    def set_by_hand(self, name: str) -> bool:
        return name in self._set

    def get(self, name: str) -> Scalar | None:
        """The value that holds, set or kept."""
        return self._set.get(name, self.kept.get(name))

    def integer(self, name: str) -> int | None:
        """A number that is set; None when it is not, or not a number."""
        value = self.get(name)
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, name: str) -> str:
        value = self.get(name)
        return value if isinstance(value, str) else ""

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        return value if isinstance(value, bool) else default

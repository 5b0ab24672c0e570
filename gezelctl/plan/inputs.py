"""Everything the planner is given. Nothing else may decide what a plan says."""

from __future__ import annotations

import msgspec

from gezelctl.catalog.servers import Resolved
from gezelctl.config.desired import HostDesired
from gezelctl.engines.types import LaunchSpec
from gezelctl.observe.types import Observed
from gezelctl.plan.types import Against, SourceFile


class Locations(msgspec.Struct, frozen=True):
    """Where one server's things stand on the planned host, as absolute paths."""

    payload_dir: str
    slots_dir: str
    config_path: str
    draft_dir: str = ""
    """The payload folder of the catalog model that `spec.draftModel` names, "" when it names none."""


class PlanOptions(msgspec.Struct, frozen=True):
    """What the command line narrows or asks for. Addresses are as in the plan (`server.chat`)."""

    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    prune: bool = False
    destroy: bool = False

    @property
    def complete(self) -> bool:
        """A narrowed plan is not complete: it never prunes and is not recorded as applied."""
        return not self.only and not self.excluded

    def selects(self, address: str) -> bool:
        return (not self.only or address in self.only) and address not in self.excluded


class PlanInputs(msgspec.Struct, frozen=True):
    """`locations` is keyed by server name and covers every resolved server."""

    desired: HostDesired
    resolved: tuple[Resolved, ...]
    observed: Observed
    locations: dict[str, Locations]
    options: PlanOptions
    source: tuple[SourceFile, ...]
    against: Against
    tool: str
    preferred: dict[str, LaunchSpec] = {}
    """Launches of a plan that was shown or saved, by server: kept while they fit, so that the free memory of another
    second does not change what was reviewed."""

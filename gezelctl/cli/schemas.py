"""Registers the schemas of the documents that gezelctl writes; importing this module is enough."""

from __future__ import annotations

from functools import partial

import msgspec

from gezelctl.config.schema import register, struct_schema
from gezelctl.observe.types import Snapshot
from gezelctl.plan.types import Plan
from gezelctl.store.types import Event, InstalledManifest

DOCUMENTS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "plan": (Plan, "gezelctl plan"),
    "snapshot": (Snapshot, "gezelctl snapshot"),
    "event": (Event, "one line of gezelctl's events.jsonl"),
    "installed-manifest": (InstalledManifest, "gezelctl installed manifest"),
}

for _name, (_struct, _title) in DOCUMENTS.items():
    register(_name, partial(struct_schema, _struct, title=_title))

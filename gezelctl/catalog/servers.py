"""Each desired server with the catalog model and payload that it needs."""

from __future__ import annotations

import msgspec

from gezelctl.catalog.types import Model, Payload, PayloadFile
from gezelctl.config.desired import DesiredServer
from gezelctl.config.diagnostics import Diagnostic


class NamedDrafter(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The draft model that a server's `spec.draftModel` names, which is not part of the server's own payload.

    `name` is what the server says: a catalog id, the name of an inline model, or the absolute path of a GGUF, which is
    used where it stands and has no payload. `files` are the weights, the first shard first.
    """

    name: str
    files: tuple[PayloadFile, ...]
    payload: Payload | None = None


class Resolved(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One server after catalog look-up.

    `files` must be on disk before it can start (drafter and projector only where they apply). `model` and `payload`
    are None exactly when `diagnostics` says why.
    """

    server: DesiredServer
    model: Model | None = None
    payload: Payload | None = None
    files: tuple[PayloadFile, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    drafter: NamedDrafter | None = None

    @property
    def all_files(self) -> tuple[PayloadFile, ...]:
        """`files` and those of a named drafter."""
        return (*self.files, *(self.drafter.files if self.drafter else ()))

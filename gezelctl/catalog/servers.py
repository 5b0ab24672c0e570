"""Each desired server with the catalog model and payload that it needs."""

from __future__ import annotations

import msgspec

from gezelctl.catalog.types import Model, Payload, PayloadFile
from gezelctl.config.desired import DesiredServer
from gezelctl.config.diagnostics import Diagnostic


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

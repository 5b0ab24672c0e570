"""What every catalog format says of a model beside its files, and the Model that comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gezelctl.catalog.blocks import Block, Count, KvBytes, KvFixed
from gezelctl.catalog.findings import Findings
from gezelctl.catalog.tuning import tuning
from gezelctl.catalog.types import Model, Payload


class Described(Block, frozen=True, kw_only=True):
    """`context_window` is in tokens, the KV figures in bytes at f16: for each token, and whatever the length."""

    id: str
    tags: tuple[str, ...] = ()
    license: str = ""
    parameter_size: str = ""
    context_window: Count | None = None
    kv_bytes_per_token_f16: KvBytes | None = msgspec.field(default=None, name="kvBytesPerTokenF16")
    kv_fixed_bytes_f16: KvFixed | None = msgspec.field(default=None, name="kvFixedBytesF16")
    tuning: Any = None

    def model(
        self, name: str, version: str, available: Sequence[str], payloads: dict[str, Payload], findings: Findings
    ) -> Model:
        """The model at one version. What is wrong in `tuning` goes to `findings`, which stand at this block."""
        tuned = tuning(self.tuning, findings.under("tuning"))
        return Model(
            id=self.id,
            name=name,
            version=version,
            payloads=payloads,
            available_versions=tuple(available),
            context_window=self.context_window or 0,
            kv_bytes_per_token_f16=self.kv_bytes_per_token_f16 or 0,
            kv_fixed_bytes_f16=self.kv_fixed_bytes_f16 or 0,
            parameter_size=self.parameter_size,
            tags=self.tags,
            license=self.license,
            engine_options=tuned.engine_options,
            spec=tuned.spec,
            thinking_budget=tuned.thinking_budget,
        )

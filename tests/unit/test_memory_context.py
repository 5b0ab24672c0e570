"""Context bytes of llama.cpp against figures measured from the engine itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gezelctl.engines.llama_cpp.context import ContextRequest, plan_context
from gezelctl.engines.llama_cpp.geometry import read_geometry
from gezelctl.engines.llama_cpp.memory import context_bytes
from gezelctl.gguf.types import GgufSummary, WeightTable

CASES = Path(__file__).parent.parent / "cases" / "memory"
GOLDEN: dict[str, Any] = yaml.safe_load((CASES / "golden.yaml").read_text())
CELLS = [(name, column) for name in GOLDEN["models"] for column in range(len(GOLDEN["settings"]))]


def summary_of(architecture: str, keys: dict[str, Any], weights: WeightTable | None = None) -> GgufSummary:
    """A header summary made of keys alone, as if read from a file."""
    empty = WeightTable(0, 0, 0, 0, 0, 0, tied=False, layers=())
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    return GgufSummary(
        version=3,
        architecture=architecture,
        file_bytes=0,
        shards=1,
        values={key: value for key, value in named.items() if not isinstance(value, list)},
        arrays={key: tuple(value) for key, value in named.items() if isinstance(value, list)},
        weights=weights or empty,
        vocab_size=keys.get("vocab_size", 0),
    )


@pytest.mark.parametrize(("name", "column"), CELLS)
def test_golden_context_bytes(name: str, column: int) -> None:
    model = GOLDEN["models"][name]
    summary = summary_of(model["architecture"], model["keys"])
    request = msgspec.convert(GOLDEN["settings"][column], ContextRequest)
    geometry = read_geometry(summary)
    plan = plan_context(request, summary.context_length, rollback=geometry.rollback)
    assert context_bytes(geometry, request, plan) == model["bytes"][column]
    assert geometry.exact

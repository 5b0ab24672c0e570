"""Projectors are paired by header, never by name."""

from __future__ import annotations

from typing import Any

import pytest

from gezelctl.engines.launch import render
from gezelctl.engines.projector import projector_problem
from gezelctl.gguf.types import GgufSummary
from tests.launchmake import header_of, request


def summary(architecture: str, **keys: Any) -> GgufSummary:
    return header_of(architecture, {key.replace("__", "."): value for key, value in keys.items()})


def projector(width: int, **more: Any) -> GgufSummary:
    keys = {"has_vision_encoder": True, "projector_type": "gemma3", "vision__projection_dim": width}
    return summary("clip", **(keys | more))


TEXT = summary("gemma3", block_count=34, embedding_length=2560)
DEEP_TEXT = summary("qwen3vlmoe", embedding_length=2048, n_deepstack_layers=3)
DEEP = {"projector_type": "qwen3vl_merger", "vision__is_deepstack_layers": [False] * 24 + [True] * 3}


@pytest.mark.parametrize(
    ("text", "candidate", "problem"),
    [
        (TEXT, projector(2560), ""),
        (TEXT, projector(3840), "puts out 3840 values a position, the model takes in 2560"),
        (DEEP_TEXT, projector(2048, **DEEP), ""),
        (DEEP_TEXT, projector(2048), "puts out 2048 values a position, the model takes in 8192"),
        (summary("qwen3moe", embedding_length=2048), projector(2048, **DEEP), "puts out 8192"),
        (TEXT, summary("llama", embedding_length=2560), "no projector but a model of architecture llama"),
        (TEXT, projector(2560, has_vision_encoder=False), "neither a vision nor an audio encoder"),
        (
            TEXT,
            summary("clip", has_audio_encoder=True, audio__projector_type="ultravox", audio__projection_dim=2560),
            "",
        ),
        (TEXT, summary("clip", has_vision_encoder=True, vision__projection_dim=2560), "names no projector type"),
        (TEXT, summary("clip", has_vision_encoder=True, projector_type="mlp"), ""),
    ],
)
def test_projector_problem(text: GgufSummary, candidate: GgufSummary, problem: str) -> None:
    found = projector_problem(text, candidate)
    assert problem in found
    assert bool(found) == bool(problem)


@pytest.mark.parametrize(("width", "codes"), [(2560, []), (3840, ["E0307"])])
def test_a_launch_with_another_models_projector_is_refused(width: int, codes: list[str]) -> None:
    asked = request(roles=("mmproj",), header=TEXT, server={"vision": True}, mmproj_gguf=projector(width))
    rendered = render(asked)
    assert [d.code for d in rendered.diagnostics if d.severity == "error"] == codes
    assert (rendered.spec is None) == bool(codes)

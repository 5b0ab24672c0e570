"""Context bytes of llama.cpp against figures measured from the engine itself, and the rules of context sizing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gezelctl.engines.llama_cpp.context import CACHE_TYPES, ContextRequest, plan_context
from gezelctl.engines.llama_cpp.geometry import read_geometry
from gezelctl.engines.llama_cpp.kv import refusals, window_cells
from gezelctl.engines.llama_cpp.layout import lay_out
from gezelctl.engines.llama_cpp.memory import Extras, context_bytes, context_line, mtp_context
from gezelctl.gguf.types import GgufSummary
from tests.bench.shape_files import Shape

CASES = Path(__file__).parent.parent / "cases" / "memory"
GOLDEN: dict[str, Any] = yaml.safe_load((CASES / "golden.yaml").read_text())
CELLS = [(name, column) for name in GOLDEN["models"] for column in range(len(GOLDEN["settings"]))]


def golden(name: str, **changed: Any) -> GgufSummary:
    """A golden model's header, keys changed or (None) removed."""
    model = GOLDEN["models"][name]
    keys = {**model["keys"], **{key.replace("__", "."): value for key, value in changed.items()}}
    kept = {key: value for key, value in keys.items() if value is not None}
    return Shape(architecture=model["architecture"], keys=kept).summary()


def bytes_of(summary: GgufSummary, request: ContextRequest) -> int:
    layout = lay_out(summary, request)
    return context_bytes(layout.geometry, layout.request, layout.plan)


@pytest.mark.parametrize(("name", "column"), CELLS)
def test_golden_context_bytes(name: str, column: int) -> None:
    request = msgspec.convert(GOLDEN["settings"][column], ContextRequest)
    assert bytes_of(golden(name), request) == GOLDEN["models"][name]["bytes"][column]
    assert read_geometry(golden(name)).exact


@pytest.mark.parametrize(
    ("request_", "n_ctx", "n_ctx_seq", "streams"),
    [
        (ContextRequest(n_ctx=10000, slots=3), 10752, 3584, 3),
        (ContextRequest(n_ctx=1024, slots=3), 1536, 512, 3),
        (ContextRequest(n_ctx=10000, slots=3, unified=True), 10240, 10240, 1),
        (ContextRequest(n_ctx=8192), 8192, 8192, 1),
        (ContextRequest(n_ctx=8192, slots=4), 8192, 2048, 4),
        (ContextRequest(slots=2), 32768, 16384, 2),
        (ContextRequest(slot_tokens=4096, slots=3), 12288, 4096, 3),
        (ContextRequest(slot_tokens=4096, slots=3, unified=True), 12288, 12288, 1),
        (ContextRequest(n_ctx=1), 256, 256, 1),
    ],
)
def test_context_sizes(request_: ContextRequest, n_ctx: int, n_ctx_seq: int, streams: int) -> None:
    plan = plan_context(request_, 32768)
    assert (plan.n_ctx, plan.n_ctx_seq, plan.streams) == (n_ctx, n_ctx_seq, streams)


def test_no_slot_count_means_four_over_one_pool_and_an_explicit_one_splits() -> None:
    assert plan_context(ContextRequest(n_ctx=8192), 0).slots == 4
    assert plan_context(ContextRequest(n_ctx=8192), 0).unified
    assert not plan_context(ContextRequest(n_ctx=8192, slots=4), 0).unified


def test_batches_are_bounded_by_the_context_and_snapshots_need_room() -> None:
    small = plan_context(ContextRequest(n_ctx=300, slots=1), 0)
    assert (small.n_batch, small.n_ubatch) == (300, 300)
    assert plan_context(ContextRequest(n_ctx=8192, slots=1, n_ubatch=0), 0).n_ubatch == 2048
    tiny = ContextRequest(n_ctx=8192, slots=1, n_batch=2, n_ubatch=1, snapshots=3)
    assert plan_context(tiny, 0, rollback=True).n_ubatch == 5
    assert plan_context(tiny, 0).snapshots == 0


@pytest.mark.parametrize(
    "request_",
    [
        ContextRequest(n_ctx=8192, slots=257),
        ContextRequest(n_ctx=8192, slots=0),
        ContextRequest(n_ctx=-5, slots=1),
        ContextRequest(n_ctx=8192, slots=1, n_batch=0),
        ContextRequest(slots=1),
    ],
)
def test_requests_that_abort_the_engine_are_refused(request_: ContextRequest) -> None:
    with pytest.raises(ValueError, match="must be"):
        plan_context(request_, 0)


def test_cache_types_are_those_of_the_command_line() -> None:
    assert set(CACHE_TYPES) == {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"}
    with pytest.raises(KeyError):
        bytes_of(golden("llama8b"), ContextRequest(n_ctx=8192, slots=1, type_k="q6_k"))


def test_unified_multiplies_the_window_and_split_the_streams() -> None:
    geometry = read_geometry(golden("gemma3_27b"))
    split = plan_context(ContextRequest(n_ctx=16384, slots=4), 0)
    unified = plan_context(ContextRequest(n_ctx=16384, slots=4, unified=True), 0)
    assert window_cells(geometry, split, swa_full=False) * split.streams == 4 * (1024 + 512)
    assert window_cells(geometry, unified, swa_full=False) * unified.streams == 4 * 1024 + 512


def test_mla_is_told_by_its_keys_and_the_old_form_costs_nine_times() -> None:
    request = ContextRequest(n_ctx=8192, slots=1)
    legacy = golden(
        "dsv2lite",
        attention__key_length_mla=None,
        attention__value_length_mla=None,
        attention__head_count_kv=16,
        attention__key_length=192,
        attention__value_length=128,
    )
    assert bytes_of(golden("dsv2lite"), request) == 254_803_968
    assert bytes_of(legacy, request) == 2_264_924_160
    assert "about nine times" in read_geometry(legacy).notes[0]
    assert not read_geometry(golden("dsv2lite")).notes
    mixed = msgspec.structs.replace(request, type_k="q8_0", type_v="q4_0")
    assert refusals(read_geometry(golden("dsv2lite")), mixed) == (
        "an MLA model needs one cache type, not q8_0 and q4_0",
    )


def test_phi3_ignores_its_window_and_exaone4_keeps_it_for_64_layers_only() -> None:
    assert read_geometry(golden("phi3_swa")).window == 0
    keys = {**GOLDEN["models"]["qwen3_8b"]["keys"], "attention.sliding_window": 4096}
    assert read_geometry(Shape("exaone4", {**keys, "block_count": 30}).summary()).window == 0
    windowed = read_geometry(Shape("exaone4", {**keys, "block_count": 64}).summary())
    assert sum(layer.swa for layer in windowed.layers) == 48
    assert not any(layer.swa for layer in windowed.layers[3::4])


@pytest.mark.parametrize(
    ("architecture", "pattern"),
    [
        ("gemma2", "SFSFSFSFSFSF"),
        ("gemma3", "SSSSSFSSSSSF"),
        ("gemma3n", "SSSSFSSSSFSS"),
        ("cohere2", "SSSFSSSFSSSF"),
        ("cohere2moe", "FSSSFSSSFSSS"),
        ("gpt-oss", "SFSFSFSFSFSF"),
        ("smallthinker", "FSSSFSSSFSSS"),
        ("plamo3", "SSSSSSSFSSSS"),
        ("modern-bert", "FSSFSSFSSFSS"),
        ("llama", "FFFFFFFFFFFF"),
        ("mimo2", "FFFFFFFFFFFF"),
    ],
)
def test_window_patterns_without_a_key(architecture: str, pattern: str) -> None:
    keys = {**GOLDEN["models"]["qwen3_8b"]["keys"], "block_count": 12, "attention.sliding_window": 512}
    layers = read_geometry(Shape(architecture, keys).summary()).layers
    assert "".join("S" if layer.swa else "F" for layer in layers) == pattern


def test_a_pattern_key_wins_as_period_and_as_array() -> None:
    keys = {**GOLDEN["models"]["gemma3_27b"]["keys"], "block_count": 4}
    period = read_geometry(Shape("gemma3", {**keys, "attention.sliding_window_pattern": 2}).summary())
    assert [layer.swa for layer in period.layers] == [True, False, True, False]
    array = {**keys, "attention.sliding_window_pattern": [False, False, True, True]}
    assert [layer.swa for layer in read_geometry(Shape("gemma3", array).summary()).layers] == array[
        "attention.sliding_window_pattern"
    ]


def test_llama4_chunks_unless_its_window_is_zero() -> None:
    assert read_geometry(golden("llama4_scout")).window == 8192
    assert read_geometry(golden("llama4_scout", attention__sliding_window=0)).window == 0


def test_mtp_layers_are_left_to_the_mtp_context() -> None:
    request = ContextRequest(n_ctx=8192, slots=1, load_mtp=True)
    layout = lay_out(golden("qwen35_27b_mtp"), request)
    assert sum(row["context_bytes"] for row in mtp_context(layout, Extras()).values()) == 33_554_432
    assert layout.geometry.layer_count == 64


def test_slots_and_snapshots_multiply_recurrent_state() -> None:
    qwen = golden("qwen35_27b_mtp")
    unified = ContextRequest(n_ctx=8192, slots=4, unified=True)
    assert bytes_of(qwen, unified) == 1_164_443_648
    assert bytes_of(qwen, msgspec.structs.replace(unified, snapshots=3)) == 3_047_161_856
    one = bytes_of(golden("mamba"), ContextRequest(n_ctx=8192, slots=1))
    assert bytes_of(golden("mamba"), ContextRequest(n_ctx=8192, slots=4, unified=True)) == 4 * one
    assert bytes_of(golden("mamba"), ContextRequest(n_ctx=8192, slots=1, snapshots=3)) == one


def test_without_flash_attention_every_v_is_as_wide_as_the_widest() -> None:
    gemma4 = golden("gemma4_31b")
    plain = ContextRequest(n_ctx=8192, slots=1, flash_attn=False)
    assert bytes_of(gemma4, plain) == 2_264_924_160
    quantised = msgspec.structs.replace(plain, type_v="q8_0")
    assert refusals(read_geometry(gemma4), quantised) == ("V cache type q8_0 needs flash attention",)


@pytest.mark.parametrize("name", ["deepseek4", "glm-dsa", "minimax-m3", "qwen4exp", "brand-new"])
def test_cache_classes_that_are_not_modelled_are_said_to_be_inexact(name: str) -> None:
    geometry = read_geometry(Shape(name, GOLDEN["models"]["qwen3_8b"]["keys"]).summary())
    assert not geometry.exact
    assert name in geometry.notes[0]


REQUESTS = st.builds(
    lambda kind, **given: ContextRequest(type_k=kind, type_v=kind, **given),
    kind=st.sampled_from(sorted(CACHE_TYPES)),
    slots=st.integers(1, 6),
    unified=st.booleans(),
    swa_full=st.booleans(),
    n_ubatch=st.sampled_from([64, 512, 2048]),
)


@given(name=st.sampled_from(sorted(GOLDEN["models"])), request_=REQUESTS, blocks=st.integers(1, 400))
def test_context_line_is_exact_beyond_the_window_and_never_under(
    name: str, request_: ContextRequest, blocks: int
) -> None:
    summary = golden(name)
    line = context_line(read_geometry(summary), request_)
    tokens = blocks * 256
    exact = bytes_of(summary, msgspec.structs.replace(request_, slot_tokens=tokens))
    assert line.at(tokens) >= exact
    if tokens >= line.from_tokens:
        assert line.at(tokens) == exact

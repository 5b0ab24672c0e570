"""Where llama.cpp puts weights, cache and buffers over devices, and what else a server holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gezelctl.engines.llama_cpp.context import ContextRequest, Device
from gezelctl.engines.llama_cpp.layout import lay_out
from gezelctl.engines.llama_cpp.memory import (
    CUDA_OVERHEAD_BYTES,
    PROJECTOR_HEADROOM_BYTES,
    PROMPT_CACHE_BYTES,
    DeviceMemory,
    Drafter,
    Extras,
    MemoryEstimate,
    Projector,
    estimate,
)
from gezelctl.engines.llama_cpp.weights import HOST, Placement, place_layers, staged_bytes
from gezelctl.gguf.reader import read_summary
from gezelctl.gguf.types import GgufSummary, LayerWeights, WeightTable
from tests.bench.shape_files import Shape

GOLDEN: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parent.parent / "cases" / "memory" / "golden.yaml").read_text()
)["models"]
GPU = Device("CUDA0", free_bytes=24 << 30, overhead_bytes=CUDA_OVERHEAD_BYTES, async_events=True, stages_weights=True)
TWO = (GPU, Device("CUDA1", free_bytes=24 << 30, async_events=True, stages_weights=True))
QUIET = Extras(prompt_cache_bytes=0)
F32_8B = WeightTable(
    total_bytes=32_126_572_544,
    parameters=8_030_000_000,
    tensor_count=291,
    input_bytes=2_101_346_304,
    token_embd_bytes=2_101_346_304,
    output_bytes=2_101_362_688,
    tied=False,
    layers=(LayerWeights(872_620_736),) * 32,
)
"""The llama-8B shape in F32, as measured with all optional biases."""


def model(name: str, weights: WeightTable) -> GgufSummary:
    shape = Shape(GOLDEN[name]["architecture"], GOLDEN[name]["keys"])
    return msgspec.structs.replace(shape.summary(), weights=weights)


def table(layers: int, *, expert: int = 0, tied: bool = False, nextn: int = 0) -> WeightTable:
    """A weight table of round numbers: 1,000 dense per layer, 700 embedding, 900 output."""
    rows = [LayerWeights(1000, expert, 0, expert // 3)] * (layers - bool(nextn))
    rows += [LayerWeights(1000, expert, nextn, expert // 3)] * bool(nextn)
    total = sum(row.dense_bytes + row.expert_bytes + row.nextn_bytes for row in rows) + 1600
    return WeightTable(total, 0, 0, 700, 700, 900, tied=tied, layers=tuple(rows))


def device(found: MemoryEstimate, name: str) -> DeviceMemory:
    return next(row for row in found.devices if row.device == name)


@pytest.mark.parametrize(
    ("ngl", "gpu", "host", "gpu_context"),
    [
        (0, 0, 32_126_572_544, 0),
        (1, 2_101_362_688, 30_025_209_856, 0),
        (16, 15_190_673_728, 16_935_898_816, 503_316_480),
        (32, 29_152_605_504, 2_973_967_040, 1_040_187_392),
        (33, 30_025_226_240, 2_101_346_304, 1_073_741_824),
        (99, 30_025_226_240, 2_101_346_304, 1_073_741_824),
        (None, 30_025_226_240, 2_101_346_304, 1_073_741_824),
    ],
)
def test_offload_of_the_8b_shape_as_measured(ngl: int | None, gpu: int, host: int, gpu_context: int) -> None:
    request = ContextRequest(n_ctx=8192, slots=1, n_gpu_layers=ngl, devices=(GPU,))
    found = estimate(model("llama8b", F32_8B), request, QUIET)
    assert device(found, "CUDA0").weights_bytes == gpu
    assert device(found, "host").weights_bytes == host
    assert device(found, "CUDA0").context_bytes == gpu_context
    assert device(found, "host").context_bytes == 1_073_741_824 - gpu_context


def test_three_to_one_over_two_devices_as_measured() -> None:
    request = ContextRequest(n_ctx=8192, slots=1, tensor_split=(3, 1), devices=TWO)
    found = estimate(model("llama8b", F32_8B), request, QUIET)
    assert [row.context_bytes for row in found.devices] == [0, 838_860_800, 234_881_024]
    assert found.placement == Placement((0,) * 25 + (1,) * 7, 1)


def test_free_memory_is_the_default_split_and_the_last_layer_stays_in_range() -> None:
    uneven = (Device("a", free_bytes=6 << 30), Device("b", free_bytes=18 << 30))
    placement = place_layers(ContextRequest(devices=uneven), 31)
    assert placement.layers.count(0) == 8
    assert place_layers(ContextRequest(devices=(Device("a"), Device("b"))), 3) == Placement((0, 0, 1), 1)
    assert place_layers(ContextRequest(devices=TWO, tensor_split=(1, 0)), 3).output == 0


def test_pipelining_keeps_inputs_in_copies_only_where_the_engine_would() -> None:
    summary = model("llama8b", F32_8B)
    whole = ContextRequest(n_ctx=8192, slots=1, devices=TWO)
    slow = tuple(msgspec.structs.replace(one, async_events=False) for one in TWO)
    pipelined = estimate(summary, whole, QUIET)
    plain = estimate(summary, msgspec.structs.replace(whole, devices=slow), QUIET)
    for name in ("host", "CUDA0"):
        assert device(pipelined, name).compute_bound_bytes > device(plain, name).compute_bound_bytes
    partial = estimate(summary, msgspec.structs.replace(whole, n_gpu_layers=20), QUIET)
    assert device(partial, "CUDA1").compute_bound_bytes < device(pipelined, "CUDA1").compute_bound_bytes


def test_tied_embeddings_are_loaded_twice_when_offloaded() -> None:
    summary = model("llama8b", table(32, tied=True))
    host = estimate(summary, ContextRequest(n_ctx=8192, slots=1), QUIET)
    split = estimate(summary, ContextRequest(n_ctx=8192, slots=1, devices=(GPU,)), QUIET)
    assert split.weights_bytes == host.weights_bytes + 700
    assert device(split, "CUDA0").weights_bytes == 32_000 + 900 + 700


@pytest.mark.engine("smollm2")
def test_the_135m_file_on_a_device_is_the_whole_file_there_and_its_embedding_on_the_host(smollm2: Path) -> None:
    found = estimate(read_summary(smollm2), ContextRequest(n_ctx=8192, slots=1, devices=(GPU,)), QUIET)
    assert device(found, "CUDA0").weights_bytes == 96_576_768
    assert device(found, "host").weights_bytes == 30_081_024


def test_mtp_weights_are_loaded_only_on_demand_and_follow_their_layer() -> None:
    summary = model("qwen35_27b_mtp", table(65, nextn=50))
    request = ContextRequest(n_ctx=8192, slots=1, devices=(GPU,))
    without = estimate(summary, request, QUIET)
    loaded = estimate(summary, msgspec.structs.replace(request, load_mtp=True), QUIET)
    assert device(without, "CUDA0").weights_bytes == 64_000 + 900
    assert device(loaded, "CUDA0").weights_bytes == 65_000 + 900 + 50
    assert without.draft_bytes == 0
    assert loaded.draft_bytes > 33_554_432
    assert loaded.context_bytes == without.context_bytes


def test_full_offload_of_a_model_with_mtp_needs_one_layer_more_than_its_blocks() -> None:
    assert not place_layers(ContextRequest(n_gpu_layers=65, devices=(GPU,)), 65).full
    assert place_layers(ContextRequest(n_gpu_layers=66, devices=(GPU,)), 65).full


@pytest.mark.parametrize(("layers", "kept"), [(0, 48), (12, 36), (48, 0), (999, 0)])
def test_experts_of_the_first_layers_stay_on_the_host(layers: int, kept: int) -> None:
    summary = model("qwen3_30b", table(48, expert=90_000))
    request = ContextRequest(n_ctx=8192, slots=1, cpu_moe_layers=layers, devices=(GPU,))
    found = estimate(summary, request, QUIET)
    assert device(found, "CUDA0").weights_bytes == 48_000 + 900 + kept * 90_000
    assert device(found, "CUDA0").context_bytes == found.context_bytes


def test_a_device_stages_the_largest_expert_tensor_of_the_host() -> None:
    weights = table(48, expert=90_000)
    request = ContextRequest(cpu_moe_layers=4, devices=(GPU,))
    placement = place_layers(request, 48)
    assert staged_bytes(weights, request, placement) == 30_000
    assert staged_bytes(weights, msgspec.structs.replace(request, op_offload=False), placement) == 0
    assert staged_bytes(weights, ContextRequest(devices=(GPU,)), placement) == 0


def test_companions_are_lines_of_their_own() -> None:
    summary = model("llama8b", F32_8B)
    request = ContextRequest(n_ctx=8192, slots=1, devices=(GPU,))
    drafter = Drafter(model("qwen3_8b", table(36)), type_k="q8_0", type_v="q8_0")
    extras = Extras(projector=Projector(1_000_000), drafter=drafter, lora_bytes=4_000_000)
    bare, found = estimate(summary, request, QUIET), estimate(summary, request, extras)
    gpu, host = device(found, "CUDA0"), device(found, "host")
    assert gpu.projector_bytes == 1_000_000 + PROJECTOR_HEADROOM_BYTES
    assert host.prompt_cache_bytes == PROMPT_CACHE_BYTES
    assert gpu.overhead_bytes == CUDA_OVERHEAD_BYTES
    assert host.overhead_bytes == 0
    assert 4_000_000 <= found.weights_bytes - bare.weights_bytes <= 4_000_002
    assert gpu.draft_bytes > 641_728_512 + 36_000
    assert found.context_bytes == bare.context_bytes
    measured = Extras(projector=Projector(1_000_000, measured_bytes=7_000_000, offload=False))
    assert device(estimate(summary, request, measured), "host").projector_bytes == 7_000_000


def test_a_drafter_gets_the_whole_context_of_the_target() -> None:
    summary, draft = model("llama8b", F32_8B), model("qwen3_8b", table(36))
    sizes = [
        estimate(summary, request, Extras(drafter=Drafter(draft), prompt_cache_bytes=0)).draft_bytes
        for request in (ContextRequest(n_ctx=16384, slots=1), ContextRequest(n_ctx=16384, slots=4))
    ]
    assert min(sizes) > 2_415_919_104


def test_a_cache_class_that_is_not_modelled_gets_a_margin_and_a_note() -> None:
    known = estimate(model("qwen3_8b", table(36)), ContextRequest(n_ctx=8192, slots=1), QUIET)
    keys = GOLDEN["qwen3_8b"]["keys"]
    found = estimate(Shape("brand-new", keys).summary(), ContextRequest(n_ctx=8192, slots=1), QUIET)
    assert not found.exact
    assert found.context_bytes == known.context_bytes * 5 // 4
    assert found.notes == ("unknown architecture brand-new: context bytes assume plain attention in every layer",)


def test_notes_name_what_the_engine_would_do_silently() -> None:
    mamba = model("mamba", table(64))
    assert estimate(mamba, ContextRequest(n_ctx=8192, slots=1, snapshots=3), QUIET).notes == (
        "mamba cannot roll recurrent state back: no snapshots are kept",
    )
    gemma2 = model("gemma2_9b", table(42))
    assert estimate(gemma2, ContextRequest(n_ctx=16384, slots=1), QUIET).notes == (
        "a slot is capped at the training context of 8192 tokens, its cache is not",
    )


def test_json_is_camel_case_integers() -> None:
    found = msgspec.to_builtins(estimate(model("llama8b", F32_8B), ContextRequest(n_ctx=8192, slots=1), QUIET))
    assert found["contextBytes"] == 1_073_741_824
    assert found["devices"][0]["device"] == "host"
    figures = {key for key in found if key.endswith("Bytes")}
    assert figures == {key for key in found["devices"][0] if key.endswith("Bytes")}
    assert all(isinstance(found[key], int) for key in figures)


REQUESTS = st.builds(
    lambda count, **given: ContextRequest(devices=tuple(Device(f"d{i}") for i in range(count)), n_ctx=8192, **given),
    count=st.integers(0, 3),
    n_gpu_layers=st.none() | st.integers(-1, 80),
    tensor_split=st.lists(st.floats(0.1, 10), max_size=3).map(tuple),
    cpu_moe_layers=st.integers(0, 10),
    kv_offload=st.booleans(),
    slots=st.integers(1, 4),
)


@given(name=st.sampled_from(sorted(GOLDEN)), request_=REQUESTS)
def test_devices_add_up_whatever_the_placement(name: str, request_: ContextRequest) -> None:
    count = GOLDEN[name]["keys"]["block_count"]
    summary = model(name, table(count, expert=300))
    found = estimate(summary, request_, QUIET)
    host = estimate(summary, msgspec.structs.replace(request_, devices=()), QUIET)
    assert found.context_bytes == host.context_bytes
    assert found.weights_bytes == 1600 + 1300 * lay_out(summary, request_).geometry.layer_count
    assert found.total_bytes == sum(row.total_bytes for row in found.devices)
    assert [row.device for row in found.devices] == ["host", *[one.name for one in request_.devices]]
    order = [*found.placement.layers, found.placement.output]
    assert order == sorted(order)
    ngl = request_.n_gpu_layers
    assert (HOST in order) == (not request_.devices or (ngl is not None and 0 <= ngl <= count))

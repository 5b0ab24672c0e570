"""Whole launches of all servers of a host: explicit values, offload, company, speculation, refusals, stability."""

from __future__ import annotations

import msgspec
import pytest

from gezelctl.catalog.types import Origin, PayloadFile
from gezelctl.config.model import Spec
from gezelctl.engines.llama_cpp.planner import Running, decide
from gezelctl.engines.llama_cpp.planner.budget import Held
from gezelctl.gguf.types import GgufSummary
from tests.plannermake import GIB, MIB, answer, dense, experts, header, host, probe, question, values


def test_a_model_that_fits_gets_the_card_and_room_to_grow() -> None:
    found = answer(question(gguf=dense(), probe=probe(24)), host(64, 24))
    chosen = values(found)
    assert found.refusal is None
    assert chosen["nGpuLayers"] == -1
    assert chosen["fit"] == "off"
    assert chosen["kvCache"] == "q8_0"
    assert chosen["slots"] == 2
    assert chosen["context"] > 65_536
    assert "grown from 65536" in next(value.reason for value in found.values if value.name == "context")
    assert all(value.origin == "planner" and value.reason for value in found.values)
    assert found.estimate is not None
    assert found.estimate.basis == "header"
    assert found.estimate.gpu_bytes["GPU-0"] <= 24 * GIB * 95 // 100


def test_offload_is_given_whole_or_not_at_all() -> None:
    by_header = values(answer(question(gguf=dense(), probe=probe(24)), host(64, 24)))
    assert {"nGpuLayers", "fit"} <= set(by_header)
    by_catalog = values(answer(question(size=8, probe=probe(24)), host(64, 24)))
    assert not {"nGpuLayers", "fit", "tensorSplit", "nCpuMoe", "cpuMoe"} & set(by_catalog)


def test_a_build_without_the_flag_is_not_given_it() -> None:
    found = values(answer(question(gguf=dense(), probe=probe(24, flags=("--ctx-size",))), host(64, 24)))
    assert "fit" not in found
    assert "cacheRamMib" not in found


@pytest.mark.parametrize(
    ("server", "options", "name"),
    [
        ({"context": 8192}, {}, "context"),
        ({"slots": 4}, {}, "slots"),
        ({"kv_cache": "f16"}, {}, "kvCache"),
        ({}, {"nGpuLayers": 10}, "nGpuLayers"),
        ({}, {"swaFull": False}, "swaFull"),
        ({}, {"cacheRamMib": 64}, "cacheRamMib"),
        ({}, {"fit": "on"}, "fit"),
    ],
)
def test_what_is_set_is_never_answered(server: dict[str, object], options: dict[str, object], name: str) -> None:
    found = answer(question(gguf=dense(), probe=probe(24), server=server, options=options), host(64, 24))
    assert found.refusal is None
    assert name not in values(found)


def test_set_values_are_what_is_priced() -> None:
    found = answer(question(gguf=dense(), server={"context": 8192, "slots": 3, "kv_cache": "f16"}), host(64, 24))
    assert found.estimate is not None
    assert (found.estimate.context, found.estimate.slots, found.estimate.kv_cache) == (8192, 3, "f16")
    assert found.estimate.figures.context_bytes == 32 * 8192 * 3 * 8 * 256 * 2


def test_layers_set_by_hand_leave_the_rest_of_the_offload_alone() -> None:
    chosen = values(answer(question(gguf=dense(), probe=probe(24), options={"nGpuLayers": 10}), host(64, 24)))
    assert not {"nCpuMoe", "cpuMoe", "tensorSplit", "device"} & set(chosen)
    assert chosen["fit"] == "off"


def test_an_explicit_window_that_does_not_fit_is_refused_with_a_table() -> None:
    asked = question(gguf=dense(), accelerator="cpu", server={"context": 131_072, "slots": 8, "kv_cache": "f16"})
    found = answer(asked, host(32))
    assert found.refusal is not None
    assert found.refusal.code == "E0320"
    assert found.refusal.field == "context"
    assert not found.values
    rows = found.refusal.table
    assert {row.slots for row in rows} >= {1, 2}
    for row in rows:
        again = question(
            gguf=dense(),
            accelerator="cpu",
            server={"context": row.context, "slots": row.slots, "kv_cache": row.kv_cache},
        )
        assert answer(again, host(32)).refusal is None, row
    assert "context:" in found.refusal.cure


def test_a_model_that_fits_nowhere_is_refused_without_rows() -> None:
    found = answer(question(size=80, accelerator="cpu"), host(16))
    assert found.refusal is not None
    assert found.refusal.table == ()
    assert "9.6 GiB of RAM" in found.refusal.summary


def test_experts_go_to_ram_layer_by_layer() -> None:
    found = answer(question(gguf=experts(), probe=probe(24)), host(64, 24))
    chosen = values(found)
    assert chosen["nGpuLayers"] == -1
    assert 1 <= chosen["nCpuMoe"] < 48
    one_less = question(
        gguf=experts(), probe=probe(24), options={"nCpuMoe": chosen["nCpuMoe"] - 1}, server=fixed(chosen)
    )
    refused = answer(one_less, host(64, 24))
    assert refused.refusal is not None, "one layer less in RAM would have fitted as well"


def fixed(chosen: dict[str, object]) -> dict[str, object]:
    return {"context": chosen["context"], "slots": chosen["slots"], "kv_cache": chosen["kvCache"]}


def test_all_experts_go_to_ram_on_a_small_card() -> None:
    chosen = values(answer(question(gguf=experts(), probe=probe(6)), host(64, 6)))
    assert chosen["cpuMoe"] is True
    assert "nCpuMoe" not in chosen


def test_dense_layers_go_to_ram_when_the_card_is_too_small() -> None:
    chosen = values(answer(question(gguf=dense(layer=900 * MIB), probe=probe(24)), host(64, 24)))
    assert 0 < chosen["nGpuLayers"] < 33


def test_a_build_that_lists_no_device_is_planned_for_ram() -> None:
    found = answer(question(gguf=dense(), probe=probe()), host(64, 24))
    assert found.estimate is not None
    assert found.estimate.gpu_bytes == {}
    assert "nGpuLayers" not in values(found)


def test_a_large_model_is_split_over_two_cards() -> None:
    found = answer(question(gguf=dense(layer=900 * MIB), probe=probe(24, 24)), host(128, 24, 24))
    chosen = values(found)
    assert chosen["device"] == "CUDA0,CUDA1"
    assert chosen["tensorSplit"]
    assert found.estimate is not None
    assert set(found.estimate.gpu_bytes) == {"GPU-0", "GPU-1"}


def test_servers_are_put_on_different_cards_by_the_engines_own_names() -> None:
    questions = [question(name, gguf=dense(layer=400 * MIB), probe=probe(24, 24)) for name in ("a", "b")]
    plan = decide(questions, host(128, 24, 24))
    devices = [values(found)["device"] for found in plan.answers]
    assert sorted(devices) == ["CUDA0", "CUDA1"]
    assert all(len(found.offload.cards) == 1 for found in plan.answers)


def test_cards_in_another_order_are_found_by_name_and_size() -> None:
    build = probe(12, 24)
    found = answer(question(gguf=dense(layer=400 * MIB), probe=build, server={"slots": 1}), host(128, 24, 12))
    assert values(found)["device"] == "CUDA1"
    assert found.estimate is not None
    assert set(found.estimate.gpu_bytes) == {"GPU-0"}


def test_nobody_grows_before_everybody_has_the_least() -> None:
    questions = [question(name, gguf=dense(layer=100 * MIB), probe=probe(24)) for name in ("a", "b", "c")]
    plan = decide(questions, host(64, 24))
    assert all(found.refusal is None for found in plan.answers)
    assert all(values(found)["context"] >= 65_536 for found in plan.answers)


def test_the_smallest_servers_are_let_in_first_and_the_refusal_names_the_company() -> None:
    questions = [question("big", size=28, accelerator="cpu"), question("small", size=4, accelerator="cpu")]
    plan = decide(questions, host(64))
    big, small = plan.answers
    assert small.refusal is None
    assert big.refusal is not None
    assert big.refusal.code == "E0321"
    assert "beside small" in big.refusal.summary


def test_a_lone_model_may_spill_and_company_may_not() -> None:
    alone = decide([question("big", size=25)], host(64, 24))
    assert alone.answers[0].refusal is None
    both = decide([question("big", size=25), question("small", size=4)], host(64, 24))
    assert both.answers[0].refusal is not None
    assert both.answers[1].refusal is None


def test_company_is_named_and_pools_add_up() -> None:
    questions = [
        question("gpu", gguf=dense(layer=100 * MIB), probe=probe(24)),
        question("cpu", gguf=dense(layer=100 * MIB), accelerator="cpu"),
        question("other", gguf=dense(layer=100 * MIB), probe=probe(24)),
    ]
    plan = decide(questions, host(64, 24))
    named = {pool.pool: pool for pool in plan.pools}
    assert named["GPU-0"].servers == ("gpu", "other")
    assert "cpu" in named["ram"].servers
    estimates = [found.estimate for found in plan.answers if found.estimate]
    assert named["GPU-0"].planned_bytes == sum(found.gpu_bytes.get("GPU-0", 0) for found in estimates)
    assert named["ram"].planned_bytes == sum(found.ram_bytes for found in estimates)
    assert "resident with cpu, other" in plan.answers[1].notes


GEMMA = {"attention__sliding_window": 1024, "attention__sliding_window_pattern": 6}


def gemma(context: int) -> GgufSummary:
    table = dense().weights.layers
    return header("gemma3", 32, table, context, **GEMMA)


def test_a_full_windowed_cache_where_it_costs_nothing() -> None:
    short = question(gguf=gemma(8192), probe=probe(24))
    assert values(answer(short, host(64, 24)))["swaFull"] is True
    long = question(gguf=gemma(131_072), probe=probe(16))
    found = values(answer(long, host(64, 16)))
    assert "swaFull" not in found
    assert found["kvCache"] == "f16"


def test_gemma_gives_precision_for_a_second_slot() -> None:
    model = {"id": "gemma-9", "context_window": 65_536, "kv_bytes_per_token_f16": 120_000.0}
    traded = answer(question(size=8, model=model), host(64, 24))
    assert values(traded)["kvCache"] == "q8_0"
    assert values(traded)["slots"] == 2
    assert "second slot" in next(value.reason for value in traded.values if value.name == "kvCache")
    pinned = answer(question(size=8, model=model, server={"slots": 1}), host(64, 24))
    assert values(pinned)["kvCache"] == "f16"


DRAFTS = {"type": "draft-simple", "draftModelId": "small", "nMax": 8}


def test_a_drafter_that_costs_nothing_is_used() -> None:
    asked = question(
        gguf=dense(),
        probe=probe(24),
        model={"context_window": 131_072, "spec": DRAFTS},
        drafts={"small": "/m/small.gguf"},
        draft_gguf=dense(layers=4, layer=20 * MIB),
    )
    found = answer(asked, host(64, 24))
    assert found.spec.types == ("draft-simple",)
    assert found.estimate is not None
    assert found.estimate.figures.draft_bytes > 4 * 20 * MIB
    assert "spec.type" not in values(found)


def test_a_drafter_that_costs_context_is_left_out_with_the_reason() -> None:
    asked = question(
        gguf=dense(layer=560 * MIB),
        probe=probe(24),
        model={"context_window": 131_072, "spec": DRAFTS},
        drafts={"small": "/m/small.gguf"},
        draft_gguf=dense(layers=16, layer=200 * MIB),
    )
    found = answer(asked, host(64, 24))
    assert found.spec.types == ()
    assert values(found)["spec.type"] == "none"
    assert any("left out" in note for note in found.notes)


def test_a_drafter_of_another_vocabulary_is_refused_when_forced_and_dropped_when_not() -> None:
    other = header("llama", 4, dense(layers=4).weights.layers, 8192)
    other = msgspec.structs.replace(other, vocab_size=1000)
    forced = question(gguf=dense(), draft_gguf=other, spec=Spec(type="draft-simple", draft_model="/m/d.gguf"))
    found = answer(forced, host(64, 24))
    assert found.refusal is not None
    assert "128256 tokens" in found.refusal.summary
    free = question(
        gguf=dense(), draft_gguf=other, model={"context_window": 8192, "spec": DRAFTS}, drafts={"small": "/m/d.gguf"}
    )
    kept = answer(free, host(64, 24))
    assert kept.refusal is None
    assert values(kept)["spec.type"] == "none"


def test_a_broken_drafter_is_not_tried_again() -> None:
    asked = question(
        gguf=dense(),
        model={"context_window": 8192, "spec": DRAFTS},
        drafts={"small": "/m/d.gguf"},
        draft_gguf=dense(layers=2),
        broken_drafter="CUDA error: an illegal memory access",
    )
    found = answer(asked, host(64, 24))
    assert found.spec.types == ()
    assert "illegal memory access" in next(value.reason for value in found.values if value.name == "spec.type")


def test_a_projector_counts_only_when_vision_is_on() -> None:
    projector = PayloadFile("p.gguf", "mmproj", Origin("path", "/p.gguf"), "", GIB, optional=True)
    totals = []
    for vision in (False, True):
        asked = question(size=8, accelerator="cpu", server={"vision": vision, "context": 8192, "slots": 1})
        asked = msgspec.structs.replace(asked, files=(*asked.files, projector))
        found = answer(asked, host(64)).estimate
        assert found is not None
        totals.append(found.total_bytes)
    assert totals[1] - totals[0] == pytest.approx(GIB * 1.1 + 384 * MIB, abs=1)


def test_a_running_server_keeps_its_plan_while_it_fits() -> None:
    asked = question(gguf=dense(), probe=probe(24))
    first = answer(asked, host(64, 24))
    running = Running({value.name: value.value for value in first.values})
    squeezed = host(64, 24, free=(3.5,), held=Held({"GPU-0": 20 * GIB}))
    again = answer(question(gguf=dense(), probe=probe(24), running=running), squeezed)
    fresh = answer(asked, squeezed)
    assert values(again) == values(first)
    assert values(fresh) == values(first) or values(fresh)["context"] <= values(first)["context"]
    more = answer(question(gguf=dense(), probe=probe(24), running=running), host(64, 48))
    assert values(more)["context"] == values(first)["context"]


def test_a_running_server_gives_way_when_another_needs_room() -> None:
    alone = answer(question("a", gguf=dense(), probe=probe(24)), host(64, 24))
    running = Running({value.name: value.value for value in alone.values})
    both = decide(
        [
            question("a", gguf=dense(), probe=probe(24), running=running),
            question("b", gguf=dense(layer=100 * MIB), probe=probe(24)),
        ],
        host(64, 24),
    )
    assert all(found.refusal is None for found in both.answers)
    assert values(both.answers[0])["context"] < values(alone)["context"]


def test_an_explicit_value_wins_over_a_running_one() -> None:
    running = Running({"context": 131_072, "slots": 1, "kvCache": "q8_0"})
    asked = question(gguf=dense(), probe=probe(24), server={"context": 16_384}, running=running)
    found = answer(asked, host(64, 24))
    assert found.estimate is not None
    assert found.estimate.context == 16_384
    assert "context" not in values(found)


def test_mlx_counts_in_the_sum_and_gets_concurrency() -> None:
    asked = question("mlx", size=8, engine="mlx", accelerator="metal")
    found = answer(asked, host(64, working_set=48))
    assert set(values(found)) == {"decodeConcurrency"}
    assert found.estimate is not None
    assert found.estimate.ram_bytes > 8 * GIB


def test_unified_memory_is_one_pool() -> None:
    found = answer(question(gguf=dense(), accelerator="metal"), host(64, working_set=48))
    assert found.estimate is not None
    assert found.estimate.gpu_bytes == {}
    assert "nGpuLayers" not in values(found)
    assert found.estimate.ram_bytes <= 46 * GIB


def test_little_spare_memory_limits_the_prompt_cache() -> None:
    tight = values(answer(question(gguf=dense(layer=150 * MIB), accelerator="cpu"), host(16)))
    assert tight["cacheRamMib"] < 8192
    roomy = values(answer(question(gguf=dense(layer=50 * MIB, context=8192), accelerator="cpu"), host(128)))
    assert "cacheRamMib" not in roomy

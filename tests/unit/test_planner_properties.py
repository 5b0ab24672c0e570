"""Rules of the planner that hold for every host, model and set of servers."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gezelctl.engines.llama_cpp.planner import HostMemory, HostPlan, LaunchQuestion, Running, decide
from gezelctl.engines.llama_cpp.planner.ladder import clamp, ladder
from gezelctl.engines.llama_cpp.planner.request import STEP
from tests.plannermake import MIB, answer, dense, experts, header, host, probe, question, values

RAMS = st.sampled_from([8, 12, 16, 24, 32, 48, 64, 96, 128, 256])
CARDS = st.sampled_from([(), (8,), (12,), (16,), (24,), (48,), (24, 24), (16, 24), (80, 80)])
LAYERS = st.integers(20, 900)
KINDS = st.sampled_from(["catalog", "heuristic", "dense", "experts", "windowed"])


@st.composite
def questions(draw: st.DrawFn, name: str = "chat", cards: tuple[float, ...] = ()) -> LaunchQuestion:
    """A server with a model of any kind, and some of its values set by hand."""
    kind, layer = draw(KINDS), draw(LAYERS)
    more: dict[str, Any] = {}
    if kind == "catalog":
        more["model"] = {"kv_bytes_per_token_f16": float(draw(st.sampled_from([20_480, 65_536, 131_072])))}
    elif kind == "dense":
        more["gguf"] = dense(layer=layer * MIB)
    elif kind == "experts":
        more["gguf"] = experts(expert_bytes=layer * MIB)
    elif kind == "windowed":
        table = dense(layer=layer * MIB).weights.layers
        window = {"attention__sliding_window": 1024, "attention__sliding_window_pattern": 6}
        more["gguf"] = header("gemma3", 32, table, 131_072, **window)
    server: dict[str, Any] = {}
    if draw(st.booleans()):
        server["context"] = draw(st.sampled_from([2048, 16_384, 131_072]))
    if draw(st.booleans()):
        server["slots"] = draw(st.integers(1, 6))
    if draw(st.booleans()):
        server["kv_cache"] = draw(st.sampled_from(["f16", "q8_0", "q4_0"]))
    return question(
        name,
        size=layer / 32,
        accelerator=draw(st.sampled_from(["cuda", "cuda", "cpu"])),
        probe=probe(*cards),
        server=server,
        **more,
    )


@st.composite
def several(draw: st.DrawFn) -> tuple[list[LaunchQuestion], HostMemory]:
    cards = draw(CARDS)
    names = draw(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=4, unique=True))
    return [draw(questions(name, cards)) for name in names], host(draw(RAMS), *cards)


def within(plan: HostPlan) -> None:
    for pool in plan.pools:
        assert 0 <= pool.planned_bytes <= pool.limit_bytes, pool


@settings(max_examples=150, deadline=None)
@given(several())
def test_no_pool_is_ever_over_its_limit_and_estimates_add_up(given_: tuple[list[LaunchQuestion], HostMemory]) -> None:
    asked, on = given_
    plan = decide(asked, on)
    within(plan)
    for found in plan.answers:
        assert (found.refusal is None) == (found.estimate is not None)
        if found.estimate:
            estimate = found.estimate
            assert estimate.total_bytes == estimate.ram_bytes + sum(estimate.gpu_bytes.values())
            figures = estimate.figures
            assert estimate.total_bytes == sum(getattr(figures, name) for name in figures.__struct_fields__)


@settings(max_examples=100, deadline=None)
@given(several(), st.randoms())
def test_the_order_of_servers_changes_nothing(given_: tuple[list[LaunchQuestion], HostMemory], random: Any) -> None:
    asked, on = given_
    shuffled = list(asked)
    random.shuffle(shuffled)
    assert decide(asked, on) == decide(shuffled, on)


@settings(max_examples=150, deadline=None)
@given(several())
def test_an_explicit_value_is_never_answered_and_always_priced(
    given_: tuple[list[LaunchQuestion], HostMemory],
) -> None:
    asked, on = given_
    by_name = {one.name: one.server for one in asked}
    for found in decide(asked, on).answers:
        server, chosen = by_name[found.server], values(found)
        for name, value in (("context", server.context), ("slots", server.slots), ("kvCache", server.kv_cache)):
            assert value is None or name not in chosen
        if found.estimate:
            assert found.estimate.context == (server.context or found.estimate.context)
            assert found.estimate.slots == (server.slots or found.estimate.slots)
            assert found.estimate.kv_cache == (server.kv_cache or found.estimate.kv_cache)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_more_memory_never_gives_less(data: st.DataObject) -> None:
    """Neither a refusal nor fewer tokens in total, but for windows being cut to whole steps and windows per slot.

    Each slot of a windowed model holds a window of its own, which a tier with one more slot pays for.
    """
    cards = data.draw(CARDS)
    asked = data.draw(questions(cards=cards))
    ram = data.draw(RAMS)
    grow = data.draw(st.sampled_from([1.02, 1.1, 1.3, 2]))
    small = answer(asked, host(ram, *cards))
    larger = tuple(card * grow for card in cards)
    bigger = question_on(asked, larger)
    large = answer(bigger, host(ram * grow, *larger))
    if small.estimate is None:
        return
    assert large.estimate is not None, large.refusal
    before, after = (found.estimate.context * found.estimate.slots for found in (small, large) if found.estimate)
    windows = large.estimate.slots if asked.gguf is not None and asked.gguf.get("attention.sliding_window") else 0
    assert after >= before - STEP * large.estimate.slots - 4096 * windows


def question_on(asked: LaunchQuestion, cards: tuple[float, ...]) -> LaunchQuestion:
    return msgspec.structs.replace(asked, probe=probe(*cards))


@settings(max_examples=100, deadline=None)
@given(several())
def test_a_plan_that_runs_is_kept(given_: tuple[list[LaunchQuestion], HostMemory]) -> None:
    asked, on = given_
    first = decide(asked, on)
    running = {
        found.server: Running({value.name: value.value for value in found.values}, found.spec.types)
        for found in first.answers
        if found.refusal is None
    }
    again = decide([msgspec.structs.replace(one, running=running.get(one.name)) for one in asked], on)
    within(again)
    kept = [(a.server, values(a)) for a in first.answers if a.server in running]
    assert [(a.server, values(a)) for a in again.answers if a.server in running] == kept


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.sampled_from([16_384, 65_536, 131_072]))
def test_slots_are_given_up_before_context(ram: int, planned: int, minimum: int) -> None:
    """With fewer slots than planned, one more slot would not have had the least window."""

    def window(slots: int) -> int:
        return clamp(131_072, slots, token_bytes=65_536, resident_bytes=4 << 30, budget_bytes=ram << 30, floor=1)

    grant = ladder(planned, minimum, window)
    if grant is None:
        assert window(1) < minimum
    else:
        assert grant.context >= minimum
        assert grant.slots == planned or window(grant.slots + 1) < minimum

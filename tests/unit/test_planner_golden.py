"""The planner's rules one by one, against golden values kept as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gezelctl.engines.llama_cpp.context import ContextRequest, plan_context
from gezelctl.engines.llama_cpp.geometry import read_geometry
from gezelctl.engines.llama_cpp.memory import context_bytes, context_line
from gezelctl.engines.llama_cpp.planner import budget, moe, request, slots
from gezelctl.engines.llama_cpp.planner.catalogprice import (
    heuristic_token_bytes,
    resident_bytes,
    resident_bytes_mlx,
)
from gezelctl.engines.llama_cpp.planner.coresidency import ceiling, shortfall
from gezelctl.engines.llama_cpp.planner.growth import grow
from gezelctl.engines.llama_cpp.planner.kvchoice import default_kv, scale_from_f16, trades_precision
from gezelctl.engines.llama_cpp.planner.ladder import Grant, clamp, ladder
from gezelctl.engines.llama_cpp.planner.swa import swa_verdict
from gezelctl.observe.types import Facts, Gpu
from tests.launchmake import header_of

CASES = Path(__file__).parent.parent / "cases"
BUDGET: dict[str, Any] = yaml.safe_load((CASES / "planner" / "budget.yaml").read_text())
WINDOW: dict[str, Any] = yaml.safe_load((CASES / "planner" / "window.yaml").read_text())
MEMORY: dict[str, Any] = yaml.safe_load((CASES / "planner" / "memory.yaml").read_text())
GOLDEN: dict[str, Any] = yaml.safe_load((CASES / "memory" / "golden.yaml").read_text())
GIB = 1 << 30
KIB = 1 << 10


def gib(value: float) -> int:
    return int(value * GIB)


def near(found: int, wanted: float) -> bool:
    """Equal but for the byte that a fraction of a GiB is cut by, once a sum of two curves."""
    return abs(found - gib(wanted)) <= 2


def label(case: dict[str, Any]) -> str:
    return str(case.get("name") or ", ".join(f"{key} {value}" for key, value in case.items()))


@pytest.mark.parametrize("case", BUDGET["capacity"], ids=label)
def test_capacity(case: dict[str, Any]) -> None:
    found = budget.capacity(case["shape"], gib(case["ram"]), gib(case.get("vram", 0)), gib(case.get("explicit", 0)))
    if not case.get("enforced", True):
        assert not found.enforced
        return
    assert near(found.budget_bytes, case["budget"])
    assert near(found.fast_bytes, case["fast"])
    assert near(found.sizing_bytes, case["sizing"])


@pytest.mark.parametrize("case", BUDGET["shapes"], ids=label)
def test_shape(case: dict[str, Any]) -> None:
    shape = budget.host_shape(
        gib(case["ram"]), gib(case["vram"]), unified=case.get("unified"), apple_silicon=case.get("apple", False)
    )
    assert shape == case["shape"]


def facts_of(given: dict[str, Any]) -> Facts:
    gpus = tuple(
        Gpu(f"GPU-{i}", "Card", gib(gpu["total"]), gib(gpu["free"]), gpu.get("kind", "discrete"))
        for i, gpu in enumerate(given.get("gpus", ()))
    )
    return Facts(
        host="h",
        os=given.get("os", "linux"),
        os_version="",
        arch=given.get("arch", "x86_64"),
        cpus=8,
        memory_total_bytes=gib(given["ram"]),
        memory_available_bytes=gib(given["available"]),
        gpus=gpus,
        recommended_working_set_bytes=gib(given.get("workingSet", 0)),
    )


@pytest.mark.parametrize("case", BUDGET["hosts"], ids=label)
def test_host_memory(case: dict[str, Any]) -> None:
    held = case.get("held", {"gpu": (), "ram": 0})
    by_gpu = {f"GPU-{i}": gib(size) for i, size in enumerate(held["gpu"])}
    host = budget.host_memory(facts_of(case["facts"]), budget.Held(by_gpu, gib(held["ram"])))
    assert [near(card.usable_bytes, wanted) for card, wanted in zip(host.cards, case["cards"], strict=True)].count(
        False
    ) == 0
    assert near(host.ram_bytes, case["ram"])
    assert host.capacity.fast_bytes <= host.capacity.budget_bytes
    assert host.capacity.budget_bytes <= host.card_bytes + host.ram_bytes


def test_a_stated_budget_narrows_the_pools_too() -> None:
    facts = facts_of({"ram": 64, "available": 60, "gpus": [{"total": 24, "free": 24}]})
    host = budget.host_memory(facts, explicit_bytes=gib(12))
    assert host.card_bytes == gib(12)
    assert host.ram_bytes == 0
    free = budget.host_memory(facts, explicit_bytes=gib(0.5))
    assert free.card_bytes >= gib(10_000)


def test_constrained_hosts() -> None:
    def constrained(given: dict[str, Any]) -> bool:
        return budget.host_memory(facts_of({"available": given["ram"], **given})).constrained

    assert constrained({"ram": 16})
    assert not constrained({"ram": 32})
    assert constrained({"ram": 64, "gpus": [{"total": 8, "free": 8}]})
    assert not constrained({"ram": 16, "gpus": [{"total": 12, "free": 12}]})


@pytest.mark.parametrize(("fast", "wanted"), WINDOW["tiers"].items())
def test_tier_slots(fast: int, wanted: int) -> None:
    assert slots.tier_slots(gib(fast)) == wanted


@pytest.mark.parametrize("case", WINDOW["planned"], ids=label)
def test_planned_slots(case: dict[str, Any]) -> None:
    assert slots.planned_slots(case["configured"], case["tier"], case["ceiling"]) == case["slots"]


@pytest.mark.parametrize("case", WINDOW["ceilings"], ids=label)
def test_slot_ceiling(case: dict[str, Any]) -> None:
    mlx = case.get("engine") == "mlx"
    resident = (resident_bytes_mlx if mlx else resident_bytes)(gib(case["weights"]))
    headroom = slots.MLX_HEADROOM if mlx else slots.LLAMA_CPP_HEADROOM
    assert slots.slot_ceiling(gib(case["pool"]), resident, gib(case["slot"]), headroom) == case["ceiling"]


@pytest.mark.parametrize("case", WINDOW["wishes"], ids=label)
def test_wish(case: dict[str, Any]) -> None:
    wish = request.context_wish(
        case["native"], case["floor"], explicit=case.get("explicit", 0), authored=case.get("authored", 0)
    )
    assert (wish.requested, wish.minimum, wish.target) == (case["requested"], case["minimum"], case["target"])


def test_floors() -> None:
    assert request.host_floor(constrained=True) == 32_768
    assert request.host_floor(constrained=False) == 65_536


@pytest.mark.parametrize("case", WINDOW["targets"], ids=label)
def test_growth_target(case: dict[str, Any]) -> None:
    assert request.growth_target(case["native"], case["requested"], case.get("authored", 0)) == case["target"]


def window_of(case: dict[str, Any], slots: int, wanted: int, budget_key: str = "budget", floor: int = 8192) -> int:
    live = case.get("live")
    return clamp(
        wanted,
        slots,
        token_bytes=case["token"] * KIB,
        resident_bytes=gib(case["resident"]),
        budget_bytes=gib(case[budget_key]),
        live_bytes=None if live is None else gib(live),
        floor=case.get("floor", floor),
    )


@pytest.mark.parametrize("case", WINDOW["clamps"], ids=label)
def test_clamp(case: dict[str, Any]) -> None:
    assert window_of(case, case["slots"], case["requested"]) == case["window"]


@pytest.mark.parametrize("case", WINDOW["ladders"], ids=label)
def test_ladder(case: dict[str, Any]) -> None:
    grant = ladder(case["slots"], case["minimum"], lambda slots: window_of(case, slots, case["requested"], floor=1))
    assert grant == (None if case["granted"] is None else Grant(*case["granted"]))


@pytest.mark.parametrize("case", WINDOW["growths"], ids=label)
def test_growth(case: dict[str, Any]) -> None:
    base, target = Grant(case["slots"], case["base"]), case["target"]

    def window(slots: int) -> int:
        return window_of(case, slots, target, "fast", floor=1)

    assert grow(base, target, pinned=case.get("pinned", False), window=window) == Grant(*case["granted"])


@pytest.mark.parametrize("case", WINDOW["swa"], ids=label)
def test_swa_verdict(case: dict[str, Any]) -> None:
    full, windowed = (Grant(*case[key]) if case[key] else None for key in ("full", "windowed"))
    verdict = swa_verdict(full, windowed, case["planned"], 65_536, fits_fast=case["fast"])
    assert verdict.full is case["use"]
    assert verdict.grant == (full if case["use"] else windowed)
    assert verdict.reason


@pytest.mark.parametrize("case", MEMORY["resident"], ids=label)
def test_resident_bytes(case: dict[str, Any]) -> None:
    found = (
        resident_bytes_mlx(case["weights"])
        if case["engine"] == "mlx"
        else resident_bytes(case["weights"], case.get("mmproj", 0), case.get("draft", 0))
    )
    assert found == case["bytes"]


@pytest.mark.parametrize(("kv", "scale"), MEMORY["scales"].items())
def test_kv_scales(kv: str, scale: float) -> None:
    assert scale_from_f16(kv) == scale


@pytest.mark.parametrize("case", MEMORY["heuristics"], ids=label)
def test_heuristic_price(case: dict[str, Any]) -> None:
    assert heuristic_token_bytes(case["weights"]) == case["token"]


@pytest.mark.parametrize("case", MEMORY["caches"], ids=label)
def test_cache_bytes(case: dict[str, Any]) -> None:
    named = GOLDEN["models"][case["golden"]] if "golden" in case else case
    geometry = read_geometry(header_of(named["architecture"], named["keys"]))
    asked = msgspec.convert(case["request"], ContextRequest)
    if "line" in case:
        line = context_line(geometry, asked)
        assert [line.bytes_per_token, line.fixed_bytes] == case["line"]
    else:
        assert context_bytes(geometry, asked, plan_context(asked, 0)) == case["bytes"]


@pytest.mark.parametrize("case", MEMORY["experts"], ids=label)
def test_moe_plan(case: dict[str, Any]) -> None:
    split = moe.ExpertSplit(gib(2), (gib(0.5),) * 40) if case.get("split", True) else None
    plan = moe.plan_moe(
        gib(case["vram"]),
        resident_bytes=gib(case.get("resident", 22)),
        split=split,
        kv_bytes=gib(case.get("kv", 0)),
        additional_bytes=gib(case.get("additional", 0)),
        moe=case.get("moe", True),
    )
    wanted = case["plan"]
    assert plan == (None if wanted is None else msgspec.convert(wanted, moe.MoePlan))


@pytest.mark.parametrize("case", MEMORY["ladder"], ids=label)
def test_next_plan_down(case: dict[str, Any]) -> None:
    after = moe.next_plan_down(msgspec.convert(case["plan"], moe.MoePlan), case.get("pinned", ()))
    assert after == (None if case["next"] is None else msgspec.convert(case["next"], moe.MoePlan))


@pytest.mark.parametrize("case", MEMORY["company"], ids=label)
def test_shortfall(case: dict[str, Any]) -> None:
    host = budget.host_memory(facts_of({"ram": 64, "available": 64, "gpus": [{"total": 32, "free": 32}]}))
    assert near(ceiling(host), 30.4)
    held = {name: gib(size) for name, size in case["held"].items()}
    assert near(shortfall(host, held, case["key"], gib(case["wants"])), case["short"])


def test_kv_defaults_and_the_trade() -> None:
    assert default_kv(None, "gemma4-12b-q4", None)[0] == "f16"
    assert default_kv(header_of("gemma3", {}), "any", None)[0] == "f16"
    assert default_kv(None, "qwen3.5-9b-q4", None)[0] == "q8_0"
    assert default_kv(None, "qwen3.5-9b-q4", "off")[0] == "f16"
    odd = header_of("llama", {"embedding_length": 400, "attention.head_count": 10})
    assert default_kv(odd, "any", None)[0] == "f16"
    assert trades_precision(tier=2, f16_slots=1, q8_slots=2, decided=False)
    assert not trades_precision(tier=2, f16_slots=2, q8_slots=2, decided=False)
    assert not trades_precision(tier=2, f16_slots=1, q8_slots=1, decided=False)
    assert not trades_precision(tier=1, f16_slots=1, q8_slots=2, decided=False)
    assert not trades_precision(tier=2, f16_slots=1, q8_slots=2, decided=True)

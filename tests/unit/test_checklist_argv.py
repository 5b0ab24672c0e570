"""Where each launch value comes from, and what the command line makes of it, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from gezelctl.config.model import Spec
from gezelctl.engines.launch import render
from gezelctl.engines.types import Value
from tests.launchmake import gguf, request

SERVER, BACKEND, CATALOG = "server", "backend", "catalog"


def argv(planned: tuple[Value, ...] = (), build: str = "b11434", **case: Any) -> tuple[str, ...]:
    found = render(request(build, planned=planned, **case))
    assert found.spec is not None, found.diagnostics
    return found.spec.argv


def after(words: tuple[str, ...], flag: str) -> str:
    return words[words.index(flag) + 1] if flag in words else ""


def layers(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """A request in which each of these layers sets an option."""
    case: dict[str, Any] = {}
    if SERVER in values:
        case["server"] = {"engine_options": {name: values[SERVER]}}
    if BACKEND in values:
        case["backend"] = {"engineOptions": {name: values[BACKEND]}}
    if CATALOG in values:
        case["model"] = {"engine_options": {name: values[CATALOG]}}
    if "planner" in values:
        case["planned"] = (Value(name, values["planner"], "planner", "fits"),)
    return case


PRECEDENCE = [
    ("nGpuLayers", "--n-gpu-layers", {SERVER: 1, BACKEND: 2, CATALOG: 3, "planner": 4}),
    ("nCpuMoe", "--n-cpu-moe", {SERVER: 1, BACKEND: 2, CATALOG: 3, "planner": 4}),
    ("cacheReuse", "--cache-reuse", {SERVER: 1, BACKEND: 2, CATALOG: 3}),
    ("threads", "--threads", {SERVER: 1, BACKEND: 2, CATALOG: 3}),
    ("batchSize", "--batch-size", {SERVER: 64, BACKEND: 128, CATALOG: 256}),
    ("ubatchSize", "--ubatch-size", {SERVER: 64, BACKEND: 128, CATALOG: 256}),
    ("flashAttn", "--flash-attn", {SERVER: "on", BACKEND: "auto", CATALOG: "on"}),
    ("reasoningBudget", "--reasoning-budget", {SERVER: 1, BACKEND: 2}),
    ("cacheRamMib", "--cache-ram", {SERVER: 1, BACKEND: 2, "planner": 4}),
]


@pytest.mark.parametrize(("name", "flag", "values"), PRECEDENCE, ids=[case[0] for case in PRECEDENCE])
def test_server_over_backend_over_catalog_over_planner(name: str, flag: str, values: dict[str, Any]) -> None:
    left = dict(values)
    for layer, value in values.items():
        assert after(argv(**layers(name, left)), flag) == str(value), layer
        del left[layer]


@pytest.mark.parametrize(("given", "word"), [(-1, "all"), (0, "0"), (17, "17")])
def test_layers(given: int, word: str) -> None:
    assert after(argv(**layers("nGpuLayers", {SERVER: given})), "--n-gpu-layers") == word
    old = argv(build="ancient", **layers("nGpuLayers", {SERVER: given}))
    assert after(old, "--n-gpu-layers") == {"all": "999"}.get(word, word)


def test_nothing_is_said_of_the_offload_that_nobody_decides() -> None:
    words = argv()
    assert not {"--n-gpu-layers", "--cpu-moe", "--n-cpu-moe", "--fit", "--tensor-split"} & set(words)


@pytest.mark.parametrize(
    ("server", "planner", "flag"),
    [
        ({"cpuMoe": True, "nCpuMoe": 4}, {}, "--cpu-moe"),
        ({"cpuMoe": True}, {"nCpuMoe": 9}, "--cpu-moe"),
        ({"cpuMoe": False}, {"nCpuMoe": 9}, ""),
        ({"cpuMoe": False, "nCpuMoe": 4}, {"nCpuMoe": 9}, "--n-cpu-moe"),
        ({}, {"nCpuMoe": 9}, "--n-cpu-moe"),
        ({}, {"cpuMoe": True}, "--cpu-moe"),
        ({"cpuMoe": False}, {"cpuMoe": True}, ""),
    ],
)
def test_the_whole_form_wins_over_the_partial_one(server: dict[str, Any], planner: dict[str, Any], flag: str) -> None:
    planned = tuple(Value(name, value, "planner", "fits") for name, value in planner.items())
    words = argv(planned, server={"engine_options": server})
    assert {word for word in words if word.endswith("cpu-moe")} == ({flag} if flag else set())
    if flag == "--n-cpu-moe":
        assert after(words, flag) == str(server.get("nCpuMoe", 9))


@pytest.mark.parametrize(
    ("kv", "flash", "word"),
    [
        ("q8_0", None, "on"),
        ("f16", None, ""),
        ("f16", "on", "on"),
        ("f16", "off", "off"),
        ("q8_0", "auto", "auto"),
        (None, "off", "off"),
    ],
)
def test_flash_attention_agrees_with_the_cache_type(kv: str | None, flash: str | None, word: str) -> None:
    options = {"engine_options": {"flashAttn": flash} if flash else {}}
    words = argv(server={**options, **({"kv_cache": kv} if kv else {})})
    assert after(words, "--flash-attn") == word
    assert after(words, "--cache-type-k") == after(words, "--cache-type-v") == (kv or "f16")


@pytest.mark.parametrize(("given", "word"), [(None, "256"), (0, ""), (64, "64")])
def test_cache_reuse(given: int | None, word: str) -> None:
    case = layers("cacheReuse", {SERVER: given} if given is not None else {})
    assert after(argv(**case), "--cache-reuse") == word


@pytest.mark.parametrize(("given", "there"), [(None, False), (False, False), (True, True)])
def test_a_full_cache_only_when_somebody_wants_it(given: bool | None, there: bool) -> None:
    values = {SERVER: given, CATALOG: True} if given is not None else {}
    assert ("--swa-full" in argv(**layers("swaFull", values))) is there


def test_extra_arguments_stand_last_but_for_what_completes_a_launch() -> None:
    words = argv(roles=("mmproj",), server={"vision": True, "extra_args": {"temp": 0.5, "threads": 3}})
    ours = [words.index(flag) for flag in ("--model", "--ctx-size", "--cache-type-k", "--cache-reuse")]
    extra = [words.index(flag) for flag in ("--temp", "--threads")]
    tail = [words.index(flag) for flag in ("--mmproj", "--offline", "--log-verbosity")]
    assert max(ours) < min(extra)
    assert max(extra) < min(tail)


def test_an_extra_argument_wins_over_the_option_and_is_told() -> None:
    found = render(request(server={"engine_options": {"threads": 4}, "extra_args": {"threads": 3}}))
    assert found.spec is not None
    assert found.spec.argv.count("--threads") == 1
    assert after(found.spec.argv, "--threads") == "3"
    assert [d.code for d in found.diagnostics] == ["E0310"]


@pytest.mark.parametrize(("value", "words"), [(True, ["--check-tensors"]), (False, [])])
def test_a_switch_is_bare_or_left_out(value: bool, words: list[str]) -> None:
    found = argv(server={"extra_args": {"check_tensors": value}})
    assert [word for word in found if "check-tensors" in word] == words


def test_none_turns_the_catalogs_speculation_off() -> None:
    wanted = {"spec": {"type": "ngram-mod", "nMax": 8}}
    assert "--spec-type" in argv(model=wanted)
    assert not [word for word in argv(model=wanted, server={"spec": Spec(type="none")}) if "spec" in word]


def test_gemma_keeps_its_precision_and_others_do_not() -> None:
    header = gguf("gemma3")
    assert after(argv(header=header, model={"id": "gemma-3-4b-q4"}), "--cache-type-k") == "f16"
    assert after(argv(), "--cache-type-k") == "q8_0"

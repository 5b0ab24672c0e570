"""What holds for any models.yaml: generated files of one to five servers, planned, applied on paper, planned again."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gezelctl.cli.common import plan_exit_code
from gezelctl.cli.plan_view import plan_document
from gezelctl.observe.types import Observed
from gezelctl.plan.inputs import PlanInputs, PlanOptions
from gezelctl.plan.planner import make_plan
from gezelctl.plan.render_json import plan_from_json, plan_json
from tests.plancase import GIB, decoded, inputs, named, overlay, plain_host
from tests.simulate import converged

HUB = "huggingface"
CATALOG: dict[str, Any] = {
    "apiVersion": "gezelctl/v1",
    "kind": "Catalog",
    "models": [
        {
            "id": name,
            "name": name,
            "version": "1.0.0",
            "contextWindow": 8192,
            "kvBytesPerTokenF16": 32768,
            "llamaCpp": {
                "huggingfaceRepo": f"lab/{name}-GGUF",
                "revision": "0123456789abcdef0123456789abcdef01234567",
                "filename": f"{name}.gguf",
                "sha256": digit * 64,
                "approxSizeBytes": GIB,
                "mmproj": {"filename": "mmproj.gguf", "sha256": "2" * 64, "sizeBytes": 1 << 28},
                "draftModel": {"filename": "draft.gguf", "sha256": "5" * 64, "sizeBytes": 1 << 27},
            },
            "mlx": {
                "huggingfaceRepo": f"lab/{name}-4bit",
                "approxSizeBytes": GIB,
                "files": [
                    {"name": "config.json", "sha256": "3" * 64, "sizeBytes": 900},
                    {"name": "model.safetensors", "sha256": digit * 64, "sizeBytes": GIB},
                ],
            },
        }
        for name, digit in (("small", "1"), ("other", "7"))
    ],
}
BACKENDS = {
    "cpu": {"engine": "llama-cpp", "binary": "/opt/llama.cpp/b11434/llama-server"},
    "old": {"engine": "llama-cpp", "binary": "/opt/llama.cpp/b10434/llama-server", "engineOptions": {"threads": 2}},
    "inside": {"engine": "llama-cpp", "embedded": True},
    "mac": {"engine": "mlx", "accelerator": "metal", "python": "/opt/mlx/bin/python"},
}
PROBES = {"cpu": "llama-server", "old": "llama-server-old", "inside": "embedded", "mac": "mlx"}
FILES = {name: (name[0] + digit) * 32 for name, digit in (("alpha", "a"), ("beta", "b"), ("cedar", "c"))}
PLANTED = "planted-4471"
"""In the digests of keys, which a plan compares and never shows."""

LLAMA_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "threads": st.integers(1, 16),
        "batchSize": st.sampled_from([256, 2048]),
        "flashAttn": st.sampled_from(["on", "auto"]),
        "cacheReuse": st.sampled_from([0, 128]),
        "kvUnified": st.booleans(),
        "loadMode": st.sampled_from(["auto", "none", "mmap"]),
        "reasoningBudget": st.integers(-1, 99),
        "metrics": st.booleans(),
        "cacheRamMib": st.sampled_from([0, 256]),
    },
)
MLX_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "promptCacheMib": st.sampled_from([0, 256]),
        "maxTokens": st.integers(1, 4096),
        "decodeConcurrency": st.integers(1, 8),
    },
)
EXTRA = st.fixed_dictionaries({}, optional={"temp": st.sampled_from([0, 0.5, 1]), "top-k": st.integers(1, 50)})
SOURCES = st.one_of(
    st.sampled_from(sorted(FILES)).map(lambda name: {"path": f"/data/{name}.gguf"}),
    st.sampled_from("89").map(
        lambda digit: {"url": f"https://models.lab.example/{digit}.gguf", "sha256": digit * 64, "sizeBytes": GIB}
    ),
    st.just({HUB: "lab/hub-GGUF", "filename": "hub.gguf", "sha256": "6" * 64, "sizeBytes": GIB}),
)
COMMON = {
    "alias": st.sampled_from(["served", "chat-model"]),
    "startTimeoutS": st.integers(1, 900),
    "extraArgs": EXTRA,
    "env": st.just({"OMP_NUM_THREADS": "2"}),
}
LLAMA = {
    "context": st.sampled_from([512, 1000, 4096, 8192]),
    "slots": st.integers(1, 3),
    "kvCache": st.sampled_from(["f16", "q8_0"]),
    "engineOptions": LLAMA_OPTIONS,
    "apiKey": st.just({"fromEnv": "LAB_KEY"}),
    "spec": st.sampled_from([{"type": "ngram-mod", "nMax": 16}, {"type": "none"}]),
    **COMMON,
}


@st.composite
def servers(draw: st.DrawFn, name: str, port: int) -> dict[str, Any]:
    backend = draw(st.sampled_from(["cpu", "cpu", "old", "inside", "mac"]))
    if backend == "mac":
        more = draw(st.fixed_dictionaries({}, optional={"engineOptions": MLX_OPTIONS, **COMMON}))
        return {"name": name, "port": port, "backend": backend, "model": draw(MODELS), **more}
    server = {"name": name, "port": port, **draw(st.fixed_dictionaries({}, optional=LLAMA))}
    if backend != "cpu" or draw(st.booleans()):
        server["backend"] = backend
    if backend == "inside":  # it has no flag for this
        server.pop("spec", None)
    if draw(st.booleans()):
        server["model"] = draw(MODELS)
        if draw(st.booleans()):
            server["vision"] = True
        elif draw(st.booleans()):
            server["spec"] = {"type": "draft-simple", "nMax": 4}
    else:
        server["source"] = draw(SOURCES)
    return server


MODELS = st.sampled_from(["small", "small@1.0.0", "other"])
NAMES = ["ant", "bee", "cat", "dog", "elk"]


@st.composite
def stacks(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    ports = draw(st.permutations([8081, 8082, 8083, 8084, 8085]))
    listed = [draw(servers(name, port)) for name, port in zip(names, ports, strict=False)]
    defaults: dict[str, Any] = {"backend": "cpu"}
    if draw(st.booleans()):
        defaults["startTimeoutS"] = draw(st.integers(1, 600))
    models: dict[str, Any] = {
        "apiVersion": "gezelctl/v1",
        "stack": "lab",
        "catalogs": [{"path": "./catalog.yaml"}],
        "backends": BACKENDS,
        "defaults": defaults,
        "models": listed,
    }
    if draw(st.booleans()):
        chosen = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        models["hosts"] = {"lab-01": {"models": chosen}, "lab-02": {}}
    return models


@cache
def builds() -> dict[str, Any]:
    data: dict[str, Any] = named({name: {"probe": probe, "backend": name} for name, probe in PROBES.items()})
    return data


def seen(models: Mapping[str, Any], **more: Any) -> Observed:
    """What a host with the files and engines of these tests shows; keys are set, with `PLANTED` as digest."""
    sources = {
        f"/data/{name}.gguf": {
            "path": f"/data/{name}.gguf",
            "kind": "file",
            "sizeBytes": 98_362_432,
            "sha256": digest,
            "fileSystem": 1,
            "gguf": {"header": "smollm2"},
        }
        for name, digest in FILES.items()
    }
    secrets = {f"{server['name']}/LLAMA_API_KEY": PLANTED for server in models["models"] if "apiKey" in server}
    return decoded(overlay(plain_host(), named({"engines": builds(), "sources": sources, "secrets": secrets, **more})))


def given_for(models: dict[str, Any], observed: Observed | None = None, **options: Any) -> PlanInputs:
    with tempfile.TemporaryDirectory() as folder:
        return inputs(Path(folder), models, observed or seen(models), options, CATALOG)


def without_places(value: Any) -> Any:
    """A plan as data without where in the file things stand, and without the digest of the file itself."""
    if isinstance(value, dict):
        return {k: without_places(v) for k, v in value.items() if k not in {"place", "snippet", "source", "checksum"}}
    return [without_places(item) for item in value] if isinstance(value, list) else value


GENERATED = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@GENERATED
@given(stacks())
def test_apply_then_plan_is_empty(models: dict[str, Any]) -> None:
    wanted = given_for(models)
    plan = make_plan(wanted)
    event(f"applyable: {plan.applyable}")
    assert plan.applyable, [(c.address, c.cause) for c in plan.changes if c.action == "blocked"] + list(
        map(str, plan.diagnostics)
    )
    again = make_plan(replace(wanted, observed=converged(plan, wanted.observed)))
    assert [(c.address, c.action, c.cause) for c in again.changes if c.action != "noop"] == []
    assert again.applyable
    assert plan_exit_code(again, detailed=True) == 0
    assert {c.address for c in again.changes} == {f"server.{s.name}" for s in wanted.desired.servers}


@GENERATED
@given(stacks(), st.randoms(use_true_random=False))
def test_the_order_of_the_file_changes_nothing(models: dict[str, Any], random: Any) -> None:
    shuffled = deepcopy(models)
    random.shuffle(shuffled["models"])
    for server in shuffled["models"]:
        keys = list(server)
        random.shuffle(keys)
        moved = {key: server[key] for key in keys}
        server.clear()
        server.update(moved)
    shuffled = dict(reversed(shuffled.items()))
    wanted = given_for(models)
    plan, other = make_plan(wanted), make_plan(given_for(shuffled))
    assert plan.digest == other.digest
    assert without_places(json.loads(plan_json(plan))) == without_places(json.loads(plan_json(other)))
    settled = converged(plan, wanted.observed)
    assert make_plan(given_for(shuffled, settled)).summary.changes == 0


@GENERATED
@given(stacks(), st.data())
def test_the_exit_code_is_what_the_json_says(models: dict[str, Any], data: st.DataObject) -> None:
    """Planned anew, after an apply, with a port taken, and with nothing left in the file."""
    wanted = given_for(models)
    plan = make_plan(wanted)
    states = [plan, make_plan(replace(wanted, observed=converged(plan, wanted.observed)))]
    taken = data.draw(st.sampled_from(models["models"]))["port"]
    held = seen(models, ports=[{"port": taken, "host": "0.0.0.0", "pid": 77, "command": "nginx"}])
    states.append(make_plan(replace(wanted, observed=held)))
    states.append(make_plan(given_for(models | {"models": []} | {"hosts": {}}, converged(plan, wanted.observed))))
    for state in states:
        document = json.loads(plan_json(state))
        summary = document["summary"]
        changes = sum(summary.get(kind, 0) for kind in ("create", "update", "restart", "delete", "fetch", "link"))
        expected = 7 if not document.get("applyable") else 2 if changes else 0
        for read in (state, plan_from_json(plan_json(state))):
            assert plan_exit_code(read, detailed=True) == expected
            assert plan_exit_code(read, detailed=False) == (7 if expected == 7 else 0)
        assert bool(summary.get("blocked")) == any(c.action == "blocked" for c in state.changes)


EDITS: dict[str, Any] = {
    "context": st.sampled_from([640, 2048]),
    "slots": st.just(4),
    "kvCache": st.just("bf16"),
    "alias": st.just("edited"),
    "port": st.just(8099),
    "source": st.just({"path": "/data/edited.gguf"}),
    "startTimeoutS": st.just(1234),
    "extraArgs": st.just({"temp": 0.25}),
}
MLX_EDITS = {"alias", "port", "startTimeoutS", "extraArgs"}


@GENERATED
@given(stacks(), st.data())
def test_an_edit_of_one_server_changes_that_server_alone(models: dict[str, Any], data: st.DataObject) -> None:
    models = {key: value for key, value in models.items() if key != "hosts"}
    wanted = given_for(models)
    observed = converged(make_plan(wanted), wanted.observed)
    observed = replace(observed, sources={**observed.sources, "/data/edited.gguf": edited_file()})
    edited = deepcopy(models)
    server = data.draw(st.sampled_from(edited["models"]))
    field = data.draw(st.sampled_from(sorted(MLX_EDITS if server.get("backend") == "mac" else EDITS)))
    server[field] = data.draw(EDITS[field])
    if field == "source":
        for key in ("model", "vision", "spec"):
            server.pop(key, None)
    if field == "slots":  # the plan keeps what runs while it fits; a window that was grown may not
        server.setdefault("context", 512)
    plan = make_plan(given_for(edited, observed))
    event(field)
    acting = {c.address: c for c in plan.changes if c.action != "noop"}
    own = {f"server.{server['name']}"} | ({f"payload.llama-cpp.{payload_of(server)}"} if field == "source" else set())
    assert set(acting) == own, field
    change = acting[f"server.{server['name']}"]
    assert change.action == ("update" if field == "startTimeoutS" else "restart")
    shown = {f.path for f in change.fields}
    assert shown, change
    assert field == "source" or any(field in path or path in field for path in shown), shown


def payload_of(server: Mapping[str, Any]) -> str:
    return str(server["name"])


def edited_file() -> Any:
    raw = seen({"models": []}, sources={"/data/edited.gguf": {
        "path": "/data/edited.gguf", "kind": "file", "sizeBytes": 98_362_432, "sha256": "ed" * 32, "fileSystem": 1,
        "gguf": {"header": "smollm2"}}})  # fmt: skip
    return raw.sources["/data/edited.gguf"]


@settings(max_examples=40, deadline=None)
@given(stacks(), st.booleans())
def test_no_planted_secret_is_in_any_rendering(models: dict[str, Any], unchanged: bool) -> None:
    wanted = given_for(models)
    first = make_plan(wanted)
    rotated = {name: f"{value}-new" for name, value in wanted.observed.secrets.items()}
    after = replace(converged(first, wanted.observed), secrets=rotated)
    second = make_plan(replace(wanted, observed=after))
    assert {c.address.partition(".")[2] for c in second.changes if c.action == "restart"} == {
        name.partition("/")[0] for name in rotated if name.partition("/")[0] in {s.name for s in wanted.desired.servers}
    }
    for plan in (first, second, make_plan(replace(wanted, options=PlanOptions(destroy=True), observed=after))):
        for kind in ("text", "wide", "json", "yaml", "markdown", "html", "name"):
            assert PLANTED not in plan_document(plan, kind, show_unchanged=unchanged), kind

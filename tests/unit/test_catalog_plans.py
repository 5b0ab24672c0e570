"""Every model of a real catalog planned by itself, with each engine that it has files for."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from gezelctl.catalog.gilde import GildeCatalog
from gezelctl.catalog.types import Engine
from gezelctl.catalog.versions import ModelRef
from gezelctl.cli.plan_view import plan_document
from gezelctl.plan.inputs import PlanInputs
from gezelctl.plan.planner import make_plan
from gezelctl.plan.types import Change, Plan
from tests.plancase import GIB, after, decoded, inputs, named, overlay, plain_host

CHOSEN = (
    "deepseek-v4-flash-284b-q2",
    "gemma4-e4b-q4",
    "gemma4-31b-q4",
    "gpt-oss-20b-q4",
    "lfm2.5-2.6b-q4",
    "llama3.2-3b-q4",
    "mistral-7b-q4",
    "nemotron3-nano-30b-q4",
    "qwen3.5-122b-a10b-q4",
    "qwen3.6-35b-a3b-q4",
)
"""Shards, shared and windowed caches, experts, hybrids, a template, projectors and drafters."""
BACKENDS: dict[str, Any] = {
    "llama-cpp": {"engine": "llama-cpp", "accelerator": "cpu", "binary": "/opt/llama.cpp/b11434/llama-server"},
    "mlx": {"engine": "mlx", "accelerator": "metal", "python": "/opt/mlx/bin/python"},
}
ENGINES: tuple[Engine, ...] = ("llama-cpp", "mlx")


def with_source(gilde: Path, engine: Engine) -> list[str]:
    catalog = GildeCatalog(gilde, "catalog")
    found = [catalog.find(ModelRef(listed.id, "")) for listed in catalog.listing()]
    return sorted(entry[0].id for entry in found if entry is not None and engine in entry[0].payloads)


def planned(gilde: Path, folder: Path, model: str, engine: Engine, **server: Any) -> tuple[Plan, PlanInputs]:
    """A plan of one server on a host of 512 GiB where nothing is installed."""
    models = {
        "apiVersion": "gezelctl/v1",
        "stack": "lab",
        "catalogs": [{"path": str(gilde.resolve())}],
        "backends": {"it": BACKENDS[engine]},
        "models": [{"name": "chat", "model": model, "port": 8081, "backend": "it", **server}],
    }
    probe = {"llama-cpp": "llama-server", "mlx": "mlx"}[engine]
    room = {"memoryTotalBytes": 512 * GIB, "memoryAvailableBytes": 500 * GIB}
    seen = named({"engines": {"it": {"probe": probe, "backend": "it"}}, "facts": room})
    given = inputs(folder, models, decoded(overlay(plain_host(), seen)), {}, None)
    return make_plan(given), given


def change_of(plan: Plan, address: str) -> Change:
    return next(change for change in plan.changes if change.address.startswith(address))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_model_gets_a_plan_that_can_be_read_and_applied(engine: Engine, gilde: Path, tmp_path: Path) -> None:
    listed = with_source(gilde, engine)
    assert len(listed) == {"llama-cpp": 44, "mlx": 37}[engine]
    for model in listed:
        plan, given = planned(gilde, tmp_path, model, engine)
        server = change_of(plan, "server.chat")
        if any("known not to load" in found.summary for found in plan.diagnostics):
            assert server.action == "blocked", model
            continue
        if server.reason == "does_not_fit":  # two are larger than what is planned of the RAM of any host
            assert not plan.applyable
            continue
        assert plan.applyable, (model, plan.diagnostics)
        assert server.launch is not None
        files = change_of(plan, "payload").files
        assert sum(action.size_bytes for action in files) > 0
        assert all(len(action.file.sha256) == 64 for action in files), model
        for kind in ("text", "markdown", "html", "json"):
            assert model in plan_document(plan, kind), (model, kind)
        assert after(plan, given).summary.changes == 0, model


@pytest.mark.parametrize("model", CHOSEN)
def test_chosen_models(model: str, gilde: Path, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """The plan with each engine, and the command line or the configuration that comes of it."""
    shown = []
    for engine in ENGINES:
        if model not in with_source(gilde, engine):
            continue
        plan, _ = planned(gilde, tmp_path, model, engine)
        launch = change_of(plan, "server.chat").launch
        shown += [f"# {engine}", plan_document(plan, "text")]
        if launch is not None:
            shown += [shlex.join(launch.argv).replace(" --", "\n--")]
            shown += [file.content for file in launch.config_files]
    assert "\n".join(shown) == snapshot

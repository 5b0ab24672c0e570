"""One plan case as data: models.yaml, a host, what is observed there; and what the planner makes of it.

A case file is a mapping: `title`; `models` (models.yaml as a mapping); optional `host`; `observed` (laid over a plain
host, camelCase as in a snapshot); `options`; `catalog` (a one-file catalog as a mapping); `steps`, a list of further
`{title, models?, observed?, options?}` planned on the host as it is after the step before was applied.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from gezelctl.catalog.resolve import resolve_servers
from gezelctl.config.loader import load_models
from gezelctl.config.select import for_host
from gezelctl.observe.types import Observed
from gezelctl.plan.inputs import Locations, PlanInputs, PlanOptions
from gezelctl.plan.planner import make_plan
from gezelctl.plan.types import Against, Plan, SourceFile
from tests.simulate import converged

GIB = 1 << 30
STORE = "/srv/gezelctl"
STATE = "/var/lib/gezelctl/state/lab"
CASES = Path(__file__).parent / "cases" / "plan"


def probe_data(name: str) -> dict[str, Any]:
    """A recorded engine probe (tests/cases/observe/probe-<name>.json)."""
    data: dict[str, Any] = json.loads((CASES.parent / "observe" / f"probe-{name}.json").read_text())
    return data


def plain_host() -> dict[str, Any]:
    """A Linux machine with 64 GiB, a roomy disk, and a current llama-server build for the backend `cpu`."""
    disk = {"freeBytes": 800 * GIB, "totalBytes": 1000 * GIB, "fileSystem": 1}
    return {
        "facts": {
            "host": "lab-01",
            "os": "linux",
            "osVersion": "6.1",
            "arch": "x86_64",
            "cpus": 16,
            "memoryTotalBytes": 64 * GIB,
            "memoryAvailableBytes": 60 * GIB,
            "disks": [{"path": STORE, **disk}, {"path": STATE, **disk}],
        },
        "engines": {"cpu": {**probe_data("llama-server"), "backend": "cpu"}},
        "storePath": STORE,
        "statePath": STATE,
        "state": {"stack": "lab", "lineage": "5f0c", "serial": 3},
    }


def named(data: Any) -> Any:
    """`{probe: NAME}` and `{header: NAME}` replaced by what was recorded under that name; other keys are laid over."""
    if isinstance(data, dict):
        filled = {key: named(value) for key, value in data.items()}
        for kind, recorded in (("probe", probe_data), ("header", header_data)):
            if kind in filled:
                filled = {**recorded(filled.pop(kind)), **filled}
        return filled
    return [named(item) for item in data] if isinstance(data, list) else data


def header_data(name: str) -> dict[str, Any]:
    """A recorded GGUF summary (tests/cases/headers/<name>.json)."""
    data: dict[str, Any] = json.loads((CASES.parent / "headers" / f"{name}.json").read_text())
    return data


def overlay(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`: mappings merge, everything else replaces."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = overlay(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def decoded(data: dict[str, Any]) -> Observed:
    """Plain data as an observation; by way of JSON, since a run record holds its launch undecoded."""
    return msgspec.json.decode(json.dumps(data), type=Observed)


class PlanCase:
    """A case file, and the plans that follow from it."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))

    def plans(self, folder: Path) -> Iterator[tuple[str, Plan, PlanInputs]]:
        """(title, plan, inputs) of the first state and of every step; `folder` is scratch space."""
        models, options = self._data["models"], self._data.get("options", {})
        observed = decoded(overlay(plain_host(), named(self._data.get("observed", {}))))
        given = inputs(folder, models, observed, options, self._data.get("catalog"))
        plan = make_plan(given)
        yield self._data["title"], plan, given
        for step in self._data.get("steps", []):
            observed = converged(plan, observed)
            if "observed" in step:
                observed = decoded(overlay(json.loads(msgspec.json.encode(observed)), named(step["observed"])))
            models = step.get("models", models)
            given = inputs(folder, models, observed, step.get("options", {}), self._data.get("catalog"))
            plan = make_plan(given)
            yield step["title"], plan, given


def inputs(
    folder: Path, models: dict[str, Any], observed: Observed, options: dict[str, Any], catalog: dict[str, Any] | None
) -> PlanInputs:
    """Planner inputs from plain data; models.yaml stands at /etc/gezelctl on the planned host."""
    path = folder / "models.yaml"
    path.write_text(yaml.safe_dump(models, sort_keys=False), encoding="utf-8")
    if catalog:
        (folder / "catalog.yaml").write_text(yaml.safe_dump(catalog, sort_keys=False), encoding="utf-8")
    with contextlib.chdir(folder):  # so that places read models.yaml:LINE wherever the test runs
        loaded = load_models(["models.yaml"])
    desired = for_host(
        loaded, observed.facts.host, home="/home/lab", base_dir=folder if catalog else Path("/etc/gezelctl")
    )
    resolved = resolve_servers(desired)
    return PlanInputs(
        desired=desired,
        resolved=resolved,
        observed=observed,
        locations={
            r.server.name: Locations(
                payload_dir=f"{STORE}/models/{r.payload.engine}/{r.payload.model_id}" if r.payload else "",
                slots_dir=f"{STATE}/slots/{r.server.name}",
                config_path=f"{STATE}/config/{r.server.name}.json",
            )
            for r in resolved
        },
        options=msgspec.convert(options, PlanOptions),
        source=(SourceFile(path="models.yaml", sha256="4f1c2ab9" * 8),),
        against=Against(kind="snapshot", seen="2026-01-12T14:02:00Z", path="lab-01.json", age_s=60),
        tool="gezelctl test",
    )


def after(plan: Plan, given: PlanInputs) -> Plan:
    """The plan on the host as it is once `plan` was applied."""
    return make_plan(replace(given, observed=converged(plan, given.observed)))

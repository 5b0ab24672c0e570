"""Every example is valid in an editor and for gezelctl, can be planned for each of its hosts, and settles."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from gezelctl.catalog.resolve import resolve_servers
from gezelctl.config import yaml12
from gezelctl.config.loader import load_models
from gezelctl.config.select import for_host
from gezelctl.observe.types import Observed
from gezelctl.plan.inputs import Locations, PlanInputs, PlanOptions
from gezelctl.plan.planner import make_plan
from gezelctl.plan.render_text import render_text
from gezelctl.plan.types import Against, SourceFile
from tests.conftest import REPO
from tests.plancase import STATE, STORE, after, decoded, named, overlay, plain_host

EXAMPLES = sorted((REPO / "examples").glob("*/models.yaml"))


def hosts(path: Path) -> list[str]:
    return sorted(load_models([str(path)]).model.hosts) or ["lab-01"]


def prepared_host(inputs_of: PlanInputs) -> Observed:
    """A host with every engine that the file names, and every local source in place."""
    engines, sources, folders = {}, {}, {}
    for item in inputs_of.resolved:
        backend = item.server.backend
        recorded = "mlx" if backend.engine == "mlx" else "embedded" if backend.embedded else "llama-server"
        engines[item.server.backend_name] = {"probe": recorded, "backend": item.server.backend_name}
        for file in item.files:
            if file.origin.kind == "path" and file.name:
                sources[file.origin.path] = {
                    "path": file.origin.path, "kind": "file", "sizeBytes": 98362432, "fileSystem": 1,
                    "sha256": file.sha256 or "a1" * 32, "gguf": {"header": "smollm2"},
                }  # fmt: skip
            elif file.origin.kind == "path":
                sources[file.origin.path] = {"path": file.origin.path, "kind": "directory"}
                folders[file.origin.path] = [["config.json", 700, "b2" * 32], ["model.safetensors", 4096, "c3" * 32]]
    over = {"facts": {"host": inputs_of.desired.host}, "engines": engines, "sources": sources, "directories": folders}
    return decoded(overlay(plain_host(), named(over)))


def planned(path: Path, host: str) -> PlanInputs:
    desired = for_host(load_models([str(path)]), host, home="/home/lab", base_dir=Path("/etc/gezelctl"))
    resolved = tuple(
        r for r in resolve_servers(for_host(load_models([str(path)]), host, home="/home/lab"))
    )  # catalogs are read here, payload paths are the host's
    given = PlanInputs(
        desired=desired,
        resolved=resolved,
        observed=decoded(plain_host()),
        locations={
            r.server.name: Locations(
                payload_dir=f"{STORE}/models/{r.payload.engine}/{r.payload.model_id}" if r.payload else "",
                slots_dir=f"{STATE}/slots/{r.server.name}",
                config_path=f"{STATE}/config/{r.server.name}.json",
            )
            for r in resolved
        },
        options=PlanOptions(),
        source=(SourceFile(path="models.yaml", sha256="4f1c2ab9" * 8),),
        against=Against(kind="snapshot", seen="2026-01-12T14:02:00Z", path="host.json", age_s=60),
        tool="gezelctl test",
    )
    return replace(given, observed=prepared_host(given))


CASES = [(path, host) for path in EXAMPLES for host in hosts(path)]


def test_there_are_examples() -> None:
    assert {p.parent.name for p in EXAMPLES} >= {"quickstart", "lab", "mac"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.parent.name)
def test_example_is_valid_for_the_schema_its_first_line_names(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    schema = json.loads((path.parent / first.partition("$schema=")[2]).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml12.load(path.read_text(), str(path)).data, schema)  # editors read YAML 1.2, as we do


@pytest.mark.parametrize(("path", "host"), CASES, ids=lambda v: v if isinstance(v, str) else v.parent.name)
def test_example_plans_and_settles(path: Path, host: str, snapshot: SnapshotAssertion) -> None:
    given = planned(path, host)
    plan = make_plan(given)
    assert plan.applyable, render_text(plan)
    assert plan.summary.create == len(given.desired.servers)
    assert after(plan, given).summary.changes == 0
    text = render_text(plan).replace(str(REPO), "")
    assert text == snapshot

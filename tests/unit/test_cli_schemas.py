"""The checked-in schemas are the types, and they accept what gezelctl writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from gezelctl.cli.schemas import DOCUMENTS
from gezelctl.config.schema import render
from gezelctl.observe.types import Facts, Observed, Snapshot
from gezelctl.plan.render_json import plan_json, seal
from gezelctl.store.types import Event, InstalledFile, InstalledManifest
from tests import planmake


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_checked_in_schema_is_generated(name: str, repo: Path) -> None:
    """`make schemas` writes them anew."""
    assert (repo / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8") == render(name)


def validator(name: str) -> Any:
    schema = json.loads(render(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", planmake.PLANS)
def test_plans_are_valid(name: str) -> None:
    validator("plan").validate(json.loads(plan_json(seal(planmake.PLANS[name]))))


def test_a_plan_with_a_wrong_type_is_not_valid() -> None:
    document = json.loads(plan_json(planmake.FIRST))
    document["changes"][0]["action"] = "explode"
    with pytest.raises(jsonschema.ValidationError):
        validator("plan").validate(document)


def test_a_later_minor_with_more_keys_is_valid() -> None:
    document = json.loads(plan_json(planmake.FIRST)) | {"invented": 1}
    validator("plan").validate(document)


def test_snapshot_event_and_manifest_are_valid() -> None:
    facts = Facts("h", "linux", "1", "x86_64", 1, 1, 1)
    documents: dict[str, msgspec.Struct] = {
        "snapshot": Snapshot("1.0", "Snapshot", "gezelctl", "lab", "h", "2026-01-12T14:02:11Z", Observed(facts=facts)),
        "event": Event(ts="2026-01-12T14:02:11Z", type="version", detail={"bytes": 1}),
        "installed-manifest": InstalledManifest(
            "llama-cpp", "m", "M", "1.0", "00", (InstalledFile("a", "weights", "00", 1),), "2026-01-12T14:02:11Z"
        ),
    }
    assert documents.keys() | {"plan"} == DOCUMENTS.keys()
    for name, document in documents.items():
        validator(name).validate(json.loads(msgspec.json.encode(document)))

"""The JSON Schema of models.yaml: equal to the checked-in file, true of the types, and shown by editors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gezelctl.config.schema import models_schema, render
from gezelctl.config.settings import SETTINGS
from gezelctl.config.yaml12 import load

REPO = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(REPO.glob("examples/*/models.yaml"))
SERVER = {"name": "a", "model": "m", "port": 1}


def errors(**fields: Any) -> list[str]:
    document = {"apiVersion": "gezelctl/v1", "stack": "lab", "models": [], **fields}
    return [error.message for error in Draft202012Validator(models_schema()).iter_errors(document)]


def test_the_checked_in_schema_is_the_one_of_the_types() -> None:
    assert (REPO / "schemas" / "models.schema.json").read_text(encoding="utf-8") == render("models")


def test_it_is_a_schema_and_its_examples_are_valid() -> None:
    schema = models_schema()
    Draft202012Validator.check_schema(schema)
    for name, definition in schema["$defs"].items():
        validator = Draft202012Validator({**schema, "$ref": f"#/$defs/{name}"})
        for example in definition.get("examples", []):
            assert not list(validator.iter_errors(example)), name


def test_every_mapping_is_closed_and_described() -> None:
    schema = models_schema()
    for name, definition in schema["$defs"].items():
        assert definition["additionalProperties"] is False, name
        assert definition["description"], name
    options = schema["$defs"]["EngineOptions"]["properties"]
    assert {name: options[name]["description"] for name in options} == {s.name: s.help for s in SETTINGS.values()}


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.parent.name for path in EXAMPLES])
def test_every_example_is_valid_in_an_editor(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=")
    assert [e.message for e in Draft202012Validator(models_schema()).iter_errors(load(text, path.name).data)] == []


@pytest.mark.parametrize(
    ("fields", "valid"),
    [
        ({"models": [SERVER]}, True),
        ({"models": [{**SERVER, "context": None}]}, True),
        ({"models": [{**SERVER, "source": {"path": "x"}}]}, False),
        ({"models": [{"name": "a", "port": 1}]}, False),
        ({"models": [{"name": "a", "port": 1, "source": {"path": "x", "url": "y"}}]}, False),
        ({"models": [{**SERVER, "apiKey": {"fromEnv": "A"}}]}, True),
        ({"models": [{**SERVER, "apiKey": {}}]}, False),
        ({"models": [{**SERVER, "apiKey": {"fromEnv": "A", "fromFile": "b"}}]}, False),
        ({"models": [{**SERVER, "name": "a\n"}]}, False),
        ({"models": [{**SERVER, "extraArgs": {"temp": 0.5, "x": True, "y": "z", "n": 1}}]}, True),
        ({"models": [{**SERVER, "extraArgs": {"temp": None}}]}, False),
        ({"backends": {"a": {"engine": "llama-cpp", "binary": "x"}}}, True),
        ({"backends": {"a": {"engine": "llama-cpp", "binary": "x", "embedded": False}}}, True),
        ({"backends": {"a": {"engine": "llama-cpp", "binary": "x", "embedded": True}}}, False),
        ({"backends": {"a": {"engine": "llama-cpp", "embedded": False}}}, False),
        ({"backends": {"a": {"engine": "llama-cpp", "embedded": True, "python": "x"}}}, False),
        ({"backends": {"a": {"engine": "mlx"}}}, True),
        ({"backends": {"a": {"engine": "mlx", "python": "x"}}}, True),
        ({"backends": {"a": {"engine": "mlx", "binary": "x"}}}, False),
        ({"backends": {"A": {"engine": "mlx"}}}, False),
    ],
)
def test_an_editor_sees_the_rules_between_keys(fields: dict[str, Any], valid: bool) -> None:
    assert bool(errors(**fields)) is not valid

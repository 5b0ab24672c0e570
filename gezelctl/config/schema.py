"""JSON Schemas (2020-12) made from the types: what editors show, and what lists the findings of a file that failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gezelctl.config.model import ModelsFile

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"

_PROGRAM_FORMS: tuple[Schema, ...] = (
    {"required": ["binary"]},
    {"required": ["archive"]},
    {"required": ["embedded"], "properties": {"embedded": {"const": True}}},
)
# What the types cannot say. The loader checks the same rules itself, with better words; these are for editors.
_RULES: dict[str, Schema] = {
    "SecretRef": {"oneOf": [{"required": ["fromEnv"]}, {"required": ["fromFile"]}]},
    "Source": {"oneOf": [{"required": ["path"]}, {"required": ["url"]}, {"required": ["huggingface"]}]},
    "Server": {"oneOf": [{"required": ["model"]}, {"required": ["source"]}]},
    "Backend": {
        "oneOf": [
            {"properties": {"engine": {"const": "mlx"}}, "not": {"anyOf": list(_PROGRAM_FORMS)}},
            {
                "properties": {"engine": {"const": "llama-cpp"}},
                "not": {"required": ["python"]},
                "oneOf": list(_PROGRAM_FORMS),
            },
        ]
    },
}
_EXAMPLES: dict[str, list[Any]] = {
    "ModelsFile": [
        {
            "apiVersion": "gezelctl/v1",
            "stack": "lab",
            "catalogs": [{"path": "./catalog"}],
            "backends": {"cpu": {"engine": "llama-cpp", "embedded": True}},
            "defaults": {"backend": "cpu"},
            "models": [{"name": "chat", "model": "qwen3.5-4b-q4", "port": 8081}],
        }
    ],
    "Server": [{"name": "chat", "model": "qwen3.5-4b-q4", "port": 8081, "context": 65536, "slots": 2}],
    "Backend": [
        {"engine": "llama-cpp", "accelerator": "cuda", "binary": "/opt/llama.cpp/llama-server"},
        {"engine": "llama-cpp", "embedded": True},
        {"engine": "mlx", "accelerator": "metal", "python": "/opt/mlx/bin/python"},
    ],
    "SecretRef": [{"fromEnv": "HF_TOKEN"}, {"fromFile": "/run/secrets/hf"}],
    "Source": [{"path": "./models/model.gguf"}],
    "Spec": [{"type": "draft-mtp", "nMax": 3}],
}


def struct_schema(struct: type[msgspec.Struct], *, title: str) -> Schema:
    """The schema of a struct with `null` branches folded into their types; every schema of gezelctl is made by this."""
    made = msgspec.json.schema(struct)
    definitions = {name: _fold(definition) for name, definition in made.get("$defs", {}).items()}
    return {"$schema": DRAFT, "title": title, "$ref": made["$ref"], "$defs": definitions}


def models_schema() -> Schema:
    """The schema of models.yaml."""
    schema = struct_schema(ModelsFile, title="gezelctl models.yaml")
    for name, definition in schema["$defs"].items():
        definition.update(_RULES.get(name, {}))
        if name in _EXAMPLES:
            definition["examples"] = _EXAMPLES[name]
    return schema


SCHEMAS: dict[str, Callable[[], Schema]] = {"models": models_schema}
"""Every schema by name. Higher layers add theirs with `register`; the command line imports them before it looks."""


def register(name: str, build: Callable[[], Schema]) -> None:
    SCHEMAS[name] = build


def render(name: str) -> str:
    """The schema as the text of `schemas/<name>.schema.json`. Raises KeyError for an unknown name."""
    return msgspec.json.format(msgspec.json.encode(SCHEMAS[name]()), indent=2).decode() + "\n"


def _fold(schema: Any) -> Any:
    """`anyOf: [X, null]` becomes X with a second type, and a choice of bare types a list of types."""
    if isinstance(schema, list | tuple):
        return [_fold(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    folded = {key: _fold(value) for key, value in schema.items() if not (key == "default" and value is None)}
    branches = folded.get("anyOf")
    if branches and all(set(branch) == {"type"} for branch in branches):
        del folded["anyOf"]
        return {**folded, "type": [branch["type"] for branch in branches]}
    if branches and len(branches) == 2 and branches[1] == {"type": "null"} and "$ref" not in branches[0]:
        del folded["anyOf"]
        return {**branches[0], **folded, **_nullable(branches[0])}
    return folded


def _nullable(branch: Schema) -> Schema:
    if "enum" in branch:
        return {"enum": [*branch["enum"], None]}
    types = branch["type"] if isinstance(branch["type"], list) else [branch["type"]]
    return {"type": [*types, "null"]}

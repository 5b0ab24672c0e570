"""docs/models-yaml.md, made from the schema and the settings table: `python -m tests.reference` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gezelctl.config.schema import models_schema
from gezelctl.config.settings import ENGINE_SETTINGS
from tests.conftest import REPO

PAGE = REPO / "docs" / "models-yaml.md"
_SECTIONS = {
    "ModelsFile": "The file",
    "Server": "A server: `models[]`",
    "Source": "An inline model: `models[].source`",
    "FileRef": "One file: `shards[]`, `files[]`, `mmproj`, `draftModel` of a source",
    "Spec": "Speculative decoding: `models[].spec`",
    "SecretRef": "A secret: `apiKey`, `token`",
    "Backend": "A backend: `backends.NAME`",
    "Archive": "An engine to fetch: `backends.NAME.archive`",
    "Defaults": "Defaults: `defaults`",
    "StoreConfig": "The store: `store`",
    "CatalogRef": "A catalog: `catalogs[]`",
    "Sources": "Places to fetch from: `sources`",
    "HuggingFaceConfig": "A hub: `sources.huggingface`",
    "HostConfig": "A host: `hosts.NAME`",
    "BackendOverride": "A backend on one host: `hosts.NAME.backends.NAME`",
}
_ENGINES = {"llama-cpp": "llama.cpp", "mlx": "MLX"}
_HEAD = """# models.yaml, field by field

Made from the schema by `make reference`; do not edit. `gezelctl schema models` prints the schema itself, and
`gezelctl validate` checks a file against it. It is YAML 1.2: only `true` and `false` are booleans, keys stand once, and
there are no tabs and no merge keys. Paths are relative to the file. What is absent has the default, or is planned for
the host: `gezelctl plan --explain NAME` says what was chosen and why.
"""


def render() -> str:
    """The whole page."""
    definitions = models_schema()["$defs"]
    missing = definitions.keys() - _SECTIONS.keys() - {"EngineOptions"}
    if missing:
        raise ValueError(f"no section for {sorted(missing)}")
    parts = [_HEAD]
    parts += ["\n".join(_section(title, definitions[name], definitions)) for name, title in _SECTIONS.items()]
    parts += ["\n".join(_options(engine, definitions["EngineOptions"])) for engine in _ENGINES]
    return "\n".join(parts)


def _section(title: str, definition: dict[str, Any], definitions: dict[str, Any]) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{_cell(definition['description'])}\n"
    yield "| field | value | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in definition["properties"].items():
        default = "(required)" if name in definition.get("required", ()) else _default(field)
        yield f"| `{name}` | {_type(field)} | {default} | {_cell(_meaning(field, definitions))} |"
    yield ""


def _options(engine: str, definition: dict[str, Any]) -> Iterator[str]:
    yield f"## Engine options of {_ENGINES[engine]}: `engineOptions`\n"
    live = [f"`{s.name}`" for s in ENGINE_SETTINGS[engine] if s.effect == "live"]
    but = f", but of {', '.join(live)}" if live else ""
    yield "Of a backend or of a server, whose own win. Anything else that the engine takes goes into `extraArgs`."
    yield f"A change restarts the server{but}.\n"
    yield "| field | value | flag | meaning |"
    yield "|---|---|---|---|"
    for setting in ENGINE_SETTINGS[engine]:
        flag = f"`{setting.argv}`" if setting.argv else ""
        value = _type(definition["properties"][setting.name])
        yield f"| `{setting.name}` | {value} | {flag} | {_cell(setting.help)} |"
    yield ""


def _type(field: dict[str, Any]) -> str:
    """A schema as a word or two: "one of a, b", "number, 1 to 65535", "list of Server"."""
    if "$ref" in field:
        return f"[mapping](#{_anchor(_SECTIONS[_name(field)])})" if _name(field) in _SECTIONS else "mapping"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"] if value is not None)
    kind = field.get("type")
    if kind == "array":
        return f"list of {_type(field['items'])}"
    if kind == "object":
        values = field.get("additionalProperties", {})
        return f"names to {_type(values)}" if values else "mapping"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(each) for each in field["anyOf"] if each.get("type") != "null"))
    if isinstance(kind, list):
        return ", ".join(_type({**field, "type": each}) for each in kind if each != "null")
    words = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`", "string": "text"}
    return f"{words[str(kind)]}{_range(field)}"


def _meaning(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Its own description, else that of the mapping or of the entries that it holds."""
    inner = field.get("items") or field.get("additionalProperties") or {}
    holder = next((f for f in (field, *field.get("anyOf", ()), inner) if "$ref" in f), None)
    found = field.get("description", "") or (definitions[_name(holder)]["description"] if holder else "")
    return str(found).splitlines()[0] if found else ""


def _range(field: dict[str, Any]) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    if "exclusiveMinimum" in field:
        return f" above {field['exclusiveMinimum']}"
    if low is not None and high is not None:
        return f", {low} to {high}"
    return f" from {low}" if low is not None else ""


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    return "" if default in (None, [], {}, "") else f"`{json.dumps(default).strip(chr(34))}`"


def _name(field: dict[str, Any]) -> str:
    return str(field["$ref"]).rpartition("/")[2]


def _anchor(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")

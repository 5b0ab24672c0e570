"""Lists every type error of a models.yaml that did not decode, in plain words.

msgspec stops at the first error and knows no line. jsonschema lists them all; it is imported only here, when a file
has already failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from gezelctl.config.hints import did_you_mean, nearest, plain, show
from gezelctl.config.model import NAME_PATTERN, SHA256_PATTERN, Server, Spec
from gezelctl.config.redact import is_secret_key
from gezelctl.config.report import Report
from gezelctl.config.schema import models_schema
from gezelctl.config.settings import SETTINGS

_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
}
_TRUE_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_FLAGS = {setting.argv.lstrip("-"): setting.name for setting in SETTINGS.values() if setting.argv}
_SERVER_KEYS = frozenset(Server.__struct_encode_fields__)
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "greater than {}",
}

_SHAPES = {
    NAME_PATTERN: "1 to 63 of a-z 0-9 . _ - and the first is a letter or digit",
    SHA256_PATTERN: "64 lower-case hexadecimal digits",
}

Path = tuple[str | int, ...]


def report_type_errors(data: Any, report: Report) -> None:
    """Add a finding for everything in `data` that the schema of models.yaml refuses (E0101 to E0107)."""
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(models_schema()).iter_errors(data):
        for leaf in _leaves(error):
            _report(leaf, report)


def report_decode_error(message: str, report: Report) -> None:
    """Add the one finding that msgspec gave, for a fault that the schema let through."""
    text, _, where = message.partition(" - at `$")
    path: list[str | int] = []
    for index, key in re.findall(r"\[(\d+)\]|\.(\w+)", where):
        path.append(int(index) if index else key)
    report.error("E0109", path, text[:1].lower() + text[1:], "write it as the schema says: gezelctl schema models")


def _leaves(error: Any) -> Iterator[Any]:
    """The errors behind a choice that has only one branch besides null; oneOf rules belong to the checks."""
    if error.validator in ("oneOf", "not"):
        return
    if error.validator != "anyOf":
        yield error
        return
    branches = {child.schema_path[0] for child in error.context if child.validator_value != "null"}
    if len(branches) == 1:
        for child in error.context:
            if child.schema_path[0] in branches:
                yield from _leaves(child)
    else:
        yield error


def _report(error: Any, report: Report) -> None:
    path: Path = tuple(error.absolute_path)
    kind, wanted, value = error.validator, error.validator_value, error.instance
    if "propertyNames" in error.absolute_schema_path:
        report.error("E0106", (*path, value), f"the name {show(value)} is not allowed", _description(error), key=True)
    elif kind == "additionalProperties":
        for key in sorted(set(value) - set(error.schema["properties"])):
            _unknown_key(path, key, error.schema, report)
    elif kind == "required":
        _missing_keys(path, value, wanted, report)
    elif kind in ("type", "anyOf"):
        _wrong_type(path, error, report)
    elif kind in ("enum", "const"):
        _not_one_of(path, value, [wanted] if kind == "const" else wanted, report)
    elif kind in _BOUNDS:
        summary = f"{_name(path)} must be {_BOUNDS[kind].format(wanted)}, not {_shown(path, value)}"
        report.error("E0105", path, summary, _range(error.schema))
    elif kind == "minLength":
        report.error("E0105", path, f"{_name(path)} is empty", "write it, or leave the key out")
    else:
        report.error("E0106", path, f"{_name(path)} cannot be {_shown(path, value)}", _description(error))


def _unknown_key(path: Path, key: str, schema: dict[str, Any], report: Report) -> None:
    known = schema["properties"]
    where = _where(path, report)
    report.error("E0101", (*path, key), f"unknown key {show(key)} in {where}", _key_cure(key, known), key=True)


def _key_cure(key: str, known: dict[str, Any]) -> str:
    setting = _same_word(key, SETTINGS) or _FLAGS.get(key.lstrip("-"), "")
    if setting and setting in known:
        return f"did you mean {setting}?"
    if setting and "engineOptions" in known:
        return f"put it under engineOptions, as {setting}"
    if "spec" in known and _same_word(key, Spec.__struct_encode_fields__) not in ("", *known):
        return f"put it under spec, as {_same_word(key, Spec.__struct_encode_fields__)}"
    if "nGpuLayers" in known:
        match = nearest(key, known)
        if not match and key in _SERVER_KEYS:
            return f"{key} belongs to the server itself, one level up"
        return f"did you mean {match}?" if match else "put a flag that is no option here under extraArgs"
    return did_you_mean(key, known, kind="keys")


def _same_word(key: str, known: Iterable[str]) -> str:
    """The known name that is spelt like `key` but for case, dashes and underscores, else ""."""
    match = nearest(key, known)
    return match if plain(match) == plain(key) else ""


def _missing_keys(path: Path, value: Any, wanted: list[str], report: Report) -> None:
    for key in wanted:
        if key in value:
            continue
        cure = f"add {key}: …"
        if key == "models":
            cure = "add models: [] when nothing is to run yet"
        elif key == "apiVersion":
            cure = "add apiVersion: gezelctl/v1"
        report.error("E0102", path, f"{_where(path, report)} has no {key}", cure)


def _wrong_type(path: Path, error: Any, report: Report) -> None:
    value = error.instance
    if is_secret_key(_last_key(path)) and isinstance(value, str | int | float) and not isinstance(value, bool):
        return  # a literal secret, reported as one
    if error.validator == "anyOf":
        types = [branch.get("type", "object") for branch in error.validator_value]
    else:
        types = [error.validator_value] if isinstance(error.validator_value, str) else list(error.validator_value)
    types = [name for name in types if name != "null" and not (name == "integer" and "number" in types)]
    has = "but it has no value" if value is None else f"not {_shown(path, value)}"
    report.error(
        "E0103", path, f"{_name(path)} must be {_any_of(types)}, {has}", _type_cure(types, value, _last_key(path))
    )


_PATH_MAPPINGS = frozenset({"store", "source"})
_PLAIN_PATH = re.compile(r"[~./\w][\w./+@-]*")
"""What may stand unquoted in a flow mapping, and is no URL."""


def _any_of(types: list[str]) -> str:
    *most, last = (_WORDS[name] for name in types)
    return f"{', '.join(most)} or {last}" if most else last


def _type_cure(types: list[str], value: Any, key: str) -> str:
    if "boolean" in types and isinstance(value, str) and value.lower() in _TRUE_WORDS:
        return f"write {_TRUE_WORDS[value.lower()]}; in YAML 1.2 {value} is text"
    if "string" in types and isinstance(value, bool | int | float):
        # only a whole number is shown: 1e3 and 1.10 were written otherwise than they read now
        return f'put it in quotes: {key}: "{value}"' if type(value) is int else "put it in quotes"
    if types == ["integer"] and isinstance(value, str) and value.strip().isdigit():
        return f"write it without quotes: {key}: {value.strip()}"
    if types == ["integer"] and isinstance(value, float):
        return "write a number without a fraction"
    if types == ["array"]:
        return f"write {key}: []" if value is None else f"write a list: {key}: [ … ]"
    if types == ["object"] and key in _PATH_MAPPINGS and isinstance(value, str) and _PLAIN_PATH.fullmatch(value):
        return f"write {key}: {{path: {value}}}"
    if types == ["object"]:
        return f"write keys and values: {key}: {{ … }}"
    return f"write {_any_of(types)}"


def _not_one_of(path: Path, value: Any, wanted: list[Any], report: Report) -> None:
    known = [word for word in wanted if word is not None]
    if path == ("apiVersion",):
        summary = f"this gezelctl does not know apiVersion {_shown(path, value)}"
        report.error("E0107", path, summary, f"write apiVersion: {known[0]}, or use the gezelctl release that knows it")
        return
    match = nearest(value, known) if isinstance(value, str) else ""
    if isinstance(value, bool) and {"on", "off"} <= set(known):
        match = "on" if value else "off"
    choices = f"one of: {', '.join(map(str, known))}"
    cure = f"did you mean {match}? ({choices})" if match else f"write {choices}"
    report.error("E0104", path, f"{_name(path)} cannot be {_shown(path, value)}", cure)


def _range(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"choose a number from {low} to {high}"
    if "exclusiveMinimum" in schema:
        return "choose a positive number, or leave the key out for the default"
    return f"choose {low} or more" if low is not None else f"choose {high} or less"


def _description(error: Any) -> str:
    shape = _SHAPES.get(error.validator_value) if isinstance(error.validator_value, str) else None
    text = shape or str(error.schema.get("description", ""))
    return f"allowed: {text}" if text else "write it in the form that the schema gives"


def _shown(path: Path, value: Any) -> str:
    if any(isinstance(key, str) and is_secret_key(key) for key in path):
        return "what stands here" if value is not None else "nothing"
    return show(value)


def _name(path: Path) -> str:
    """A path as people write it: `engineOptions.flashAttn`, without the list position in front."""
    keys = [key if isinstance(key, str) else f"[{key}]" for key in path]
    if len(keys) > 2 and keys[0] == "models":
        keys = keys[2:]
    return ".".join(keys).replace(".[", "[") or "models.yaml"


def _where(path: Path, report: Report) -> str:
    """The mapping at `path` in words: a server by its name."""
    name = report.root.get((*path, "name")) if len(path) == 2 and path[0] == "models" else None
    return f"server {name.data}" if name is not None and isinstance(name.data, str) else _name(path)


def _last_key(path: Path) -> str:
    return next((key for key in reversed(path) if isinstance(key, str)), "")

"""How a host's own words are laid over the general ones. Works on plain values: there, what is given is known."""

from __future__ import annotations

from typing import Any

PROGRAM_FORMS = ("binary", "archive", "embedded", "python")
_ADDED_UP = ("env", "engineOptions", "extraArgs")

Mapping = dict[str, Any]


def overlay(base: Mapping, override: Mapping) -> Mapping:
    """`base` with every key that `override` gives."""
    return {**base, **_given(override)}


def overlay_backend(base: Mapping, override: Mapping) -> Mapping:
    """A backend with a host's override.

    A program form replaces the other forms; options, flags and variables are laid over one by one. Another engine
    keeps only accelerator and env of the base: its program, options and flags mean nothing there.
    """
    given = _given(override)
    if given.get("engine", base.get("engine")) != base.get("engine"):
        base = {key: base[key] for key in ("accelerator", "env") if key in base}
    if program_forms(given):
        base = {key: value for key, value in base.items() if key not in PROGRAM_FORMS}
    merged = {**base, **given}
    for key in _ADDED_UP:
        if isinstance(base.get(key), dict) and isinstance(given.get(key), dict):
            merged[key] = {**base[key], **given[key]}
    return merged


def program_forms(backend: Mapping) -> list[str]:
    """The program forms that a backend gives; `embedded: false` is not one."""
    return [form for form in PROGRAM_FORMS if backend.get(form) not in (None, False)]


def mapping(value: Any) -> Mapping:
    """The value when it is a mapping, else an empty one: a wrong type is reported elsewhere."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """The value when it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def text(value: Any) -> str:
    """The value when it is text, else ""."""
    return value if isinstance(value, str) else ""


def called(server: Mapping, index: int | str) -> str:
    """A server in words, also one without a name."""
    name = text(server.get("name"))
    return f"server {name}" if name else f"models[{index}]"


def _given(override: Mapping) -> Mapping:
    return {key: value for key, value in override.items() if value is not None}

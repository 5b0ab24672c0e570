"""Files, folders, standard input and several of them; and no input that escapes as anything but findings."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, Place, render_diagnostics
from gezelctl.config.loader import load_models
from gezelctl.config.model import ModelsFile
from gezelctl.config.schema import models_schema

BASE = "apiVersion: gezelctl/v1\nstack: lab\n"
MINIMAL = BASE + "models: []\n"
BACKEND = "backends: {cpu: {engine: llama-cpp, embedded: true}}\ndefaults: {backend: cpu}\n"
PLANTED = "hunter2-planted-secret"


def findings(*paths: Path | str) -> tuple[Diagnostic, ...]:
    with pytest.raises(InvalidConfig) as caught:
        load_models([str(path) for path in paths])
    return caught.value.diagnostics


def attempt(path: Path) -> tuple[Diagnostic, ...]:
    """The findings of a file, none when it loads; anything else that is raised fails the test."""
    try:
        load_models([str(path)])
    except InvalidConfig as error:
        return error.diagnostics
    return ()


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_is_read_with_its_digest(tmp_path: Path) -> None:
    path = write(tmp_path, "m.yaml", MINIMAL)
    loaded = load_models([str(path)])
    assert loaded.model == ModelsFile(api_version="gezelctl/v1", stack="lab", models=())
    assert loaded.files == ((str(path), hashlib.sha256(MINIMAL.encode()).hexdigest()),)
    assert loaded.base_dir == tmp_path
    assert loaded.warnings == ()


def test_standard_input_counts_paths_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MINIMAL.encode())))
    loaded = load_models(["-"])
    assert (loaded.base_dir, loaded.display) == (tmp_path, "-")


def test_a_folder_is_its_yaml_files_in_order(tmp_path: Path) -> None:
    write(tmp_path, "b.yml", "models: [{name: b, model: m, port: 2}]\n")
    write(tmp_path, "a.yaml", BASE + BACKEND + "models: [{name: a, model: m, port: 1}]\n")
    write(tmp_path, "README.md", "no YAML: {")
    loaded = load_models([str(tmp_path)])
    assert [server.name for server in loaded.model.models] == ["a", "b"]
    assert loaded.place(("models", 1)) == Place(str(tmp_path / "b.yml"), 1, 10, 38)
    assert [name for name, _ in loaded.files] == [str(tmp_path / "a.yaml"), str(tmp_path / "b.yml")]


def test_files_add_up_and_paths_count_from_their_own_file(tmp_path: Path) -> None:
    one = write(tmp_path, "one/a.yaml", BASE + "catalogs: [{path: c}]\nstore: {path: s}\nmodels: []\n")
    two = write(tmp_path, "two/b.yaml", BASE + "catalogs: [{path: c}]\nstore: {link: copy}\n" + BACKEND)
    from gezelctl.config.select import for_host

    desired = for_host(load_models([str(one), str(two)]), "h")
    assert desired.catalogs == (str(tmp_path / "one/c"), str(tmp_path / "two/c"))
    assert (desired.store.path, desired.store.link) == (str(tmp_path / "one/s"), "copy")


def test_conflicts_between_files_name_both_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.yaml", BASE + BACKEND + "models: [{name: a, model: m, port: 1}]\nhosts: {h: {}}\n")
    write(tmp_path, "b.yaml", "stack: other\n" + BACKEND + "models: [{name: a, model: m, port: 2}]\nhosts: {h: {}}\n")
    found = findings("a.yaml", "b.yaml")
    assert [(f"{item.place}", item.code) for item in found] == [
        ("b.yaml:1:8", "E0108"),
        ("b.yaml:2:12", "E0108"),
        ("b.yaml:4:17", "E0110"),
        ("b.yaml:5:9", "E0108"),
    ]
    assert [item.summary.count("a.yaml:") for item in found] == [1, 1, 1, 1]


def test_the_same_file_twice_is_one(tmp_path: Path) -> None:
    path = str(write(tmp_path, "m.yaml", MINIMAL))
    assert len(load_models([path, path]).files) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "none.yaml", "does not exist"),
        (lambda p: p, "holds no .yaml"),
        (lambda p: write(p, "x", "") / "y", "cannot be read"),
        (lambda _: "a\0b", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, make: Any, words: str) -> None:
    (found,) = findings(make(tmp_path))
    assert found.code == "E0001"
    assert words in found.summary
    assert found.cure


def test_findings_of_all_files_come_together(tmp_path: Path) -> None:
    found = findings(write(tmp_path, "a.yaml", "a: ["), write(tmp_path, "b.yaml", "a: 1\na: 2"), tmp_path / "c.yaml")
    assert sorted(item.code for item in found) == ["E0001", "E0003", "E0005"]


def test_bytes_that_are_not_utf_8_have_a_place(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(b"stack: lab\nx: \xff\n")
    (found,) = findings(path)
    assert (found.code, found.place) == ("E0002", Place(str(path), 2, 4))


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 1 << 33)
    assert [item.code for item in findings(path)] == ["E0004"]


def test_the_fast_path_imports_no_heavy_module(tmp_path: Path) -> None:
    path = write(tmp_path, "m.yaml", BASE + BACKEND + "models: [{name: a, model: m, port: 1}]\n")
    program = (
        "import sys; from gezelctl.config.loader import load_models; from gezelctl.config.select import for_host;"
        "for_host(load_models([sys.argv[1]]), 'h');"
        "print([m for m in ('jsonschema', 'difflib', 'httpx', 'rich', 'jinja2', 'psutil') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def _keys() -> list[str]:
    definitions = models_schema()["$defs"].values()
    return sorted({key for definition in definitions for key in definition.get("properties", {})})


_VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70000)
    | st.floats(allow_nan=False, allow_infinity=False, width=16)
    | st.sampled_from(
        ["llama-cpp", "mlx", "cpu", "chat", "127.0.0.1", "0.0.0.0", "gezelctl/v1", "a,b", "../x", "", "\x1b[0m"]
    )
    | st.text(max_size=6)
)
_TREES = st.recursive(
    _VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_keys()), inner, max_size=6),
    max_leaves=30,
)
_FILES = st.fixed_dictionaries(
    {},
    optional={
        "apiVersion": st.just("gezelctl/v1") | _VALUES,
        "stack": st.just("lab") | _VALUES,
        "models": st.lists(st.dictionaries(st.sampled_from(_keys()), _TREES, max_size=8), max_size=3) | _TREES,
        "backends": st.dictionaries(st.sampled_from(["cpu", "mac"]), _TREES) | _TREES,
        "defaults": _TREES,
        "hosts": st.dictionaries(st.sampled_from(["a", "b"]), _TREES) | _TREES,
        "sources": _TREES,
        "store": _TREES,
    },
)


@settings(max_examples=150, deadline=None)
@given(_FILES)
def test_any_tree_loads_or_gives_findings(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "tree.yaml"
    path.write_text(json.dumps(tree))
    found = attempt(path)
    assert not found or any(item.severity == "error" for item in found)
    assert all(item.place and item.cure for item in found)
    # E0109 is msgspec's own message: every fault of the types must be found by the schema, in its better words.
    assert not any(item.code == "E0109" for item in found)
    assert "\x1b" not in render_diagnostics(found)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_load_or_give_findings(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(data)
    assert findings(path)


_SHAPES: list[Callable[[str], object]] = [
    lambda secret: secret,
    lambda secret: {"value": secret},
    lambda secret: [secret],
    lambda secret: {"fromEnv": "A", "x": [secret]},
]


@st.composite
def _planted(draw: st.DrawFn) -> list[str]:
    """Texts of a configuration with a secret written into it in some style, whole and broken."""
    tree: Any = draw(_FILES)
    servers = tree.get("models")
    server = servers[0] if isinstance(servers, list) and servers and isinstance(servers[0], dict) else tree
    server[draw(st.sampled_from(["apiKey", "token", "HF_TOKEN", "api-key", "password"]))] = draw(
        st.sampled_from(_SHAPES)
    )(PLANTED)
    text = yaml.safe_dump(
        tree,
        default_style=draw(st.sampled_from([None, '"', "|", ">", "'"])),
        default_flow_style=draw(st.sampled_from([True, False, None])),
        width=draw(st.sampled_from([20, 1000])),
        sort_keys=False,
    )
    tail = draw(st.sampled_from(["", "\n\tx: [", "\n}", "\n  'y", ": x: y"]))
    cut = text[: text.index("hunter2") + draw(st.integers(1, 60))]
    return [text, text + tail, cut + tail]


@settings(max_examples=200, deadline=None)
@given(_planted())
def test_no_planted_secret_is_in_any_finding(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "secret.yaml"
    for text in texts:
        path.write_text(text)
        found = attempt(path)
        assert "hunter2" not in render_diagnostics(found) + repr(found)


@pytest.mark.parametrize("name", ["y" * 300, "bad\udcff.yaml", "d\udcff/m.yaml"])
def test_a_path_that_no_record_can_hold_is_a_finding(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if len(name) < 200:
        path.parent.mkdir(exist_ok=True)
        path.write_text(BASE + "models: []\n")
    with pytest.raises(InvalidConfig) as caught:
        load_models([str(path)])
    [found] = caught.value.diagnostics
    assert (found.code, bool(found.cure)) == ("E0001", True)

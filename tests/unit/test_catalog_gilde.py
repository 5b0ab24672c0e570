"""The Gilde folder layout: the choice of a version, what is passed over, what is an error, what is read at all."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gezelctl.catalog.gilde import GildeCatalog
from gezelctl.catalog.reading import locate, parse_json
from gezelctl.catalog.types import Model
from gezelctl.catalog.versions import parse_ref
from gezelctl.config.diagnostics import Diagnostic, InvalidConfig

ID = "tiny-1b-q4"
LLAMA = {"huggingfaceRepo": "o/r", "filename": "m.gguf", "sha256": "a" * 64, "approxSizeBytes": 10}


class Lab:
    """A catalog folder under construction."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, content: object) -> Path:
        target = self.root / "chat-models" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            target.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
        return target

    def identity(self, model_id: str = ID, **fields: object) -> Path:
        base = {"schemaVersion": 1, "kind": "chat-model", "id": model_id, "name": model_id.title()}
        return self.write(f"{model_id[:2]}/{model_id}/manifest.json", base | fields)

    def version(self, version: str, model_id: str = ID, /, **fields: object) -> Path:
        base = {"schemaVersion": 1, "version": version, "releasedAt": "2026-01-01", "approxSizeBytes": 10}
        content = base | ({} if "llamaCpp" in fields else {"llamaCpp": LLAMA}) | fields
        kept = {key: value for key, value in content.items() if value is not None}
        return self.write(f"{model_id[:2]}/{model_id}/versions/{version}/manifest.json", kept)

    def find(self, ref: str = ID) -> tuple[Model, tuple[Diagnostic, ...]]:
        found = GildeCatalog(self.root, "catalog").find(parse_ref(ref))
        assert found is not None
        return found

    def errors(self, ref: str = ID) -> list[Diagnostic]:
        with pytest.raises(InvalidConfig) as caught:
            GildeCatalog(self.root, "catalog").find(parse_ref(ref))
        return [found for found in caught.value.diagnostics if found.severity == "error"]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "lab")


def test_all_models_of_the_real_catalog_load(gilde: Path) -> None:
    catalog = GildeCatalog(gilde, "gilde")
    index = json.loads((gilde / "chat-models" / "index.json").read_text())["entries"]
    expected = {entry["manifest"]["id"]: entry["manifest"] for entry in index}
    listing = catalog.listing()
    assert {listed.id for listed in listing} == set(expected)
    assert len(listing) == 47
    fingerprints = set()
    for listed in listing:
        found = catalog.find(parse_ref(listed.id))
        assert found is not None
        model, warnings = found
        manifest = expected[listed.id]
        assert warnings == ()
        assert (model.version, list(model.available_versions)) == (manifest["version"], manifest["availableVersions"])
        assert set(model.payloads) == {
            engine for engine, key in (("llama-cpp", "llamaCpp"), ("mlx", "mlx")) if key in manifest
        }
        assert (model.context_window, model.name) == (manifest["contextWindow"], manifest["name"])
        for payload in model.payloads.values():
            assert len(payload.fingerprint) == 64
            fingerprints.add(payload.fingerprint)
    assert len(fingerprints) == sum(len({"llamaCpp", "mlx"} & set(manifest)) for manifest in expected.values())


def test_every_old_version_of_the_real_catalog_loads_when_pinned(gilde: Path) -> None:
    catalog = GildeCatalog(gilde, "gilde")
    folders = sorted((gilde / "chat-models").glob("*/*/versions/*"))
    for folder in folders:
        found = catalog.find(parse_ref(f"{folder.parents[1].name}@{folder.name}"))
        assert found is not None
        assert found[0].version == folder.name
    assert len(folders) == 116


def test_real_tuning_and_memory_figures(gilde: Path) -> None:
    found = GildeCatalog(gilde, "gilde").find(parse_ref("qwen3.8-27b-q8"))
    assert found is not None
    assert found[0].spec == {"mtp": True, "nMax": 4}
    assert found[0].thinking_budget == 4096
    found = GildeCatalog(gilde, "gilde").find(parse_ref("btl4-35b-q4"))
    assert found is not None
    assert (found[0].kv_bytes_per_token_f16, found[0].kv_fixed_bytes_f16) == (20480, 64389120)
    assert found[0].thinking_budget == 12288  # of the coding profile; the base says 8192


_opened: list[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event in {"open", "os.listdir", "os.scandir"}:
        _opened.append(str(arguments[0]))


@pytest.fixture
def opened() -> Iterator[list[str]]:
    global _opened  # noqa: PLW0603 - an audit hook cannot be removed, only silenced
    sys.addaudithook(_audit)
    _opened = []
    yield _opened
    _opened = None


def test_a_lookup_reads_two_files_and_lists_one_folder(gilde: Path, opened: list[str]) -> None:
    GildeCatalog(gilde, "gilde").find(parse_ref("gemma4-12b-q4"))
    below = [str(Path(path).relative_to(gilde)) for path in opened if path.startswith(str(gilde))]
    assert below == [
        "chat-models/ge/gemma4-12b-q4/manifest.json",
        "chat-models/ge/gemma4-12b-q4/versions",
        "chat-models/ge/gemma4-12b-q4/versions/1.1.3/manifest.json",
    ]


def test_highest_eligible_version_wins(lab: Lab) -> None:
    lab.identity(yankedVersions=["2.0.0"], minSupportedVersion="1.2.0")
    for version in ("1.1.0", "1.2.0", "1.10.0", "1.10.0-rc.1", "2.0.0"):
        lab.version(version)
    model, warnings = lab.find()
    assert (model.version, model.available_versions, warnings) == ("1.10.0", ("1.10.0", "1.10.0-rc.1", "1.2.0"), ())


def test_a_pin_reaches_yanked_and_floored_versions_but_must_exist(lab: Lab) -> None:
    lab.identity(yankedVersions=["2.0.0"], minSupportedVersion="1.2.0")
    for version in ("1.1.0", "1.2.0", "2.0.0"):
        lab.version(version)
    assert lab.find(f"{ID}@2.0.0")[0].version == "2.0.0"
    assert lab.find(f"{ID}@1.1.0")[0].version == "1.1.0"
    assert lab.find(f"{ID}@1.1.0")[0].available_versions == ("1.2.0",)
    [error] = lab.errors(f"{ID}@3.0.0")
    assert (error.code, error.cure) == ("E0211", "use one of: 2.0.0, 1.2.0, 1.1.0")


def test_every_version_yanked(lab: Lab) -> None:
    lab.identity(yankedVersions=["1.0.0", "1.1.0"])
    lab.version("1.0.0")
    lab.version("1.1.0")
    [error] = lab.errors()
    assert (error.code, error.cure) == ("E0212", f"pin one of them, for example {ID}@1.1.0")


def test_the_reference_applications_floor_does_not_apply(lab: Lab) -> None:
    lab.identity(minGezelVersion="99.0")
    lab.version("1.0.0", minGezelVersion="99.1")
    assert lab.find()[0].version == "1.0.0"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"version": "3.0.0"}, "E0205"),
        ({"version": None}, "E0205"),
        ({"releasedAt": 20260101}, "E0205"),
        ({"llamaCpp": None}, "E0206"),
    ],
)
def test_a_version_that_does_not_count_is_passed_over_with_a_warning(
    lab: Lab, fields: dict[str, Any], code: str
) -> None:
    lab.identity()
    lab.version("1.0.0")
    lab.version("2.0.0", **fields)
    model, warnings = lab.find()
    assert (model.version, model.available_versions) == ("1.0.0", ("1.0.0",))
    assert [(found.code, found.severity) for found in warnings] == [(code, "warning")]
    place = warnings[0].place
    assert place is not None
    assert place.file == f"catalog/chat-models/ti/{ID}/versions/2.0.0/manifest.json"
    assert [error.code for error in lab.errors(f"{ID}@2.0.0")] == [code]


def test_a_folder_that_is_no_version_and_one_without_a_manifest(lab: Lab) -> None:
    lab.identity()
    lab.version("1.0.0")
    (lab.root / f"chat-models/ti/{ID}/versions/latest").mkdir()
    (lab.root / f"chat-models/ti/{ID}/versions/2.0.0").mkdir()
    (lab.root / f"chat-models/ti/{ID}/versions/.cache").mkdir()
    model, warnings = lab.find()
    assert model.version == "1.0.0"
    assert [found.summary for found in warnings] == [
        f"catalog/chat-models/ti/{ID}/versions/latest is not a version",
        "version 2.0.0: manifest.json is missing",
    ]


def test_a_broken_newest_version_is_an_error_and_never_a_silent_step_back(lab: Lab) -> None:
    lab.identity()
    lab.version("1.0.0")
    lab.version("2.0.0", llamaCpp=LLAMA | {"sha256": "x"})
    [error] = lab.errors()
    assert error.code == "E0203"
    assert str(error.place) == f"catalog/chat-models/ti/{ID}/versions/2.0.0/manifest.json:9:15"
    assert error.snippet.strip() == '"sha256": "x",'
    assert lab.find(f"{ID}@1.0.0")[0].version == "1.0.0"


def test_no_versions(lab: Lab) -> None:
    lab.identity()
    assert [error.code for error in lab.errors()] == ["E0205"]
    lab.version("1.0.0", llamaCpp=None)
    assert [error.code for error in lab.errors()] == ["E0205"]


def test_identity_that_disagrees_with_its_folder(lab: Lab) -> None:
    lab.version("1.0.0")
    for fields in ({"id": "other-1b"}, {"kind": "voice"}):
        lab.write(f"ti/{ID}/manifest.json", {"schemaVersion": 1, "kind": "chat-model", "id": ID, "name": "T"} | fields)
        [error] = lab.errors()
        assert error.code == "E0204"
        assert error.place is not None
        assert GildeCatalog(lab.root, "catalog").listing() == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"schemaVersion": 2},
        {"name": ""},
        {"contextWindow": -1},
        {"contextWindow": 1.5},
        {"kvBytesPerTokenF16": 0},
        {"minSupportedVersion": "one"},
        {"tags": "x"},
        {"tuning": []},
        {"tuning": {"engine": {"llamaCpp": {"flashAttn": True}}}},
        {"tuning": {"engine": {"llamaCpp": {"nGpuLayers": -2}}}},
        {"tuning": {"engine": {"llamaCpp": {"contextSize": 0}}}},
        {"tuning": {"engine": {"llamaCpp": {"spec": {"nMax": "3"}}}}},
        {"tuning": {"engine": {"llamaCpp": {"spec": {"byBackend": {"cuda": {"byBackend": {}}}}}}}},
        {"tuning": {"reasoning": {"thinkingBudget": 0}}},
        {"tuning": {"profiles": {"thinking-coding": 3}}},
    ],
)
def test_identity_with_a_bad_value(lab: Lab, fields: dict[str, Any]) -> None:
    lab.identity(**fields)
    lab.version("1.0.0")
    errors = lab.errors()
    assert [error.code for error in errors] == ["E0203"]
    assert errors[0].place is not None
    assert errors[0].place.line > 1


def test_tuning_is_taken_from_the_identity(lab: Lab) -> None:
    overlay = {"cuda": {"type": "draft-dflash", "nMax": 8}}
    engine = {
        "flashAttn": "on",
        "nGpuLayers": -1,
        "contextSize": 4096,
        "spec": {"type": "draft-mtp", "byBackend": overlay},
    }
    reasoning = {"thinkingBudget": 9}
    lab.identity(tuning={"engine": {"llamaCpp": engine}, "reasoning": reasoning, "sampling": {"temperature": 1}})
    lab.version("1.0.0")
    model, warnings = lab.find()
    assert warnings == ()
    assert model.engine_options == {"flashAttn": "on", "nGpuLayers": -1, "contextSize": 4096}
    assert model.spec == {"type": "draft-mtp", "byBackend": overlay}
    assert model.thinking_budget == 9


def test_keys_that_have_no_effect_are_warned_about(lab: Lab) -> None:
    lab.identity(contextWindwo=4096, wholly_unrelated=1, tuning={"engine": {"llamaCpp": {"flashAtn": "on"}}})
    lab.version("1.0.0", tuning={}, llamaCpp=LLAMA | {"residentBites": 3})
    model, warnings = lab.find()
    assert model.engine_options == {}
    assert sorted((found.summary, found.cure) for found in warnings) == [
        ("contextWindwo: unknown key", "did you mean `contextWindow`?"),
        ("llamaCpp.residentBites: unknown key", "did you mean residentBytes?"),
        ("tuning.engine.llamaCpp.flashAtn: unknown key", "did you mean flashAttn?"),
        ("tuning: has no effect in a version manifest", "move it to the model's own manifest.json"),
    ]


HOSTILE = {
    "empty": (b"", "E0202"),
    "truncated": (b'{"id": "x"', "E0202"),
    "trailing": (b"{} x", "E0202"),
    "list": (b"[]", "E0203"),
    "scalar": (b"3", "E0203"),
    "latin-1": (b'{\n"name": "caf\xe9"}', "E0201"),
    "nul": (b"\0\0\0", "E0202"),
    "deep": (b'{"a":' * 100_000, "E0202"),
    "deep list": (b"[" * 1_000_000, "E0202"),
    "large": (b" " * (9 << 20), "E0201"),
    "lone surrogate": (b'{"name": "\\ud800"}', "E0202"),
    "huge number": (b'{"schemaVersion": ' + b"9" * 6000 + b"}", "E0202"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("layer", ["identity", "version"])
def test_hostile_json_is_a_finding(lab: Lab, name: str, layer: str) -> None:
    content, code = HOSTILE[name]
    lab.identity()
    lab.version("1.0.0")
    path = f"ti/{ID}/manifest.json" if layer == "identity" else f"ti/{ID}/versions/1.0.0/manifest.json"
    lab.write(path, content)
    [error] = lab.errors()
    assert (error.code, error.place is not None) == (code, True)
    assert error.cure


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["schemaVersion", "id", "name", "tags", "yankedVersions", "minSupportedVersion", "tuning", "contextWindow"]
)
VERSION_FIELDS = st.sampled_from(["version", "releasedAt", "approxSizeBytes", "llamaCpp", "mlx", "ds4", "ollama"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.dictionaries(FIELDS, JSON, max_size=3), st.dictionaries(VERSION_FIELDS, JSON, max_size=3))
def test_any_json_gives_a_model_or_findings(lab: Lab, identity: dict[str, object], version: dict[str, object]) -> None:
    lab.write(f"ti/{ID}/manifest.json", {"schemaVersion": 1, "kind": "chat-model", "id": ID, "name": "T"} | identity)
    base = {"schemaVersion": 1, "version": "1.0.0", "releasedAt": "", "approxSizeBytes": 1, "llamaCpp": LLAMA}
    lab.write(f"ti/{ID}/versions/1.0.0/manifest.json", base | version)
    findings: tuple[Diagnostic, ...] = ()
    try:
        model, findings = lab.find()
        assert (model.id, model.version) == (ID, "1.0.0")
    except InvalidConfig as error:
        findings = error.diagnostics
    assert all(found.code.startswith("E02") and found.place and found.cure for found in findings)


@given(st.data())
def test_a_place_points_at_the_value(data: st.DataObject) -> None:
    value = data.draw(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 0, 2])), ensure_ascii=data.draw(st.booleans()))
    assume(not {"\x85", "\u2028", "\u2029"} & set(text))  # an editor may or may not break a line there
    at: Any = value
    path: list[str | int] = []
    while isinstance(at, dict | list) and at:
        step = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        path.append(step)
        at = at[step]
    start, _ = locate(text, tuple(path))
    decoded, _ = json.JSONDecoder().raw_decode(text, start)
    assert decoded == at
    place = parse_json(text, "f").place((*path, "absent"))
    line_start = text.rfind("\n", 0, start) + 1
    assert (place.line, place.column) == (text.count("\n", 0, start) + 1, start - line_start + 1)


def test_a_missing_folder_is_empty_and_says_so(tmp_path: Path) -> None:
    catalog = GildeCatalog(tmp_path / "absent", "absent")
    assert catalog.find(parse_ref(ID)) is None
    assert catalog.listing() == ()
    assert catalog.describe() == "absent (has no chat-models folder)"
    (tmp_path / "file").write_text("")
    assert GildeCatalog(tmp_path / "file", "file").find(parse_ref(ID)) is None


def test_a_folder_that_cannot_be_listed_is_never_empty(lab: Lab) -> None:
    lab.identity()
    loop = lab.root / f"chat-models/ti/{ID}/versions"
    loop.symlink_to(loop)
    [error] = lab.errors()
    assert error.code == "E0201"
    assert "versions" in str(error.place)
    assert os.strerror(40) in error.summary or "symbolic" in error.summary


def test_a_folder_in_place_of_a_manifest(lab: Lab) -> None:
    (lab.root / f"chat-models/ti/{ID}/manifest.json").mkdir(parents=True)
    [error] = lab.errors()
    assert (error.code, "directory" in error.summary.lower()) == ("E0201", True)


def test_listing_walks_when_the_index_is_unusable_and_sorts_by_name(lab: Lab) -> None:
    lab.identity("zz-1", name="alpha")
    lab.identity("aa-1", name="Beta")
    lab.write("bb/bb-1/manifest.json", "{")
    walked = [("zz-1", "alpha"), ("aa-1", "Beta")]
    indexes: list[object] = [None, "{", {"kind": "voice", "entries": []}, {"kind": "chat-model", "entries": {}}]
    for index in indexes:
        if index is not None:
            lab.write("index.json", index)
        assert [(listed.id, listed.name) for listed in GildeCatalog(lab.root, "c").listing()] == walked
    entries = [{"manifest": {"kind": "chat-model", "id": "in-index", "name": "I"}}, {"manifest": 3}, 4]
    lab.write("index.json", {"kind": "chat-model", "entries": entries})
    assert [listed.id for listed in GildeCatalog(lab.root, "c").listing()] == ["in-index"]

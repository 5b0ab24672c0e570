"""A catalog in one YAML or JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gezelctl.catalog.onefile import OneFileCatalog
from gezelctl.catalog.payload import fingerprint
from gezelctl.catalog.versions import parse_ref
from gezelctl.config.diagnostics import Diagnostic, InvalidConfig

LAB = Path(__file__).parents[1] / "cases" / "catalog" / "lab.yaml"
SOURCE = {"huggingfaceRepo": "o/r", "filename": "m.gguf", "sha256": "a" * 64, "approxSizeBytes": 10}


def errors_of(path: Path, ref: str = "model-a") -> list[Diagnostic]:
    with pytest.raises(InvalidConfig) as caught:
        OneFileCatalog(path, path.name).find(parse_ref(ref))
    return list(caught.value.diagnostics)


def write(tmp_path: Path, *models: object, **top: object) -> Path:
    path = tmp_path / "lab.json"
    path.write_text(
        json.dumps({"apiVersion": "gezelctl/v1", "kind": "Catalog", "models": list(models)} | top, indent=1)
    )
    return path


def model(**fields: object) -> dict[str, Any]:
    return {"id": "model-a", "llamaCpp": SOURCE} | fields


def test_highest_version_wins_and_a_pin_is_found() -> None:
    catalog = OneFileCatalog(LAB, "lab.yaml")
    found = catalog.find(parse_ref("lab-chat-q4"))
    assert found is not None
    chat, warnings = found
    assert warnings == ()
    assert (chat.version, chat.available_versions, chat.name) == ("1.1.0", ("1.1.0", "1.0.0"), "Lab Chat")
    assert (chat.context_window, chat.kv_bytes_per_token_f16, chat.thinking_budget) == (32768, 20480, 512)
    assert chat.engine_options == {"flashAttn": "on", "nCpuMoe": 12}
    assert [file.name for file in chat.payloads["llama-cpp"].files] == ["b.gguf", "mmproj.gguf"]
    assert chat.payloads["mlx"].fingerprint == fingerprint(chat.payloads["mlx"]) != ""
    pinned = catalog.find(parse_ref("lab-chat-q4@1.0.0"))
    assert pinned is not None
    assert pinned[0].payloads["llama-cpp"].files[0].sha256 == "a" * 64
    embed = catalog.find(parse_ref("lab-embed"))
    assert embed is not None
    assert (embed[0].version, embed[0].name) == ("", "lab-embed")
    assert catalog.find(parse_ref("other")) is None
    assert [listed.id for listed in catalog.listing()] == ["lab-chat-q4", "lab-embed"]


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    from gezelctl.config.yaml12 import load

    path = tmp_path / "lab.json"
    path.write_bytes(msgspec.json.encode(load(LAB.read_text(), "lab.yaml").data))
    for ref in ("lab-chat-q4", "lab-chat-q4@1.0.0", "lab-embed"):
        assert OneFileCatalog(path, "j").find(parse_ref(ref)) == OneFileCatalog(LAB, "y").find(parse_ref(ref))


def test_versions_that_are_not_there() -> None:
    [error] = errors_of(LAB, "lab-chat-q4@9.0.0")
    assert (error.code, error.cure) == ("E0211", "use one of: 1.1.0, 1.0.0")
    [error] = errors_of(LAB, "lab-embed@1.0.0")
    assert (error.code, error.cure) == ("E0211", "use lab-embed without a version; it states none")


def test_places_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(LAB.read_text().replace("approxSizeBytes: 11", "approxSizeBytes: none"))
    [error] = errors_of(path, "lab-chat-q4")
    assert (error.code, str(error.place)) == ("E0203", "lab.yaml:19:24")
    assert error.snippet.strip() == "approxSizeBytes: none"
    assert error.summary == "models[1].llamaCpp.approxSizeBytes: expected `int`, got `str`"


@pytest.mark.parametrize(
    ("models", "code"),
    [
        ([model(), model()], "E0214"),
        ([model(version="1.0.0"), model(version="1.0.0")], "E0214"),
        ([model(version="1")], "E0203"),
        ([model(id=3)], "E0203"),
        ([model(id="A")], "E0213"),
        ([model(id="con")], "E0213"),
        ([model(id="model-a:q4")], "E0213"),
        ([model(llamaCpp=None)], "E0206"),
        ([model(versoin="1.0.0")], "E0209"),
        ([model(llamaCpp=SOURCE | {"sha265": ""})], "E0209"),
        ([model(tuning={"engine": {"llamaCpp": {"flashAtn": "on"}}})], "E0209"),
        ([model(llamaCpp=SOURCE | {"shards": []})], "E0207"),
        ([[]], "E0203"),
    ],
)
def test_bad_entries(tmp_path: Path, models: list[object], code: str) -> None:
    found = errors_of(write(tmp_path, *models))
    assert [error.code for error in found] == [code]
    assert all(error.place and error.place.line > 1 and error.cure for error in found)


def test_all_faults_of_the_file_are_reported_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, model(), model(), model(id="B"), model(id=None))
    assert [error.code for error in errors_of(path)] == ["E0214", "E0213", "E0203"]


@pytest.mark.parametrize("top", [{"kind": "Models"}, {"apiVersion": "v2"}, {"models": {}}, {"extra": 1}])
def test_bad_top(tmp_path: Path, top: dict[str, object]) -> None:
    assert errors_of(write(tmp_path, model(), **top))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    [error] = errors_of(tmp_path / "absent.yaml")
    assert (error.code, error.summary) == ("E0201", "the file does not exist")


def test_hostile_files(tmp_path: Path) -> None:
    for name, content in (("a.yaml", b"models: [\xff]"), ("b.json", b"[" * 500_000), ("c.yaml", b"a: [" * 5000)):
        path = tmp_path / name
        path.write_bytes(content)
        assert all(error.place for error in errors_of(path))

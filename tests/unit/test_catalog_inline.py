"""Inline sources of models.yaml: each kind, and the fields that cannot stand together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, reject
from hypothesis import strategies as st

from gezelctl.catalog.inline import WHOLE_FOLDER, source_payloads
from gezelctl.catalog.types import Origin, Payload
from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, Place
from gezelctl.config.model import Source

A, B, C = "a" * 64, "b" * 64, "c" * 64
BASE = Path("/srv/lab")
FIRST, SECOND = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"


def pin(filename: str, sha256: str = B) -> dict[str, Any]:
    return {"filename": filename, "sha256": sha256, "sizeBytes": 3}


def payload(**fields: object) -> Payload:
    model = source_payloads("chat", msgspec.convert(fields, Source), BASE)
    assert (model.id, model.version) == ("chat", "")
    [found] = model.payloads.values()
    assert found.engine in model.payloads
    return found


def errors(name: str = "chat", **fields: object) -> list[Diagnostic]:
    with pytest.raises(InvalidConfig) as caught:
        source_payloads(name, msgspec.convert(fields, Source), BASE)
    return list(caught.value.diagnostics)


def test_local_gguf_with_companions() -> None:
    found = payload(path="models/m.gguf", sha256=A, sizeBytes=9, mmproj=pin("p.gguf"), draftModel=pin("d/x.gguf", C))
    assert found.engine == "llama-cpp"
    assert [(file.name, file.role, file.origin.path, file.optional) for file in found.files] == [
        ("m.gguf", "weights", "/srv/lab/models/m.gguf", False),
        ("x.gguf", "draft", "/srv/lab/models/d/x.gguf", False),
        ("p.gguf", "mmproj", "/srv/lab/models/p.gguf", True),
    ]
    assert (found.approx_size_bytes, len(found.fingerprint)) == (9, 64)


def test_local_gguf_without_a_pin_has_no_fingerprint() -> None:
    found = payload(path="/data/../data/m.GGUF")
    assert (found.files[0].origin.path, found.files[0].sha256, found.fingerprint) == ("/data/m.GGUF", "", "")


def test_a_blob_without_suffix_is_a_gguf_when_it_is_pinned() -> None:
    found = payload(path="blobs/sha256-aaaa", sha256=A)
    assert (found.engine, found.files[0].name, found.files[0].role) == ("llama-cpp", "sha256-aaaa", "weights")


def test_a_local_shard_set_is_named_by_its_first_shard() -> None:
    names = [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    found = payload(path=f"x/{names[0]}")
    assert [(file.name, file.role, file.origin.path) for file in found.files] == [
        (name, "shard", f"/srv/lab/x/{name}") for name in names
    ]
    pinned = payload(path=f"x/{names[0]}", shards=[pin(names[0], A), pin(names[1], B), pin(names[2], C)])
    assert [file.sha256 for file in pinned.files] == [A, B, C]
    assert pinned.fingerprint


def test_an_mlx_folder_is_one_file_without_a_name_or_its_listed_files() -> None:
    whole = payload(path="mlx/model")
    assert whole.engine == "mlx"
    [file] = whole.files
    assert (file.name, file.role, file.origin) == (WHOLE_FOLDER, "file", Origin("path", path="/srv/lab/mlx/model"))
    assert whole.fingerprint == ""
    listed = payload(path="mlx/model", files=[pin("config.json"), pin("sub/w.safetensors", C)])
    assert [file.origin.path for file in listed.files] == [
        "/srv/lab/mlx/model/config.json",
        "/srv/lab/mlx/model/sub/w.safetensors",
    ]
    assert [file.name for file in listed.files] == ["config.json", "sub/w.safetensors"]


def test_url_takes_its_name_from_the_path() -> None:
    url = "https://files.example/a/Tiny%20Model.gguf?sig=secret"
    found = payload(url=url, sha256=A, mmproj=pin("p q.gguf"))
    assert [(file.name, file.origin.url) for file in found.files] == [
        ("Tiny Model.gguf", url),
        ("p q.gguf", "https://files.example/a/p%20q.gguf"),
    ]
    assert payload(url="http://h/download", filename="m.gguf", sha256=A).files[0].name == "m.gguf"
    same = payload(url="https://elsewhere.example/Tiny%20Model.gguf", sha256=A, mmproj=pin("p q.gguf"))
    assert same.fingerprint == found.fingerprint


def test_huggingface_forms() -> None:
    single = payload(huggingface="o/r", revision="v1", filename="Q4/m.gguf", sha256=A, draftModel=pin("d.gguf", C))
    assert [(file.name, file.origin.filename, file.origin.revision) for file in single.files] == [
        ("m.gguf", "Q4/m.gguf", "v1"),
        ("d.gguf", "d.gguf", "v1"),
    ]
    assert single.repo == "o/r"
    shards = payload(huggingface="o/r", shards=[pin(f"Q/{FIRST}", A), pin(f"Q/{SECOND}")])
    assert [(file.name, file.role) for file in shards.files] == [(FIRST, "shard"), (SECOND, "shard")]
    mlx = payload(huggingface="o/r", files=[pin("config.json"), pin("a/b.safetensors")])
    assert (mlx.engine, [file.name for file in mlx.files]) == ("mlx", ["config.json", "a/b.safetensors"])
    assert mlx.approx_size_bytes == 6


HUB: dict[str, Any] = {"huggingface": "o/r"}


@pytest.mark.parametrize(
    ("fields", "code", "about"),
    [
        ({}, "E0215", "none of path, url and huggingface"),
        ({"path": "a.gguf", "url": "https://h/a.gguf"}, "E0215", "path and url"),
        ({"path": "a.gguf", "revision": "v1"}, "E0215", "revision: belongs to a huggingface source"),
        ({"path": "a.gguf", "filename": "b.gguf"}, "E0215", "filename: stands beside path"),
        ({"path": "a.gguf", "files": [pin("x")]}, "E0215", "files: stands beside a single file"),
        ({"path": "a", "sha256": A, "files": [pin("x")]}, "E0215", "files: stands beside a single file"),
        ({"path": "m-00002-of-00002.gguf"}, "E0215", "not the first shard"),
        ({"path": "m-00003-of-00002.gguf"}, "E0215", "shard 3 of 2"),
        ({"path": "m-00000-of-00000.gguf"}, "E0215", "shard 0 of 0"),
        ({"path": FIRST, "sha256": A}, "E0215", "sha256: pins one file"),
        ({"path": FIRST, "shards": [pin(FIRST), pin("other.gguf")]}, "E0215", "shards: is not the set"),
        ({"path": "a.gguf", "mmproj": pin("../p.gguf")}, "E0208", "mmproj.filename"),
        ({"path": "a.gguf", "mmproj": pin("A.gguf")}, "E0208", "where case does not count"),
        ({"path": "a\n.gguf"}, "E0208", "control character"),
        ({"path": "x", "files": [pin("a"), pin("a")]}, "E0208", "twice"),
        ({"path": "x", "files": [pin("manifest.json")]}, "E0208", "the store uses itself"),
        ({"url": "https://h/a.gguf"}, "E0215", "url: has no sha256"),
        ({"url": "ftp://h/a.gguf", "sha256": A}, "E0215", "not an http or https URL"),
        ({"url": "https:///a.gguf", "sha256": A}, "E0215", "not an http or https URL"),
        ({"url": "https://[::1/a.gguf", "sha256": A}, "E0215", "not a URL"),
        ({"url": "https://h/", "sha256": A}, "E0215", "does not end in a file name"),
        ({"url": "https://h/a%2F..%2F..", "sha256": A}, "E0208", "`..`"),
        ({"url": "https://h/a.gguf", "sha256": A, "shards": [pin("x")]}, "E0215", "shards: stands beside url"),
        (HUB, "E0215", "names no file"),
        (HUB | {"filename": "m.gguf"}, "E0215", "filename alone"),
        (HUB | {"sha256": A}, "E0215", "sha256 alone"),
        (HUB | {"filename": "m.gguf", "sha256": A, "shards": [pin("a"), pin("b")]}, "E0215", "stands beside shards"),
        (HUB | {"sha256": A, "files": [pin("a")]}, "E0215", "sha256: stands beside files"),
        (HUB | {"shards": [pin("a"), pin("b")], "files": [pin("c")]}, "E0215", "files: stands beside shards"),
        (HUB | {"shards": [pin("a")]}, "E0215", "one shard only"),
        (HUB | {"shards": [pin("a"), pin("b")]}, "E0207", "not one set"),
        (HUB | {"files": [pin("a")], "mmproj": pin("p")}, "E0215", "mmproj: is a file of llama.cpp"),
        (HUB | {"files": [pin("a")], "sizeBytes": 3}, "E0215", "sizeBytes: stands beside a list"),
        (HUB | {"filename": "../m.gguf", "sha256": A}, "E0208", "`..`"),
        (HUB | {"filename": "m.gguf", "sha256": A, "revision": "a b"}, "E0215", "revision: is not a revision"),
        ({"huggingface": "o/r/x", "filename": "m", "sha256": A}, "E0215", "not a repo"),
        ({"huggingface": "../..", "filename": "m", "sha256": A}, "E0215", "not a repo"),
    ],
)
def test_rules(fields: dict[str, Any], code: str, about: str) -> None:
    [found] = errors(**fields)
    assert found.code == code
    assert about in found.summary
    assert found.address == "server.chat"
    assert found.cure


def test_several_faults_at_once_with_their_places() -> None:
    def locate(path: tuple[str | int, ...]) -> Place:
        return Place("models.yaml", 10 + len(path), 5)

    source = msgspec.convert(HUB | {"shards": [pin("../a"), pin("b\\c")]}, Source)
    with pytest.raises(InvalidConfig) as caught:
        source_payloads("chat", source, BASE, locate)
    assert [(found.code, str(found.place)) for found in caught.value.diagnostics] == [("E0208", "models.yaml:13:5")] * 2


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    [found] = errors(url="https://user:hunter2@h/a.gguf", sha256=A)
    assert "credentials" in found.summary
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize("name", ["aux", "nul.x", "Chat", "chat\n", "../x", ""])
def test_a_server_name_that_cannot_be_a_folder(name: str) -> None:
    assert "E0213" in {found.code for found in errors(name, path="a.gguf")}


TEXT = st.text("abz019._-/\\:~ \n", max_size=10)
PINS = st.lists(TEXT.map(pin), max_size=3)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "path": TEXT | st.just("m-00001-of-00002.gguf"),
            "url": TEXT | TEXT.map(lambda text: f"https://h/{text}"),
            "huggingface": TEXT | st.just("o/r"),
            "filename": TEXT,
            "sha256": st.just(A),
            "shards": PINS,
            "files": PINS,
            "mmproj": TEXT.map(pin),
            "draftModel": TEXT.map(pin),
        },
    )
)
def test_any_source_gives_contained_names_or_findings(fields: dict[str, Any]) -> None:
    try:
        found = payload(**fields)
    except InvalidConfig as error:
        event(error.diagnostics[0].code)
        return
    except msgspec.ValidationError:
        reject()  # the loader of models.yaml refuses it before
    for file in found.files:
        assert file.name == WHOLE_FOLDER or (not file.name.startswith("/") and ".." not in file.name.split("/"))
        assert file.origin.kind == "path" or file.sha256
    assert len({file.name.casefold() for file in found.files}) == len(found.files)

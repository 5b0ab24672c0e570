"""Looking models up over several catalogs, and what a server gets of the one that is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gezelctl.catalog.resolve import Catalogs, resolve_server, resolve_servers
from gezelctl.catalog.servers import Resolved
from gezelctl.catalog.versions import parse_ref
from gezelctl.config.desired import DesiredServer, HostDesired
from gezelctl.config.diagnostics import InvalidConfig, Place
from gezelctl.config.model import Backend, Source, Sources, Spec, StoreConfig

LAB = Path(__file__).parents[1] / "cases" / "catalog" / "lab.yaml"
SOURCE = {"huggingfaceRepo": "o/r", "filename": "m.gguf", "sha256": "a" * 64, "approxSizeBytes": 10}
CPU = Backend(engine="llama-cpp", binary="/bin/llama-server")
CUDA = Backend(engine="llama-cpp", accelerator="cuda", binary="/bin/llama-server")
MLX = Backend(engine="mlx", accelerator="metal", python="/bin/python3")


def one_file(path: Path, *models: dict[str, Any]) -> str:
    path.write_text(json.dumps({"apiVersion": "gezelctl/v1", "kind": "Catalog", "models": models}))
    return path.name


def gilde_folder(root: Path, model_id: str, *versions: str, yanked: tuple[str, ...] = ()) -> str:
    folder = root / "chat-models" / model_id[:2] / model_id
    identity = {
        "schemaVersion": 1,
        "kind": "chat-model",
        "id": model_id,
        "name": "From Gilde",
        "yankedVersions": yanked,
    }
    for version in versions:
        path = folder / "versions" / version / "manifest.json"
        path.parent.mkdir(parents=True)
        head = {"schemaVersion": 1, "version": version, "releasedAt": "", "approxSizeBytes": 1}
        path.write_text(json.dumps(head | {"llamaCpp": SOURCE}))
    folder.joinpath("manifest.json").write_text(json.dumps(identity))
    return root.name


def server(**fields: Any) -> DesiredServer:
    base: dict[str, Any] = {"name": "chat", "port": 8081, "host": "127.0.0.1", "backend_name": "b", "backend": CPU}
    places = {
        "": Place("models.yaml", 5, 5),
        "model": Place("models.yaml", 6, 12),
        "vision": Place("models.yaml", 7, 13),
    }
    return DesiredServer(**(base | {"start_timeout_s": 9, "places": places} | fields))


def resolved(tmp_path: Path, entry: dict[str, Any], **fields: Any) -> Resolved:
    name = one_file(tmp_path / "lab.json", {"id": "model-a", "version": "1.0.0"} | entry)
    return resolve_server(server(model="model-a", **fields), Catalogs([name], str(tmp_path)), tmp_path)


def error_of(catalogs: Catalogs, ref: str) -> tuple[str, str, str]:
    with pytest.raises(InvalidConfig) as caught:
        catalogs.find(ref, place=Place("models.yaml", 3, 12))
    [found] = [found for found in caught.value.diagnostics if found.severity == "error"]
    return found.code, found.summary, found.cure


def test_catalogs_are_searched_in_order(tmp_path: Path) -> None:
    first = gilde_folder(tmp_path / "first", "model-a", "1.0.0")
    second = one_file(tmp_path / "lab.json", {"id": "model-a", "version": "2.0.0", "llamaCpp": SOURCE})
    catalogs = Catalogs([first, second], str(tmp_path))
    assert catalogs.find("model-a").version == "1.0.0"
    assert catalogs.find("model-a:latest").version == "1.0.0"
    assert catalogs.find("model-a@2.0.0").version == "2.0.0"
    assert Catalogs([second, first], str(tmp_path)).find("model-a").version == "2.0.0"
    code, _, cure = error_of(catalogs, "model-a@3.0.0")
    assert (code, cure) == ("E0211", "use one of: 1.0.0")


def test_a_wholly_yanked_model_leaves_it_to_the_next_catalog(tmp_path: Path) -> None:
    first = gilde_folder(tmp_path / "first", "model-a", "1.0.0", yanked=("1.0.0",))
    second = one_file(tmp_path / "lab.json", {"id": "model-a", "version": "2.0.0", "llamaCpp": SOURCE})
    assert Catalogs([first, second], str(tmp_path)).find("model-a").version == "2.0.0"
    assert Catalogs([first], str(tmp_path)).find("model-a@1.0.0").version == "1.0.0"
    assert error_of(Catalogs([first], str(tmp_path)), "model-a")[0] == "E0212"


def test_a_broken_model_never_falls_through_to_the_next_catalog(tmp_path: Path) -> None:
    first = one_file(tmp_path / "lab.json", {"id": "model-a", "llamaCpp": SOURCE | {"sha256": "x"}})
    second = gilde_folder(tmp_path / "second", "model-a", "1.0.0")
    assert error_of(Catalogs([first, second], str(tmp_path)), "model-a")[0] == "E0203"


def test_a_missing_model_names_near_ones_and_what_was_searched(tmp_path: Path) -> None:
    name = gilde_folder(tmp_path / "first", "qwen3.5-4b-q4", "1.0.0")
    catalogs = Catalogs([name, str(LAB), "absent"], str(tmp_path))
    code, summary, cure = error_of(catalogs, "qwen3.5-4b")
    assert (code, cure) == ("E0210", "did you mean qwen3.5-4b-q4?")
    assert summary == (
        f"model 'qwen3.5-4b' is in no catalog; searched first, {LAB}, absent (has no chat-models folder)"
    )
    assert error_of(catalogs, "zzzzzzzz")[2] == "check the id, or add the catalog that has it"
    assert error_of(Catalogs([]), "zz")[1] == "model 'zz' needs a catalog, and there is none"


def test_near_matches_in_the_real_catalog(gilde: Path) -> None:
    _, _, cure = error_of(Catalogs([str(gilde)]), "gema4-12b-q4")
    assert cure.startswith("did you mean gemma4-12b-q4")


def test_an_answer_is_kept(tmp_path: Path) -> None:
    name = gilde_folder(tmp_path / "first", "model-a", "1.0.0")
    catalogs = Catalogs([name], str(tmp_path))
    model = catalogs.find("model-a")
    shutil.rmtree(tmp_path / "first")
    assert catalogs.find("model-a") is model


@pytest.mark.parametrize(
    "ref",
    [
        "",
        "a",
        "A1",
        "a/b",
        "../x",
        "a1@",
        "a1@1",
        "a1@latest",
        "a1@1.0.0\n",
        "a1:q4",
        "nul",
        "a1\n",
        "a" * 65,
        "a1@1.0.0@2",
    ],
)
def test_bad_references(ref: str) -> None:
    assert error_of(Catalogs(["absent"]), ref)[0] == "E0213"


def test_a_catalog_path_that_no_disk_has(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="1 error"):
        Catalogs(["a\0b"], str(tmp_path))
    for path in ("~nobody-has-this-name/x", "x" * 5000, "absent.yaml"):
        assert error_of(Catalogs([path], str(tmp_path)), "model-a")[0] in {"E0201", "E0210"}


def test_references() -> None:
    assert str(parse_ref("qwen3.5-4b-q4@1.2.0")) == "qwen3.5-4b-q4@1.2.0"
    assert str(parse_ref("qwen3.5-4b-q4:latest")) == "qwen3.5-4b-q4"


def test_a_server_gets_the_files_that_it_needs(tmp_path: Path) -> None:
    pinned = {"filename": "d.gguf", "sha256": "d" * 64, "sizeBytes": 2}
    entry = {
        "llamaCpp": SOURCE
        | {"draftModel": pinned | {"backends": ["cuda"]}, "mmproj": pinned | {"filename": "mmproj.gguf"}}
    }

    def names(**fields: Any) -> list[str]:
        return [file.name for file in resolved(tmp_path, entry, **fields).files]

    assert names() == ["m.gguf"]
    assert names(backend=CUDA) == ["m.gguf", "d.gguf"]
    assert names(backend=CUDA, vision=True) == ["m.gguf", "d.gguf", "mmproj.gguf"]
    assert names(backend=CUDA, spec=Spec(type="none")) == ["m.gguf"]
    assert names(backend=CUDA, spec=Spec(type="draft-simple")) == ["m.gguf", "d.gguf"]


@pytest.mark.parametrize(
    ("entry", "fields", "code", "line"),
    [
        ({"llamaCpp": SOURCE}, {"backend": MLX}, "E0216", 5),
        ({"llamaCpp": SOURCE | {"excludedBackends": ["cuda"]}}, {"backend": CUDA}, "E0218", 5),
        ({"llamaCpp": SOURCE}, {"vision": True}, "E0219", 7),
        (
            {
                "mlx": {
                    "huggingfaceRepo": "o/r",
                    "approxSizeBytes": 1,
                    "files": [{"name": "a", "sha256": "a" * 64, "sizeBytes": 1}],
                    "disabledReason": "needs mlx-vlm 2",
                }
            },
            {"backend": MLX},
            "E0217",
            6,
        ),
    ],
)
def test_what_a_server_cannot_be_given(
    tmp_path: Path, entry: dict[str, Any], fields: dict[str, Any], code: str, line: int
) -> None:
    found = resolved(tmp_path, entry, **fields)
    assert (found.model, found.payload, found.files) == (None, None, ())
    [diagnostic] = found.diagnostics
    assert (diagnostic.code, diagnostic.address) == (code, "server.chat")
    assert diagnostic.place == Place("models.yaml", line, diagnostic.place.column if diagnostic.place else 0)


def test_all_servers_of_a_host_are_reported_together(tmp_path: Path) -> None:
    source = msgspec.convert({"path": "x/tiny.gguf"}, Source)
    desired = HostDesired(
        stack="lab",
        host="lab-01",
        servers=(
            server(model="lab-chat-q4"),
            server(name="lost", model="lab-chatt-q4"),
            server(name="tiny", source=source),
            server(name="broken", source=msgspec.structs.replace(source, revision="v2")),
        ),
        backends={"b": CPU},
        store=StoreConfig(),
        sources=Sources(),
        catalogs=(str(LAB),),
        base_dir=str(tmp_path),
    )
    chat, lost, tiny, broken = resolve_servers(desired)
    assert chat.payload is not None
    assert (chat.payload.version, chat.files) == ("1.1.0", chat.payload.files[:1])
    assert [(found.code, found.cure, str(found.place)) for found in lost.diagnostics] == [
        ("E0210", "did you mean lab-chat-q4?", "models.yaml:6:12")
    ]
    assert [file.origin.path for file in tiny.files] == [str(tmp_path / "x/tiny.gguf")]
    assert [(found.code, found.address) for found in broken.diagnostics] == [("E0215", "server.broken")]
    assert all((found.model is None) == bool(found.diagnostics) for found in (chat, lost, tiny, broken))

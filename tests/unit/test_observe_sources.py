"""Local files as sources: real files in real folders, broken ones too."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gezelctl.catalog.servers import Resolved
from gezelctl.catalog.types import Origin, PayloadFile, Role
from gezelctl.config.desired import DesiredServer
from gezelctl.config.model import Backend
from gezelctl.observe.mounts import Mounts
from gezelctl.observe.sources import Sources, is_mlx_file, read_sources
from gezelctl.store.layout import Paths
from gezelctl.store.types import InstalledFile, InstalledManifest, InstalledPayload
from tests import ggufmake as make

BACKEND = Backend(engine="llama-cpp", embedded=True)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(store=tmp_path / "store", state=tmp_path / "state", cache=tmp_path / "cache")


def gguf(path: Path, **values: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make.gguf_bytes(make.LLAMA | values, make.LLAMA_TENSORS))
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def local(path: Path, role: Role = "weights", name: str | None = None) -> PayloadFile:
    return PayloadFile(path.name if name is None else name, role, Origin("path", path=str(path)))


def hub(sha256: str, size: int = 0, role: Role = "weights") -> PayloadFile:
    return PayloadFile("m.gguf", role, Origin("huggingface", repo="o/n", filename="m.gguf"), sha256, size)


def read(paths: Paths, *files: PayloadFile, roots: tuple[Path, ...] = (), have: str = "") -> Sources:
    server = DesiredServer(
        name="t", port=1, host="127.0.0.1", backend_name="b", backend=BACKEND, start_timeout_s=1, model="m"
    )
    installed = InstalledManifest(
        engine="llama-cpp",
        id="x",
        name="x",
        catalog_version="1",
        fingerprint="",
        files=(InstalledFile(name="w.gguf", role="weights", sha256=have, size_bytes=1),) if have else (),
        installed_at="",
    )
    payloads = (InstalledPayload(path="/store/x", manifest=installed),)
    return read_sources([Resolved(server, files=files)], payloads, map(str, roots), paths, Mounts())


def test_a_gguf(tmp_path: Path, paths: Paths) -> None:
    path = gguf(tmp_path / "m.gguf")
    fact = read(paths, local(path)).facts[str(path)]
    assert (fact.kind, fact.size_bytes, fact.sha256) == ("file", path.stat().st_size, digest(path))
    assert fact.gguf is not None
    assert (fact.gguf.architecture, fact.error) == ("llama", "")
    assert fact.file_system == Mounts().file_system(tmp_path)


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, paths: Paths) -> None:
    path = gguf(tmp_path / "m.gguf")
    first = read(paths, local(path))
    status = path.stat()
    with path.open("r+b") as stream:
        stream.write(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert read(paths, local(path)) == first
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert read(paths, local(path)).facts[str(path)].error_code == "NOT_GGUF"


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (b"", "NOT_GGUF", "is empty"),
        (b"<!doctype html><html>", "NOT_GGUF", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "NOT_GGUF", "git-lfs"),
        (make.gguf_bytes(make.LLAMA, make.LLAMA_TENSORS)[:-700], "GGUF_TRUNCATED", ""),
    ],
)
def test_a_broken_gguf_says_what_it_is(data: bytes, code: str, message: str, tmp_path: Path, paths: Paths) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    fact = read(paths, local(path)).facts[str(path)]
    assert (fact.kind, fact.error_code, fact.sha256, fact.gguf) == ("file", code, "", None)
    assert message in fact.error
    assert str(path) not in fact.error
    assert fact.cure


def test_paths_that_are_no_file(tmp_path: Path, paths: Paths) -> None:
    folder, fifo, gone = tmp_path / "folder", tmp_path / "fifo", tmp_path / "gone" / "m.gguf"
    folder.mkdir()
    os.mkfifo(fifo)
    facts = read(paths, local(folder), local(fifo), local(gone)).facts
    assert {Path(path).name: fact.kind for path, fact in facts.items()} == {
        "fifo": "other",
        "folder": "directory",
        "m.gguf": "missing",
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user that may not read everything")
def test_an_unreadable_file(tmp_path: Path, paths: Paths) -> None:
    path = gguf(tmp_path / "m.gguf")
    path.chmod(0)
    fact = read(paths, local(path)).facts[str(path)]
    assert fact.kind == "unreadable"
    assert "read" in fact.cure


def test_later_shards_are_hashed_and_the_first_speaks_for_the_set(tmp_path: Path, paths: Paths) -> None:
    first = gguf(tmp_path / "m-00001-of-00002.gguf", **{"split.no": (2, 0), "split.count": (2, 2)})
    second = tmp_path / "m-00002-of-00002.gguf"
    second.write_bytes(b"not looked into")
    facts = read(paths, local(first, "shard"), local(second, "shard")).facts
    assert facts[str(second)].sha256 == digest(second)
    assert facts[str(second)].error == ""
    assert facts[str(first)].error_code


def test_a_missing_shard_is_an_error_of_the_first(tmp_path: Path, paths: Paths) -> None:
    first = gguf(tmp_path / "m-00001-of-00002.gguf")
    facts = read(paths, local(first, "shard"), local(tmp_path / "m-00002-of-00002.gguf", "shard")).facts
    assert facts[str(first)].error_code == "SPLIT"
    assert facts[str(tmp_path / "m-00002-of-00002.gguf")].kind == "missing"


def test_an_mlx_folder(tmp_path: Path, paths: Paths) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    for name in (*names, "README.md", ".gitattributes", "model.gguf"):
        (folder / name).write_text(name)
    found = read(paths, local(folder, "file", name=""))
    assert found.directories == {str(folder): tuple((n, len(n), digest(folder / n)) for n in names)}
    assert found.facts[str(folder)].kind == "directory"
    assert found.facts[f"{folder}/config.json"].file_system == Mounts().file_system(folder)


def test_an_mlx_folder_that_is_not_there(tmp_path: Path, paths: Paths) -> None:
    found = read(paths, local(tmp_path / "none", "file", name=""))
    assert found.directories == {}
    assert found.facts[str(tmp_path / "none")].kind == "missing"


@pytest.mark.parametrize(
    ("name", "belongs"),
    [
        ("model-00001-of-00002.safetensors", True),
        ("model.safetensors.index.json", True),
        ("chat_template.jinja", True),
        ("tokenizer.model", True),
        ("pytorch_model.bin", False),
        ("other.json", False),
    ],
)
def test_which_files_are_mlx(name: str, belongs: bool) -> None:
    assert is_mlx_file(name) == belongs


def hub_blob(root: Path, source: Path) -> Path:
    """As the hub's cache lays a file out: a blob named by its sha256, and a snapshot that links to it."""
    blob = root / "models--o--n" / "blobs" / digest(source)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(source.read_bytes())
    snapshot = root / "models--o--n" / "snapshots" / "abc" / "m.gguf"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(blob)
    return blob


def test_a_hub_blob_is_found_by_its_name(tmp_path: Path, paths: Paths) -> None:
    source = gguf(tmp_path / "m.gguf")
    blob = hub_blob(tmp_path / "hf" / "hub", source)
    for root in (tmp_path / "hf", tmp_path / "hf" / "hub"):
        found = read(paths, hub(digest(source), source.stat().st_size), roots=(root,))
        assert found.adoptable == {digest(source): str(blob)}
        fact = found.facts[str(blob)]
        assert (fact.kind, fact.sha256) == ("file", digest(source))
        assert fact.gguf is not None
    assert not (paths.cache / "digests").exists()  # no byte was hashed


def test_an_ollama_blob_is_found_by_its_name(tmp_path: Path, paths: Paths) -> None:
    source = gguf(tmp_path / "m.gguf")
    blob = tmp_path / "ollama" / "models" / "blobs" / f"sha256-{digest(source)}"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(source.read_bytes())
    for root in (tmp_path / "ollama", tmp_path / "ollama" / "models"):
        assert read(paths, hub(digest(source)), roots=(root,)).adoptable == {digest(source): str(blob)}


def test_a_half_fetched_blob_is_not_offered(tmp_path: Path, paths: Paths) -> None:
    source = gguf(tmp_path / "m.gguf")
    blob = hub_blob(tmp_path / "hub", source)
    size = blob.stat().st_size
    blob.write_bytes(blob.read_bytes()[:100])
    assert read(paths, hub(digest(source), size), roots=(tmp_path / "hub",)).adoptable == {}


def test_elsewhere_size_then_hash_decide(tmp_path: Path, paths: Paths) -> None:
    root = tmp_path / "lmstudio"
    wanted = gguf(root / "publisher" / "repo" / "b.gguf")
    other = root / "publisher" / "repo" / "a.gguf"
    other.write_bytes(bytes(wanted.stat().st_size))  # same size, other bytes
    (root / "publisher" / "small.gguf").write_bytes(b"x")
    (root / "link.gguf").symlink_to(wanted)
    found = read(paths, hub(digest(wanted), wanted.stat().st_size), roots=(root,))
    assert found.adoptable == {digest(wanted): str(wanted)}
    assert len(list((paths.cache / "digests").iterdir())) == 2
    assert read(paths, hub(digest(wanted)), roots=(root,)).adoptable == {}  # without a size nothing is hashed


def test_the_first_root_wins_and_missing_roots_do_not_matter(tmp_path: Path, paths: Paths) -> None:
    source = gguf(tmp_path / "m.gguf")
    blob = hub_blob(tmp_path / "one", source)
    hub_blob(tmp_path / "two", source)
    roots = (tmp_path / "none", tmp_path / "one", tmp_path / "two")
    assert read(paths, hub(digest(source)), roots=roots).adoptable == {digest(source): str(blob)}


def test_what_is_installed_is_not_looked_for(tmp_path: Path, paths: Paths) -> None:
    source = gguf(tmp_path / "m.gguf")
    hub_blob(tmp_path / "hub", source)
    assert read(paths, hub(digest(source)), roots=(tmp_path / "hub",), have=digest(source)).adoptable == {}

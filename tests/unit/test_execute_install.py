"""Installing payloads: linked, copied, downloaded; verified; published whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gezelctl.config.secrets import Secret
from gezelctl.errors import FetchError, GezelctlError, GgufError
from gezelctl.observe.hub import Hub
from gezelctl.plan.types import FileAction, PayloadMeta
from gezelctl.store.layout import Paths, UnsafePathError
from gezelctl.store.lock import directory_lock
from gezelctl.store.manifests import installed, read_manifest
from tests import hubserver
from tests.executing import (
    META,
    close_fetchers,
    download,
    hub_file,
    installer,
    link,
    make_paths,
    model_bytes,
    path_file,
    sha,
)
from tests.ggufmake import LLAMA, LLAMA_TENSORS, gguf_bytes

A, B, DRAFT = model_bytes(1), model_bytes(2), model_bytes(3)


@pytest.fixture
def hub() -> Iterator[hubserver.Hub]:
    with hubserver.running_hub() as server:
        yield server


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_fetchers()


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return make_paths(tmp_path)


def folder(paths: Paths) -> Path:
    return paths.payload_dir(META.engine, META.model_id)


def names(paths: Paths) -> list[str]:
    root = folder(paths)
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()) if root.exists() else []


def source(tmp_path: Path, name: str, data: bytes) -> Path:
    path = tmp_path / "sources" / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(data)
    return path


def test_a_local_file_is_hard_linked_and_the_manifest_says_all(paths: Paths, tmp_path: Path) -> None:
    model = source(tmp_path, "a.gguf", A)
    install, recorder = installer(paths)
    manifest = install.install(META, [link(path_file(model, A))])
    final = folder(paths) / "a.gguf"
    assert final.samefile(model)
    assert names(paths) == ["a.gguf", "manifest.json"]
    assert read_manifest(folder(paths), "llama-cpp") == manifest
    (entry,) = manifest.files
    assert (entry.sha256, entry.size_bytes, entry.role, entry.linked) == (sha(A), len(A), "weights", True)
    assert entry.source == str(model)
    assert manifest.gguf is not None
    assert manifest.gguf.architecture == "llama"
    assert (manifest.name, manifest.catalog_version, manifest.fingerprint) == ("Tiny", "1.0.0", "f" * 64)
    assert recorder.notes() == ""


def test_an_unpinned_local_file_gets_its_real_digest(paths: Paths, tmp_path: Path) -> None:
    install, _ = installer(paths)
    manifest = install.install(META, [link(path_file(source(tmp_path, "a.gguf", A)))])
    assert manifest.digests == {"a.gguf": sha(A)}


def test_a_symbolic_link_as_source_is_linked_at_its_end(paths: Paths, tmp_path: Path) -> None:
    """Snapshots in a hub cache are symbolic links to blobs; the store must hold the blob, not a link to a link."""
    blob = source(tmp_path, "blob", A)
    snapshot = tmp_path / "sources" / "a.gguf"
    snapshot.symlink_to("blob")
    install, _ = installer(paths)
    install.install(META, [link(path_file(snapshot, A))])
    final = folder(paths) / "a.gguf"
    assert not final.is_symlink()
    assert final.samefile(blob)


def test_a_copy_shares_nothing(paths: Paths, tmp_path: Path) -> None:
    model = source(tmp_path, "a.gguf", A)
    install, recorder = installer(paths)
    manifest = install.install(META, [link(path_file(model, A), "copy")])
    assert (folder(paths) / "a.gguf").read_bytes() == A
    assert model.stat().st_nlink == 1
    assert not manifest.files[0].linked
    assert recorder.bytes[-1][1:] == (len(A), len(A))


def test_another_file_system_gives_a_copy_and_the_reason(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs /dev/shm as a second file system")
    with tempfile.TemporaryDirectory(dir=shm) as other:
        paths = make_paths(Path(other))
        model = source(tmp_path, "a.gguf", A)
        install, recorder = installer(paths)
        install.install(META, [link(path_file(model, A))])
        assert (folder(paths) / "a.gguf").read_bytes() == A
        assert "copied, not linked: it is on another file system" in recorder.notes()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_a_refused_link_gives_a_copy(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    model = source(tmp_path, "a.gguf", A)
    monkeypatch.setattr("gezelctl.execute.stage.os.link", refuse)
    install, recorder = installer(paths)
    stage_only = install.install(META, [link(path_file(model, A))])
    assert not stage_only.files[0].linked
    assert "copied, not linked" in recorder.notes()


@pytest.mark.parametrize("how", ["link", "copy"])
def test_a_local_file_with_other_bytes_is_refused(paths: Paths, tmp_path: Path, how: str) -> None:
    model = source(tmp_path, "a.gguf", B)
    install, _ = installer(paths)
    with pytest.raises(FetchError) as caught:
        install.install(META, [link(path_file(model, A, name="a.gguf"), how)])  # type: ignore[arg-type] # parametrized
    assert caught.value.code == "HASH_MISMATCH"
    assert sha(A) in caught.value.message
    assert sha(B) in caught.value.message
    assert not folder(paths).exists(), "nothing is left of an install that never began"
    assert model.read_bytes() == B


@pytest.mark.parametrize(("folder_there", "code"), [(False, "SOURCE_MISSING"), (True, "SOURCE_KIND")])
def test_a_source_that_is_no_file(paths: Paths, tmp_path: Path, folder_there: bool, code: str) -> None:
    path = tmp_path / "gone.gguf"
    if folder_there:
        path.mkdir()
    install, _ = installer(paths)
    with pytest.raises(FetchError) as caught:
        install.install(META, [link(path_file(path))])
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (A[:-40], "GGUF_TRUNCATED"),
        (A[:100], "GGUF_TRUNCATED"),
        (b"<!DOCTYPE html>" + b"x" * 900, "NOT_GGUF"),
        (b"", "NOT_GGUF"),
    ],
)
def test_a_broken_model_is_named_and_nothing_is_published(paths: Paths, tmp_path: Path, data: bytes, code: str) -> None:
    install, _ = installer(paths)
    install.install(META, [link(path_file(source(tmp_path, "a.gguf", A), A))])
    with pytest.raises(GgufError) as caught:
        install.install(META, [link(path_file(source(tmp_path, "b.gguf", data)))])
    assert caught.value.code == code
    assert str(folder(paths) / "b.gguf") in caught.value.message
    assert names(paths) == ["a.gguf", "manifest.json"], "the old payload is whole"
    (old,) = installed(paths)
    assert (old.manifest.digests, old.damaged) == ({"a.gguf": sha(A)}, ())


def test_downloads_come_with_their_companions(paths: Paths, hub: hubserver.Hub) -> None:
    for name, data in (("a.gguf", A), ("draft.gguf", DRAFT)):
        hub.add("lab/tiny", name, data)
    install, recorder = installer(paths, Hub(hub.endpoint))
    files = [download(hub_file("a.gguf", A)), download(hub_file("draft.gguf", DRAFT, role="draft"))]
    manifest = install.install(META, files)
    assert [(f.name, f.role) for f in manifest.files] == [("a.gguf", "weights"), ("draft.gguf", "draft")]
    assert manifest.files[0].source == f"{hub.endpoint}/lab/tiny/resolve/main/a.gguf"
    total = len(A) + len(DRAFT)
    done = [d for _, d, t in recorder.bytes if t == total]
    assert done == sorted(done), "progress never goes back"
    assert done[-1] == total


def test_shards_are_read_as_one_model(paths: Paths, hub: hubserver.Hub) -> None:
    split = {"split.count": (2, 2), "split.tensors.count": (5, len(LLAMA_TENSORS))}
    parts = [
        gguf_bytes({**LLAMA, **split, "split.no": (2, 0)}, LLAMA_TENSORS[:3]),
        gguf_bytes({"split.no": (2, 1), **split}, LLAMA_TENSORS[3:]),
    ]
    shards = {f"m-0000{i}-of-00002.gguf": data for i, data in enumerate(parts, 1)}
    for name, data in shards.items():
        hub.add("lab/tiny", name, data)
    install, _ = installer(paths, Hub(hub.endpoint))
    manifest = install.install(META, [download(hub_file(n, d, role="shard")) for n, d in shards.items()])
    assert manifest.gguf is not None
    assert manifest.gguf.shards == 2
    assert manifest.gguf.weights.tensor_count == len(LLAMA_TENSORS)


def test_an_mlx_folder_keeps_its_layout(paths: Paths, hub: hubserver.Hub) -> None:
    data = {"config.json": b"{}", "sub/tokens.json": b"[]", "model.safetensors": b"\0" * 4096}
    for name, content in data.items():
        hub.add("lab/mlx", name, content)
    meta = PayloadMeta(engine="mlx", model_id="tiny")
    install, _ = installer(paths, Hub(hub.endpoint))
    install.install(meta, [download(hub_file(n, d, repo="lab/mlx", role="file")) for n, d in data.items()])
    root = paths.payload_dir("mlx", "tiny")
    assert {n: (root / n).read_bytes() for n in data} == data


def test_an_update_fetches_only_what_changed_and_removes_what_left(paths: Paths, hub: hubserver.Hub) -> None:
    for name, data in (("a.gguf", A), ("draft.gguf", DRAFT), ("old.gguf", B)):
        hub.add("lab/tiny", name, data)
    install, _ = installer(paths, Hub(hub.endpoint))
    draft, old = hub_file("draft.gguf", DRAFT, role="draft"), hub_file("old.gguf", B, role="mmproj")
    install.install(META, [download(hub_file("a.gguf", A)), download(draft), download(old)])
    (folder(paths) / "notes.txt").write_text("put here by a person")
    hub.add("lab/tiny", "a.gguf", B)
    hub.requests.clear()
    again, recorder = installer(paths, Hub(hub.endpoint))
    manifest = again.install(META, [download(hub_file("a.gguf", B)), FileAction(file=draft, how="present")])
    assert [r.path.rpartition("/")[2] for r in hub.requests if r.origin == "hub"] == ["a.gguf"]
    assert manifest.digests == {"a.gguf": sha(B), "draft.gguf": sha(DRAFT)}
    assert manifest.files[1].source.endswith("draft.gguf"), "how a kept file came is not forgotten"
    assert names(paths) == ["a.gguf", "draft.gguf", "manifest.json", "notes.txt"]
    assert "old.gguf: removed" in recorder.notes()


def test_a_narrowed_plan_leaves_the_other_files(paths: Paths, hub: hubserver.Hub) -> None:
    hub.add("lab/tiny", "a.gguf", A)
    hub.add("lab/tiny", "proj.gguf", B)
    install, _ = installer(paths, Hub(hub.endpoint))
    install.install(META, [download(hub_file("a.gguf", A)), download(hub_file("proj.gguf", B, role="mmproj"))])
    manifest = install.install(META, [FileAction(file=hub_file("a.gguf", A), how="present")], keep_others=True)
    assert list(manifest.digests) == ["a.gguf", "proj.gguf"]
    assert "proj.gguf" in names(paths)


def test_a_projector_that_another_stack_uses_stays(paths: Paths, hub: hubserver.Hub) -> None:
    for name, data in (("a.gguf", A), ("proj.gguf", B), ("old.gguf", DRAFT)):
        hub.add("lab/tiny", name, data)
    proj, old = hub_file("proj.gguf", B, role="mmproj"), hub_file("old.gguf", DRAFT, role="draft")
    install, _ = installer(paths, Hub(hub.endpoint))
    install.install(META, [download(hub_file("a.gguf", A)), download(proj), download(old)])
    hub.add("lab/tiny", "a.gguf", B)
    meta = replace(META, companions={"proj.gguf": sha(B), "old.gguf": sha(A)})
    again, recorder = installer(paths, Hub(hub.endpoint))
    manifest = again.install(meta, [download(hub_file("a.gguf", B))])
    assert manifest.digests == {"a.gguf": sha(B), "proj.gguf": sha(B)}
    assert names(paths) == ["a.gguf", "manifest.json", "proj.gguf"], "the catalog pins other bytes for old.gguf"
    assert "proj.gguf" not in recorder.notes()


def test_updating_a_hard_link_does_not_touch_its_source(paths: Paths, tmp_path: Path, hub: hubserver.Hub) -> None:
    model = source(tmp_path, "a.gguf", A)
    install, _ = installer(paths, Hub(hub.endpoint))
    install.install(META, [link(path_file(model, A))])
    hub.add("lab/tiny", "a.gguf", B)
    install.install(META, [download(hub_file("a.gguf", B))])
    assert (model.read_bytes(), (folder(paths) / "a.gguf").read_bytes()) == (A, B)


def test_relinking_the_same_file_leaves_no_partial(paths: Paths, tmp_path: Path) -> None:
    """rename(2) of one link of a file over another does nothing and succeeds."""
    action = link(path_file(source(tmp_path, "a.gguf", A)))
    install, _ = installer(paths)
    install.install(META, [action])
    install.install(META, [action])
    assert names(paths) == ["a.gguf", "manifest.json"]


def test_a_present_file_with_other_bytes_is_fetched_after_all(paths: Paths, hub: hubserver.Hub) -> None:
    hub.add("lab/tiny", "a.gguf", A)
    file = hub_file("a.gguf", A)
    install, _ = installer(paths, Hub(hub.endpoint))
    install.install(META, [download(file)])
    (folder(paths) / "a.gguf").write_bytes(B)
    install.install(META, [FileAction(file=file, how="present", size_bytes=len(A))])
    assert (folder(paths) / "a.gguf").read_bytes() == A


def test_a_failed_file_leaves_the_old_payload_and_keeps_what_arrived(paths: Paths, hub: hubserver.Hub) -> None:
    hub.add("lab/tiny", "a.gguf", A)
    install, _ = installer(paths, Hub(hub.endpoint))
    install.install(META, [download(hub_file("a.gguf", A))])
    hub.add("lab/tiny", "b.gguf", B)
    wanted = [download(hub_file("b.gguf", B)), download(hub_file("missing.gguf", DRAFT, role="draft"))]
    with pytest.raises(FetchError, match="no such file"):
        install.install(META, wanted)
    assert names(paths) == ["a.gguf", "b.gguf.partial", "manifest.json"]
    hub.add("lab/tiny", "missing.gguf", DRAFT)
    hub.requests.clear()
    install.install(META, wanted)
    assert [r.path.rpartition("/")[2] for r in hub.requests if r.origin == "hub"] == ["missing.gguf"]
    assert names(paths) == ["b.gguf", "manifest.json", "missing.gguf"]


@pytest.mark.parametrize("name", ["../a.gguf", "/etc/a.gguf", "a\\b.gguf", "nul", "x/../../a.gguf"])
def test_no_name_leaves_the_folder(paths: Paths, tmp_path: Path, name: str) -> None:
    action = link(replace(path_file(source(tmp_path, "a.gguf", A), A), name=name))
    install, _ = installer(paths)
    with pytest.raises(UnsafePathError):
        install.install(META, [action])
    assert not list(paths.store.rglob("*.gguf"))


def test_no_symbolic_link_in_the_store_is_followed(paths: Paths, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (paths.store / "models").mkdir(parents=True)
    (paths.store / "models" / "llama-cpp").symlink_to(outside)
    install, _ = installer(paths)
    with pytest.raises(UnsafePathError, match="symbolic link"):
        install.install(META, [link(path_file(source(tmp_path, "a.gguf", A), A))])
    assert not list(outside.iterdir())


def test_a_token_never_reaches_the_manifest(paths: Paths, hub: hubserver.Hub) -> None:
    hub.gated.add("lab/tiny")
    hub.add("lab/tiny", "a.gguf", A)
    install, _ = installer(paths, Hub(hub.endpoint, Secret(hub.token)))
    install.install(META, [download(hub_file("a.gguf", A))])
    text = (folder(paths) / "manifest.json").read_text()
    assert hub.token not in text
    assert "planted-signature" not in text


def test_two_installers_of_one_payload_take_turns(paths: Paths, tmp_path: Path) -> None:
    """Two stacks may share a store; each has its own lock."""
    install, recorder = installer(paths)
    finished = threading.Event()

    def work() -> None:
        install.install(META, [link(path_file(source(tmp_path, "a.gguf", A), A))])
        finished.set()

    with directory_lock(folder(paths), lambda: None):
        thread = threading.Thread(target=work)
        thread.start()
        assert not finished.wait(0.3)
        assert "another gezelctl" in recorder.notes()
    thread.join(10)
    assert names(paths) == ["a.gguf", "manifest.json"]


# What a crash leaves. The child installs a new payload over an old one, and dies at the n-th call of a system function
# that changes the disk. A later run must find either payload whole, and finish.

CRASH_CHILD = """
import itertools, json, os, signal, sys
from pathlib import Path
from tests.executing import META, installer, link, make_paths, path_file

root, at = Path(sys.argv[1]), int(sys.argv[2])
calls = itertools.count()

def deadly(function):
    def wrapper(*args, **kwargs):
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return wrapper

for name in ("replace", "link", "fsync", "unlink"):
    setattr(os, name, deadly(getattr(os, name)))
files = [root / "sources" / n for n in ("a.gguf", "draft.gguf", "new.gguf")]
roles = ("weights", "draft", "mmproj")
hows = ("link", "copy", "link")
actions = [link(path_file(f, f.read_bytes(), role=r), h) for f, r, h in zip(files, roles, hows)]
installer(make_paths(root))[0].install(META, actions)
print("done", next(calls))
"""


def crash(root: Path, at: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CRASH_CHILD, str(root), str(at)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])


def old_payload(root: Path) -> Paths:
    """An installed payload of a.gguf, draft.gguf and old.gguf, and sources that replace it."""
    paths = make_paths(root)
    for name, data in (("a.gguf", A), ("draft.gguf", A), ("old.gguf", A)):
        source(root, name, data)
    install, _ = installer(paths)
    roles = {"a.gguf": "weights", "draft.gguf": "draft", "old.gguf": "mmproj"}
    install.install(META, [link(path_file(root / "sources" / n, A, role=r), "copy") for n, r in roles.items()])  # type: ignore[arg-type] # roles
    for name, data in (("a.gguf", B), ("draft.gguf", DRAFT), ("new.gguf", B)):
        source(root, name, data)
    return paths


def assert_whole_or_doubted(paths: Paths) -> None:
    """Every file that the manifest still speaks for has the bytes that it says."""
    (payload,) = installed(paths)
    for file in payload.manifest.files:
        if file.name not in payload.damaged:
            assert sha((folder(paths) / file.name).read_bytes()) == file.sha256, file.name


@pytest.fixture(scope="module")
def crash_points(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many points a whole install passes."""
    root = tmp_path_factory.mktemp("whole")
    old_payload(root)
    finished = crash(root, -1)
    assert finished.returncode == 0, finished.stderr
    return int(finished.stdout.split()[1])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(share=st.floats(0, 1, exclude_max=True))
def test_killed_at_any_point_the_next_run_finishes(crash_points: int, share: float) -> None:
    at = int(share * crash_points)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        paths = old_payload(root)
        killed = crash(root, at)
        assert killed.returncode == -9, killed.stderr
        assert_whole_or_doubted(paths)
        finished = crash(root, -1)
        assert finished.returncode == 0, finished.stderr
        (payload,) = installed(paths)
        assert payload.manifest.digests == {"a.gguf": sha(B), "draft.gguf": sha(DRAFT), "new.gguf": sha(B)}
        assert payload.damaged == ()
        assert_whole_or_doubted(paths)
        # a crash after the new manifest leaves the one file that it no longer names; it is nobody's harm
        assert set(names(paths)) - {"old.gguf"} == {"a.gguf", "draft.gguf", "new.gguf", "manifest.json"}


def test_killed_in_a_download_the_next_run_finishes(paths: Paths, tmp_path: Path, hub: hubserver.Hub) -> None:
    data = A + b""
    big = gguf_bytes(LLAMA, [*LLAMA_TENSORS, ("blk.1.big.weight", (1024, 2048), 0)])
    hub.add("lab/tiny", "a.gguf", big)
    hub.fault = hubserver.Fault("slow")
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from gezelctl.observe.hub import Hub\n"
        "from tests.executing import *\n"
        "data = Path(sys.argv[3]).read_bytes()\n"
        "i, _ = installer(make_paths(Path(sys.argv[1])), Hub(sys.argv[2]))\n"
        "i.install(META, [download(hub_file('a.gguf', data))])\n"
    )
    (tmp_path / "big").write_bytes(big)
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), hub.endpoint, str(tmp_path / "big")], cwd=Path(__file__).parents[2]
    )
    partial = folder(paths) / "a.gguf.partial"
    deadline = time.monotonic() + 20
    while not (partial.exists() and partial.stat().st_size > 100_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.kill()
    assert child.wait() == -9
    assert names(paths) == ["a.gguf.partial"]
    assert installed(paths) == ()
    hub.fault = None
    install, _ = installer(paths, Hub(hub.endpoint))
    install.install(META, [download(hub_file("a.gguf", big))])
    assert names(paths) == ["a.gguf", "manifest.json"]
    assert data == A


def test_an_interrupted_publish_is_doubted_until_it_is_finished(paths: Paths, tmp_path: Path) -> None:
    """From the first rename on, the old manifest lies about the replaced file, although sizes agree."""
    install, _ = installer(paths)
    install.install(META, [link(path_file(source(tmp_path, "a.gguf", A), A), "copy")])
    new = install.install(replace(META, version="2.0.0"), [link(path_file(source(tmp_path, "a.gguf", B), B), "copy")])
    root = folder(paths)
    old = json.loads((root / "manifest.json").read_text())
    (root / ".manifest.next.json").write_text(json.dumps(old))
    old["files"][0]["sha256"] = sha(A)
    (root / "manifest.json").write_text(json.dumps(old))
    (payload,) = installed(paths)
    assert payload.damaged == ("a.gguf",)
    assert new.digests == {"a.gguf": sha(B)}


def test_an_unreadable_manifest_is_replaced(paths: Paths, tmp_path: Path) -> None:
    action = link(path_file(source(tmp_path, "a.gguf", A), A))
    install, recorder = installer(paths)
    install.install(META, [action])
    (folder(paths) / "manifest.json").write_text("{")
    install.install(META, [action])
    assert "is damaged" in recorder.notes()
    assert installed(paths)[0].manifest.digests == {"a.gguf": sha(A)}


def test_a_store_that_may_not_be_written(paths: Paths, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        (paths.store).parent.mkdir(exist_ok=True)
        paths.store.write_text("a file in the store's place")
    else:
        paths.store.mkdir(parents=True)
        paths.store.chmod(0o500)
    install, _ = installer(paths)
    with pytest.raises(GezelctlError) as caught:
        install.install(META, [link(path_file(source(tmp_path, "a.gguf", A), A))])
    assert caught.value.cure
    if paths.store.is_dir():
        shutil.rmtree(paths.store)


FULL_DISK_CHILD = """
import sys
from pathlib import Path
from gezelctl.errors import FetchError
from gezelctl.execute.fetch import Hub
from tests.executing import *

small, endpoint, source = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
data = source.read_bytes()
paths = Paths(store=small, state=small, cache=small)
for how in ("measured", "download", "copy"):
    file = hub_file("big.gguf", data, sized=how == "measured")
    action = download(file) if how != "copy" else link(path_file(source), "copy")
    try:
        installer(paths, Hub(endpoint))[0].install(META, [action])
    except FetchError as error:
        print(how, error.code, sorted(p.name for p in small.rglob("*") if p.is_file() and p.parent.name != "digests"))
        print(error.message)
"""


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, hub: hubserver.Hub) -> None:
    """A tmpfs of 1 MiB: refused beforehand where the size is known, and named while writing where it is not."""
    big = gguf_bytes(LLAMA, [*LLAMA_TENSORS, ("blk.1.big.weight", (1024, 1024), 0)])
    hub.add("lab/tiny", "big.gguf", big)
    (tmp_path / "big.gguf").write_bytes(big)
    small = tmp_path / "small"
    small.mkdir()
    mount = 'mount -t tmpfs -o size=1m tmpfs "$1" || exit 77; shift; exec "$@"'
    child = [sys.executable, "-c", FULL_DISK_CHILD, str(small), hub.endpoint, str(tmp_path / "big.gguf")]
    if not shutil.which("unshare"):
        pytest.skip("needs the unshare program and user namespaces, to mount a small tmpfs")
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mount, "sh", str(small), *child],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    if (done.returncode in {1, 77} and "unshare" in done.stderr + done.stdout) or done.returncode == 77:
        pytest.skip("needs user namespaces, to mount a small tmpfs")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0::2] == ["measured DISK_FULL []", "download DISK_FULL []", "copy DISK_FULL []"]
    assert "to keep free" in lines[1]
    assert "are missing" in lines[3]
    assert "are missing" in lines[5]

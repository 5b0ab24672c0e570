"""State on disk: manifests, records, keys, events, digests. Whole or absent, private where it must be."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gezelctl.config.secrets import Secret, mask
from gezelctl.errors import StalePlan, UnknownHost
from gezelctl.store.digests import file_sha256
from gezelctl.store.events import EventLog, read_events
from gezelctl.store.files import StateError
from gezelctl.store.layout import Paths
from gezelctl.store.manifests import Inventory, installed, read_manifest, scan
from gezelctl.store.records import (
    consume_plan,
    ensure_state,
    hmac_key,
    new_token,
    read_record,
    read_records,
    read_state,
    remove_record,
    write_record,
)
from gezelctl.store.types import InstalledFile, InstalledManifest, RunRecord
from tests.executing import make_paths, sha, write_manifest


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return make_paths(tmp_path)


def manifest(**fields: object) -> InstalledManifest:
    files = (InstalledFile("a.gguf", "weights", sha(b"abc"), 3), InstalledFile("sub/b.json", "file", sha(b"de"), 2))
    base = InstalledManifest("llama-cpp", "tiny", "Tiny", "1.0.0", "", files, "2026-01-01T00:00:00Z")
    return msgspec.structs.replace(base, **fields)


def put(paths: Paths, model_id: str = "tiny") -> Path:
    root = paths.payload_dir("llama-cpp", model_id)
    (root / "sub").mkdir(parents=True)
    (root / "a.gguf").write_bytes(b"abc")
    (root / "sub/b.json").write_bytes(b"de")
    return root


def test_a_manifest_reads_as_it_was_written(paths: Paths) -> None:
    root = put(paths)
    write_manifest(root, manifest())
    assert read_manifest(root, "llama-cpp") == manifest()
    assert not list(root.glob(".*")), "no temporary file stays"


def test_files_are_checked_by_kind_and_size(paths: Paths) -> None:
    root = put(paths)
    write_manifest(root, manifest())
    assert installed(paths)[0].damaged == ()
    (root / "a.gguf").write_bytes(b"abcd")
    (root / "sub/b.json").unlink()
    (root / "sub/b.json").symlink_to(root / "manifest.json")
    assert installed(paths)[0].damaged == ("a.gguf", "sub/b.json")


def test_an_empty_or_absent_store_has_no_payloads(paths: Paths) -> None:
    assert scan(paths) == Inventory(())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schemaVersion": 1}',
        '{"schemaVersion": 99, "engine": "x"}',
        '{"id": "x"}',
        "\xff",
        '{"engine": 1}',
    ],
)
def test_an_unreadable_manifest_is_a_problem_and_no_crash(paths: Paths, text: str) -> None:
    write_manifest(put(paths, "good"), manifest(id="good"))
    (put(paths, "bad") / "manifest.json").write_bytes(text.encode("latin-1"))
    inventory = scan(paths)
    assert [p.manifest.id for p in inventory.payloads] == ["good"]
    (problem,) = inventory.problems
    assert str(paths.payload_dir("llama-cpp", "bad") / "manifest.json") in problem


def test_a_manifest_may_not_name_files_elsewhere(paths: Paths) -> None:
    root = put(paths)
    write_manifest(root, manifest(files=(InstalledFile("../../x", "weights", sha(b""), 0),)))
    with pytest.raises(StateError, match=r"\.\./\.\./x"):
        read_manifest(root, "llama-cpp")


def test_dot_folders_and_links_are_no_payloads(paths: Paths) -> None:
    write_manifest(put(paths), manifest())
    engine = paths.models / "llama-cpp"
    (engine / "linked").symlink_to(engine / "tiny")
    (engine / "tiny").rename(engine / ".backup")
    assert scan(paths).payloads == ()


def test_gezels_manifest_of_a_gguf_is_read(paths: Paths) -> None:
    root = put(paths)
    (root / "proj.gguf").write_bytes(b"pppp")
    old = {
        "id": "tiny", "name": "Tiny", "approxSizeBytes": 7, "weightsFilename": "a.gguf", "sha256": "A" * 64,
        "mmprojFilename": "proj.gguf", "draftModelFilename": "gone.gguf", "installedAt": "2026-01-01T00:00:00.000Z",
        "catalogId": "tiny", "catalogVersion": "1.2.0", "huggingfaceRepo": "lab/tiny", "quantization": None,
        "chatTemplatePresent": True, "fileSha256": {"a.gguf": sha(b"abc"), "proj.gguf": sha(b"pppp")},
        "payloadFingerprint": "f" * 64,
    }  # fmt: skip
    (root / "manifest.json").write_text(json.dumps(old))
    (payload,) = installed(paths)
    assert [(f.name, f.role, f.sha256) for f in payload.manifest.files] == [
        ("a.gguf", "weights", sha(b"abc")),
        ("proj.gguf", "mmproj", sha(b"pppp")),
        ("gone.gguf", "draft", ""),
    ]
    assert payload.damaged == ("gone.gguf",)
    assert (payload.manifest.catalog_version, payload.manifest.fingerprint) == ("1.2.0", "f" * 64)
    assert payload.manifest.repo == "lab/tiny"


def test_gezels_manifest_of_shards_and_of_mlx_is_read(paths: Paths) -> None:
    root = put(paths)
    (root / "c.gguf").write_bytes(b"xyz!")
    shards = [
        {"filename": f"q4/{n}", "sha256": sha(d), "sizeBytes": s}
        for n, d, s in (("a.gguf", b"abc", 3), ("c.gguf", b"xyz", 3))
    ]
    old = {"id": "tiny", "name": "Tiny", "weightsFilename": "a.gguf", "installedAt": "x", "shards": shards}
    (root / "manifest.json").write_text(json.dumps(old))
    (payload,) = installed(paths)
    assert [(f.name, f.role) for f in payload.manifest.files] == [("a.gguf", "shard"), ("c.gguf", "shard")]
    assert payload.damaged == ("c.gguf",), "the size comes from the shards table"
    mlx = {"id": "tiny", "name": "Tiny", "installedAt": "x", "files": ["a.gguf", "sub/b.json"], "fileSha256": {}}
    (root / "manifest.json").write_text(json.dumps(mlx))
    assert [f.name for f in installed(paths)[0].manifest.files] == ["a.gguf", "sub/b.json"]


def record(server: str = "chat", **fields: object) -> RunRecord:
    base = RunRecord(server=server, token=new_token(), launch=msgspec.Raw(b'{"program":"/x"}'))
    return msgspec.structs.replace(base, **fields)


def test_a_record_is_private_and_reads_back(paths: Paths) -> None:
    one = record(pid=7, process_started=1.5)
    write_record(paths, one)
    back = read_record(paths, "chat")
    assert back is not None
    assert (back.pid, back.token, json.loads(bytes(back.launch))) == (7, one.token, {"program": "/x"})
    assert stat.S_IMODE(paths.run_record("chat").stat().st_mode) == 0o600
    remove_record(paths, "chat")
    assert read_record(paths, "chat") is None


def test_records_that_cannot_be_read_are_named(paths: Paths) -> None:
    for name in ("b", "a"):
        write_record(paths, record(name))
    paths.run_record("broken").write_text("{")
    paths.run_record("moved").write_bytes(paths.run_record("a").read_bytes())
    records, problems = read_records(paths)
    assert [r.server for r in records] == ["a", "b"]
    assert [re.split("[: ]", p.rpartition("/")[2])[0] for p in problems] == ["broken.json", "moved.json"]


def _lineage(root: str, queue: multiprocessing.Queue[str]) -> None:
    queue.put(ensure_state(make_paths(Path(root)), "lab").lineage)


def test_first_callers_agree_on_one_lineage(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[str] = context.Queue()
    children = [context.Process(target=_lineage, args=(str(tmp_path), queue)) for _ in range(3)]
    for child in children:
        child.start()
    found = {queue.get(timeout=30) for _ in children}
    for child in children:
        child.join()
        child.close()
    queue.close()
    queue.join_thread()
    state = read_state(make_paths(tmp_path))
    assert state is not None
    assert found == {state.lineage}
    assert os.listdir(make_paths(tmp_path).state) == ["state.json"]  # noqa: PTH208 - also hidden names


def test_state_of_another_stack_is_refused(paths: Paths) -> None:
    ensure_state(paths, "other")
    with pytest.raises(StateError, match="belongs to stack other"):
        ensure_state(paths, "lab")


def test_the_key_is_made_once_and_private(paths: Paths) -> None:
    key = hmac_key(paths)
    assert hmac_key(paths) == key
    assert len(key) == 32
    assert stat.S_IMODE(paths.hmac_key.stat().st_mode) == 0o600
    paths.hmac_key.write_bytes(b"short")
    with pytest.raises(StateError, match="is damaged"):
        hmac_key(paths)


def test_a_plan_is_carried_out_once(paths: Paths) -> None:
    consume_plan(paths, sha(b"plan"))
    with pytest.raises(StalePlan, match="carried out before"):
        consume_plan(paths, sha(b"plan"))
    with pytest.raises(StalePlan):
        consume_plan(paths, "../x")


def event_log(paths: Paths, rotate_bytes: int = 1 << 20) -> EventLog:
    return EventLog(
        paths,
        stack="lab",
        host="here",
        run_id="r1",
        mask=lambda text: mask(text, [Secret("planted-value")]),
        now=lambda: datetime(2026, 1, 2, 3, 4, 5, 678000, UTC),
        rotate_bytes=rotate_bytes,
    )


def test_events_are_lines_that_begin_with_the_version(paths: Paths) -> None:
    log = event_log(paths)
    log.write("step_started", address="server.chat", action="create", reason="not_present")
    log.write("step_failed", address="server.chat", level="error", detail={"bytes": 3})
    lines = [json.loads(line) for line in paths.events.read_text().splitlines()]
    assert [line["type"] for line in lines] == ["version", "step_started", "step_failed"]
    assert lines[0]["detail"]["format"] == "1.0"
    assert lines[1] == {
        "ts": "2026-01-02T03:04:05.678Z", "type": "step_started", "stack": "lab", "host": "here", "runId": "r1",
        "address": "server.chat", "action": "create", "reason": "not_present",
    }  # fmt: skip


def test_no_secret_is_written(paths: Paths) -> None:
    event_log(paths).write("x", message="key planted-value failed", detail={"header": "Bearer planted-value"})
    text = paths.events.read_text()
    assert "planted-value" not in text
    assert "key *** failed" in text


def test_events_rotate_by_size_and_each_file_says_its_version(paths: Paths) -> None:
    log = event_log(paths, rotate_bytes=1000)
    for number in range(60):
        log.write("step_done", message="x" * 50, detail={"n": number})
    files = sorted(p.name for p in paths.state.glob("events*"))
    assert files == ["events.jsonl", "events.jsonl.1", "events.jsonl.2", "events.jsonl.3"]
    for name in files:
        text = (paths.state / name).read_text()
        assert json.loads(text.splitlines()[0])["type"] == "version"
        assert len(text) < 1500
    assert [e.detail["n"] for e in read_events(paths) if e.type == "step_done"][-1] == 59


def test_a_torn_line_spoils_only_itself(paths: Paths) -> None:
    log = event_log(paths)
    log.write("one")
    with paths.events.open("a") as stream:
        stream.write('{"ts": "cut o')
    log.write("two")
    assert [e.type for e in read_events(paths)] == ["version", "one", "two"]


@given(data=st.binary(max_size=200))
def test_digests_are_right_with_and_without_the_cache(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = tmp_path_factory.mktemp("d")
    (root / "f").write_bytes(data)
    assert file_sha256(root / "f", None) == file_sha256(root / "f", root / "c") == file_sha256(root / "f", root / "c")
    assert file_sha256(root / "f", root / "c") == sha(data)


def test_a_state_folder_that_may_not_be_read_is_not_an_empty_one(paths: Paths) -> None:
    """As root, who may read everything, only what fails for root too: a loop of links."""
    write_record(paths, record("a"))
    if os.geteuid() == 0:
        paths.runs.rename(paths.state / "away")
        paths.runs.symlink_to("runs")
    else:
        paths.runs.chmod(0)
    with pytest.raises(UnknownHost) as caught:
        read_records(paths)
    if not paths.runs.is_symlink():
        paths.runs.chmod(0o700)
    assert caught.value.exit_code == 8
    assert "GEZELCTL_STATE_DIR" in caught.value.cure


def test_an_unchanged_file_is_not_read_again_and_a_changed_one_is(tmp_path: Path) -> None:
    file, cache = tmp_path / "f", tmp_path / "cache"
    file.write_bytes(b"one")
    digest = file_sha256(file, cache)
    before = file.stat()
    if os.geteuid() != 0:
        file.chmod(0)
        assert file_sha256(file, cache) == digest, "no byte was read"
        file.chmod(0o600)
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert file_sha256(file, cache) == sha(b"two")


def test_a_cache_that_cannot_be_used_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one")
    (tmp_path / "cache").write_text("a file in its place")
    assert file_sha256(tmp_path / "f", tmp_path / "cache") == sha(b"one")
    good = tmp_path / "good"
    file_sha256(tmp_path / "f", good)
    for entry in (good / "digests").iterdir():
        entry.write_bytes(b"\xc1 garbage")
    assert file_sha256(tmp_path / "f", good) == sha(b"one")

"""Payloads: what is in them, their fingerprint and its order, safe names, what one server needs of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gezelctl.catalog.findings import Findings
from gezelctl.catalog.manifest import payloads
from gezelctl.catalog.names import SEMVER, collation_key, name_fault, semver_key
from gezelctl.catalog.payload import applicable_files, build, draft_applies, fingerprint, shard_names, shard_position
from gezelctl.catalog.types import Origin, Payload, PayloadFile
from gezelctl.catalog.versions import newest_first
from gezelctl.config.diagnostics import Diagnostic

CASES = Path(__file__).parents[1] / "cases" / "catalog"
HUB = Origin("huggingface", repo="o/r", filename="x")
S1, S2 = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"
HASH = st.text("0123456789abcdef", min_size=64, max_size=64)
NAME = st.text("abcXYZ019._-/", min_size=1, max_size=12).filter(lambda name: not name_fault(name))
FILES = st.dictionaries(NAME, HASH, min_size=1, max_size=8)


def payload(files: dict[str, str], *, repo: str = "o/r", chat_template: str = "", size: int = 1) -> Payload:
    entries = tuple(PayloadFile(name, "file", HUB, sha256, size) for name, sha256 in files.items())
    return Payload("mlx", "m", repo, entries, chat_template=chat_template)


def blocks(llama_cpp: object = None, mlx: object = None) -> tuple[dict[str, Payload], tuple[Diagnostic, ...]]:
    findings = Findings(lambda _: None)
    return payloads(llama_cpp, mlx, "m", "1.0.0", findings), findings.all


def llama(**fields: object) -> dict[str, Any]:
    base = {"huggingfaceRepo": "o/r", "filename": "m.gguf", "sha256": "a" * 64, "approxSizeBytes": 10}
    return {key: value for key, value in (base | fields).items() if value is not None}


def entry(name: str, letter: str = "b", key: str = "name", **fields: object) -> dict[str, Any]:
    return {key: name, "sha256": letter * 64, "sizeBytes": 3} | fields


@pytest.mark.parametrize("vector", json.loads((CASES / "fingerprints.json").read_text())["payloads"])
def test_fingerprint_equals_what_the_reference_records(vector: dict[str, Any]) -> None:
    found = payload(dict(vector["files"]), repo=vector["repo"], chat_template=vector["chatTemplate"])
    assert fingerprint(found) == vector["fingerprint"]


def test_the_first_vector_is_the_golden_value() -> None:
    found = payload({"model.safetensors": "A" * 64, "config.json": "b" * 64}, repo="test-org/test-repo")
    assert fingerprint(found) == "17034f942519d6359c654b328b8fa128891fa42127add4263cb8361575bc17ce"


def test_names_sort_as_locale_compare_sorts_them() -> None:
    names = json.loads((CASES / "collation.json").read_text())["names"]
    shuffled = random.Random(4).sample(names, len(names))
    assert sorted(shuffled, key=collation_key) == names
    golden = ["a_b.gguf", "a-b.gguf", "A.gguf", "b.1", "b/1", "mmproj.gguf", "Model.gguf"]
    assert sorted(sorted(golden), key=collation_key) == golden


@given(FILES, st.randoms(use_true_random=False), st.integers(1, 2**50))
def test_fingerprint_ignores_order_hash_case_and_size(files: dict[str, str], rng: random.Random, size: int) -> None:
    other = {name: sha256.upper() for name, sha256 in rng.sample(list(files.items()), len(files))}
    assert fingerprint(payload(files)) == fingerprint(payload(other, size=size))


@given(FILES, st.data())
def test_fingerprint_changes_with_any_name_hash_repo_or_template(files: dict[str, str], data: st.DataObject) -> None:
    before = fingerprint(payload(files))
    name = data.draw(st.sampled_from(sorted(files)))
    renamed, rehashed = data.draw(NAME), data.draw(HASH)
    assume(renamed not in files and rehashed != files[name])
    rest = {other: sha256 for other, sha256 in files.items() if other != name}
    assert fingerprint(payload(rest | {renamed: files[name]})) != before
    assert fingerprint(payload(rest | {name: rehashed})) != before
    assert fingerprint(payload(files, repo="o/other")) != before
    assert fingerprint(payload(files, chat_template="{{ x }}")) != before


def test_a_file_without_a_hash_has_no_fingerprint() -> None:
    assert fingerprint(payload({"a": "a" * 64, "b": ""})) == ""


def test_llama_payload_order_names_and_companions() -> None:
    found, problems = blocks(
        llama(
            filename=None,
            sha256=None,
            revision="abc123",
            shards=[entry("Q4/m-00001-of-00002.gguf"), entry("Q4/m-00002-of-00002.gguf", "c")],
            mmproj=entry("mmproj/p.gguf", "d", "filename"),
            draftModel=entry("d.gguf", "e", "filename", huggingfaceRepo="other/drafts", backends=["cuda"]),
        )
    )
    assert problems == ()
    files = found["llama-cpp"].files
    assert [(file.name, file.role, file.optional) for file in files] == [
        ("m-00001-of-00002.gguf", "shard", False),
        ("m-00002-of-00002.gguf", "shard", False),
        ("d.gguf", "draft", False),
        ("p.gguf", "mmproj", True),
    ]
    assert files[0].origin == Origin("huggingface", repo="o/r", revision="abc123", filename="Q4/m-00001-of-00002.gguf")
    assert files[2].origin == Origin("huggingface", repo="other/drafts", revision="main", filename="d.gguf")


def test_a_drafter_of_the_same_repo_keeps_its_revision_and_may_have_its_own() -> None:
    for fields, revision in (({}, "abc"), ({"revision": "v2"}, "v2"), ({"huggingfaceRepo": "o/r"}, "abc")):
        found, _ = blocks(llama(revision="abc", draftModel=entry("d.gguf", "e", "filename", **fields)))
        assert found["llama-cpp"].files[1].origin.revision == revision


def test_mlx_files_keep_their_folders_and_subdir_is_only_remote() -> None:
    found, problems = blocks(
        mlx={
            "huggingfaceRepo": "o/r",
            "subdir": "4bit/build",
            "files": [entry("config.json"), entry("sub/w.safetensors", "c")],
            "approxSizeBytes": 6,
            "chatTemplate": "{{ x }}",
            "disabledReason": "needs a newer mlx-lm",
        }
    )
    assert problems == ()
    mlx = found["mlx"]
    assert [file.name for file in mlx.files] == ["config.json", "sub/w.safetensors"]
    assert mlx.files[1].origin.filename == "4bit/build/sub/w.safetensors"
    assert mlx.disabled_reason == "needs a newer mlx-lm"
    assert mlx.fingerprint != fingerprint(msgspec.structs.replace(mlx, chat_template=""))


@pytest.mark.parametrize(
    ("block", "code", "about"),
    [
        (llama(shards=[entry(S1), entry(S2)]), "E0207", "both"),
        (llama(filename=None, sha256=None), "E0207", "neither"),
        (llama(sha256=None), "E0207", "neither"),
        (llama(filename=None, sha256=None, shards=[entry("m-00001-of-00001.gguf")]), "E0207", "two shards"),
        (llama(filename=None, sha256=None, shards=[entry(S1), entry("m-00003-of-00002.gguf")]), "E0207", "not one set"),
        (llama(filename=None, sha256=None, shards=[entry(S2), entry(S1)]), "E0207", "not one set"),
        (llama(mmproj=entry("M.GGUF", "d", "filename")), "E0208", "where case does not count"),
        (llama(filename="../m.gguf"), "E0208", "`..`"),
        (llama(filename="/m.gguf"), "E0208", "relative"),
        (llama(filename="manifest.json"), "E0208", "the store uses itself"),
        (llama(sha256="A" * 64), "E0203", "sha256"),
        (llama(sha256="a" * 64 + "\n"), "E0203", "sha256"),
        (llama(huggingfaceRepo="../.."), "E0203", "huggingfaceRepo"),
        (llama(huggingfaceRepo=None), "E0203", "`huggingfaceRepo` is missing"),
        (llama(approxSizeBytes=0), "E0203", "approxSizeBytes"),
        (llama(approxSizeBytes=10**30), "E0203", "approxSizeBytes"),
        (llama(draftModel={"filename": "d"}), "E0203", "draftModel: `sha256` is missing"),
        (llama(draftModel=entry("d")), "E0203", "draftModel: `filename` is missing"),
        ([], "E0203", "expected `object`"),
    ],
)
def test_bad_llama_block(block: object, code: str, about: str) -> None:
    _, problems = blocks(block)
    errors = [found for found in problems if found.severity == "error"]
    assert [found.code for found in errors] == [code]
    assert about in f"{errors[0].summary} {errors[0].address}"
    assert errors[0].cure


@pytest.mark.parametrize(
    ("names", "about"),
    [
        (["a", "a"], "twice"),
        (["a", "A"], "where case does not count"),
        (["a", "a/b"], "both a file and a folder"),
        (["a/b", "a"], "both a file and a folder"),
        (["a/../b"], "`..`"),
        (["a/./b"], "`.`"),
        (["a//b"], "empty"),
        (["a\\b"], "backslash"),
        (["a\nb"], "control character"),
        (["a\x7f"], "control character"),
        (["c:/b"], "relative"),
        (["x/NUL.txt"], "device name"),
        (["x.partial"], "the store uses itself"),
        (["x" * 300], "longer than"),
        (["x/" * 600 + "y"], "1 to 1024"),
        ([""], "`name` is missing"),
        ([], "lists no file"),
    ],
)
def test_bad_mlx_names(names: list[str], about: str) -> None:
    block = {"huggingfaceRepo": "o/r", "approxSizeBytes": 1, "files": [entry(name) for name in names]}
    _, problems = blocks(mlx=block)
    assert len(problems) == 1
    assert about in problems[0].summary


def test_shards_of_two_folders_that_flatten_to_one_name() -> None:
    _, problems = blocks(llama(filename=None, sha256=None, shards=[entry(f"x/{S1}"), entry(f"y/{S1}")]))
    assert [problem.code for problem in problems] == ["E0208", "E0207"]
    assert "twice" in problems[0].summary


def test_all_faults_of_a_block_are_reported_at_once() -> None:
    files = [entry("ok"), {"name": "x", "sha256": "short", "sizeBytes": 1}, entry(".."), {"name": "y"}]
    found, problems = blocks(mlx={"huggingfaceRepo": "o/r", "approxSizeBytes": 1, "files": files})
    assert "mlx" not in found
    assert [problem.summary.split(":")[0] for problem in problems] == [
        "mlx.files[1].sha256",
        "mlx.files[2].name",
        "mlx.files[3]",
    ]


@given(st.lists(NAME, max_size=6))
def test_a_built_payload_has_names_that_cannot_collide_on_disk(names: list[str]) -> None:
    findings = Findings(lambda _: None)
    files = tuple(PayloadFile(name, "file", HUB, "a" * 64) for name in names)
    build(Payload("mlx", "m", "o/r", files), findings, [()] * len(files))
    if not findings.failed:
        folded = [name.casefold() for name in names]
        assert len(set(folded)) == len(folded)
        assert not any(a != b and b.startswith(f"{a}/") for a in folded for b in folded)


def test_what_one_server_needs() -> None:
    found, _ = blocks(
        llama(
            mmproj=entry("p.gguf", "d", "filename"),
            draftModel=entry("d.gguf", "e", "filename", backends=["cuda", "vulkan"]),
        )
    )
    whole = found["llama-cpp"]

    def names(accelerator: str, *, vision: bool = False, drafter: bool = True) -> list[str]:
        files = applicable_files(whole, accelerator=accelerator, vision=vision, drafter=drafter)
        return [file.name for file in files]

    assert names("cuda") == ["m.gguf", "d.gguf"]
    assert names("cuda", vision=True) == ["m.gguf", "d.gguf", "p.gguf"]
    assert names("cuda", drafter=False) == ["m.gguf"]
    assert names("metal") == ["m.gguf"]
    assert names("", vision=True) == ["m.gguf", "p.gguf"]
    assert not draft_applies(whole.files[1], "")
    assert whole.fingerprint == fingerprint(whole)


def test_shard_names_follow_the_pattern_of_llama_cpp() -> None:
    assert shard_names("m-00001-of-00003.gguf") == tuple(f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3))
    assert shard_names("m-00001-of-00003.GGUF")[2] == "m-00003-of-00003.GGUF"
    assert shard_names("m-1-of-3.gguf") == ("m-1-of-3.gguf",)
    assert shard_position("m-00002-of-00003.gguf") == (2, 3)
    assert shard_position("m.gguf") == (1, 1)


def test_versions_order_by_semver() -> None:
    ordered = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1"]
    ordered += ["1.0.0", "1.9.0", "1.10.0", "10.0.0"]
    assert newest_first(random.Random(2).sample(ordered, len(ordered))) == ordered[::-1]
    assert semver_key("1.0.0+a") == semver_key("1.0.0+b")
    for bad in ("1.0", "v1.0.0", "1.0.0\n", "\uff11.0.0", "1.0.0-", "1.0.0 "):
        assert SEMVER.match(bad) is None

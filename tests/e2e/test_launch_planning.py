"""Launches as the planner decides them, on the real llama-server: memory to the byte, drafters that work or do not."""

from __future__ import annotations

import hashlib
import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gezelctl.observe.helptext import parse_help
from tests.e2e.lab import Lab, ask, free_port
from tests.tinymodels import ARCHITECTURES, write_tiny

pytestmark = pytest.mark.engine("llama-server", "smollm2")
HEAD = """apiVersion: gezelctl/v1
stack: {stack}
store: {{path: ./store, adoptFrom: [./blobs]}}
defaults: {{backend: cpu}}
"""


def _backends(llama_server: Path) -> str:
    return f"cpu: {{engine: llama-cpp, accelerator: cpu, binary: {llama_server}}}"


def _catalog(lab: Lab, smollm2: Path, **drafter: Any) -> str:
    """A catalog with the model `pair` of SmolLM2 and a drafter, both to be adopted by hash; returns its models.yaml."""
    blobs = lab.root / "blobs"
    blobs.mkdir()
    lab.link(smollm2, "blobs/m.gguf")
    write_tiny(blobs / "draft.gguf", "llama", smollm2, **drafter)
    entries = {path.name: _entry(path) for path in sorted(blobs.iterdir())}
    weights = {**entries["m.gguf"], "approxSizeBytes": smollm2.stat().st_size}
    del weights["sizeBytes"]
    model = {
        "id": "pair",
        "llamaCpp": {"huggingfaceRepo": "lab/pair", **weights, "draftModel": entries["draft.gguf"]},
        "tuning": {"engine": {"llamaCpp": {"spec": {"type": "draft-simple"}}}},
    }
    catalog = {"apiVersion": "gezelctl/v1", "kind": "Catalog", "models": [model]}
    (lab.root / "catalog.json").write_text(json.dumps(catalog))
    return HEAD.format(stack=lab.stack) + "catalogs: [{path: ./catalog.json}]\n"


def _entry(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"filename": path.name, "sha256": digest, "sizeBytes": path.stat().st_size}


def _slots(port: int) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/slots", timeout=30) as response:
        found: list[dict[str, Any]] = json.load(response)
    return found


def _defaults(program: Path) -> dict[str, str]:
    """Default by long flag, as --help tells it."""
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    flags = parse_help(text).flags
    return {next((n for n in f.names if n.startswith("--")), f.names[0]): f.default for f in flags}


def _conditions(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {c["type"]: c for c in row["conditions"]}


def test_four_shapes_take_the_memory_that_was_planned(lab: Lab, llama_server: Path, smollm2: Path) -> None:
    files = {name: write_tiny(lab.root / f"{name}.gguf", name, smollm2) for name in ARCHITECTURES}
    files["smollm2"] = lab.link(smollm2, "smollm2.gguf")
    ports = {name: free_port() for name in files}
    lab.write(
        "\n".join(f"- {{name: {n}, source: {{path: ./{p.name}}}, port: {ports[n]}}}" for n, p in files.items()),
        backends=_backends(llama_server),
        head=HEAD.format(stack=lab.stack),
    )
    done = lab.apply()
    assert "warning" not in done.err
    assert lab.idle()
    for name, row in lab.status().items():
        planned, measured = row["memoryPlanned"], row["memoryMeasured"]
        context = sum(measured["contextBytes"].values())
        weights = sum(measured["weightsBytes"].values())
        compute = sum(measured["computeBytes"].values()) + sum(measured["outputBytes"].values())
        assert context == planned["contextBytes"], name
        assert abs(weights - planned["weightsBytes"]) <= planned["weightsBytes"] * 0.01, name
        assert 0 < compute <= planned["computeBytes"], name
        assert row["memoryMeasuredBytes"] == weights + context + compute
        assert 0 < row["memoryMeasuredBytes"] <= row["memoryPlannedBytes"], name
        assert _conditions(row)["MemoryAsPlanned"]["status"] == "True"
        assert row["health"] == "Ready"
        assert ask(ports[name], "Hello")[0] == 200
    wide = lab.ok("status", "-o", "wide").out
    assert wide.count("(planned ") == len(files)
    explained = lab.ok("plan", "--explain", "server.gemma3").out
    assert "measured on this build for gemma3, server gemma3: context " in explained
    learned = json.loads((lab.state / "measured.json").read_text())
    assert {key.partition("/")[2] for key in learned} == {"llama", "qwen3moe", "gemma3"}


def test_a_draft_model_really_speculates_and_counts(lab: Lab, llama_server: Path, smollm2: Path) -> None:
    port = free_port()
    lab.link(smollm2, "m.gguf")
    lab.link(smollm2, "draft.gguf")
    lab.write(
        f"- {{name: chat, source: {{path: ./m.gguf}}, port: {port}, context: 1024, slots: 1,\n"
        "   kvCache: f16, spec: {type: draft-simple, draftModel: ./draft.gguf, nMax: 4}}",
        backends=_backends(llama_server),
        head=HEAD.format(stack=lab.stack),
    )
    lab.apply()
    assert all(slot["speculative"] for slot in _slots(port))
    assert ask(port, "Count from one to ten.")[0] == 200
    log = (lab.state / "logs" / "chat.log").read_text()
    assert "draft acceptance" in log
    row = lab.status()["chat"]
    assert sum(row["memoryMeasured"]["contextBytes"].values()) == row["memoryPlanned"]["contextBytes"]
    assert lab.idle()
    write_tiny(lab.root / "draft.new", "llama", smollm2).replace(lab.root / "draft.gguf")
    assert f"payload.{lab.root}/draft.gguf" in lab.ok("plan").out, "other bytes under the same path restart the server"


def test_a_foreign_vocabulary_is_refused_before_anything_starts(lab: Lab, llama_server: Path, smollm2: Path) -> None:
    lab.link(smollm2, "m.gguf")
    write_tiny(lab.root / "other.gguf", "llama", smollm2, swap=True)
    lab.write(
        f"- {{name: chat, source: {{path: ./m.gguf}}, port: {free_port()}, context: 1024, slots: 1,\n"
        "   spec: {type: draft-simple, draftModel: ./other.gguf}}",
        backends=_backends(llama_server),
        head=HEAD.format(stack=lab.stack),
    )
    done = lab.run("apply", "-f", "models.yaml", "--yes")
    assert done.code == 7
    assert "the texts of the tokens 5 to 49151 are not the same" in done.out + done.err
    assert not lab.pid("chat")
    lab.edit("./other.gguf", "./gone.gguf")
    assert "gone.gguf does not exist" in lab.run("plan").out


def test_a_catalog_drafter_of_another_vocabulary_is_left_out(lab: Lab, llama_server: Path, smollm2: Path) -> None:
    port = free_port()
    head = _catalog(lab, smollm2, swap=True)
    lab.write(
        f"- {{name: chat, model: pair, port: {port}, context: 1024, slots: 1}}",
        backends=_backends(llama_server),
        head=head,
    )
    assert "draft-simple left out: the texts of the tokens" in lab.ok("plan", "--explain", "server.chat").out
    lab.apply()
    assert not _slots(port)[0]["speculative"]
    assert lab.idle()


def test_a_named_draft_model_is_fetched_like_any_payload(lab: Lab, llama_server: Path, smollm2: Path) -> None:
    ports = free_port(), free_port()
    lab.link(smollm2, "m.gguf")
    write_tiny(lab.root / "d.gguf", "llama", smollm2)
    lab.write(
        f"- {{name: chat, source: {{path: ./m.gguf}}, port: {ports[0]}, context: 1024, slots: 1,\n"
        "   spec: {type: draft-simple, draftModel: drafter}}\n"
        f"- {{name: drafter, source: {{path: ./d.gguf}}, port: {ports[1]}, context: 1024, slots: 1}}",
        backends=_backends(llama_server),
        head=HEAD.format(stack=lab.stack),
    )
    lab.ok("apply", "-f", "models.yaml", "--only", "server.chat", "--yes")
    assert (lab.root / "store/models/llama-cpp/drafter/manifest.json").is_file()
    assert _slots(ports[0])[0]["speculative"]
    lab.apply()
    assert lab.idle()


def test_a_draft_model_that_kills_the_engine_is_left_out(lab: Lab, llama_server: Path, smollm2: Path) -> None:
    port = free_port()
    head = _catalog(lab, smollm2, drop="blk.2.attn_q.weight")
    lab.write(
        f"- {{name: chat, model: pair, port: {port}, context: 1024, slots: 1}}",
        backends=_backends(llama_server),
        head=head,
    )
    done = lab.apply()
    assert "died of its draft model" in done.err
    assert "blk.2.attn_q.weight" in done.err
    assert ask(port, "Hello")[0] == 200
    assert not _slots(port)[0]["speculative"]
    assert lab.idle()
    row = lab.status()["chat"]
    assert row["health"] == "Ready"
    assert "blk.2.attn_q.weight" in _conditions(row)["DraftModelUsable"]["message"]
    assert lab.ok("status", "--check").out
    explained = lab.ok("plan", "--explain", "server.chat").out
    assert "draft-simple left out: the drafter took this engine build down before" in explained

    again = lab.run("apply", "-f", "models.yaml", "--yes", "--retry-drafters")
    assert "-/+ server.chat" in again.out
    assert "died of its draft model" in again.err
    assert lab.idle()


@pytest.mark.engine("llama-server-old")
def test_a_new_build_is_announced_with_every_flag_that_changes(
    lab: Lab, llama_server: Path, old_llama_server: Path, smollm2: Path
) -> None:
    lab.link(smollm2, "m.gguf")
    lab.write(
        f"- {{name: chat, source: {{path: ./m.gguf}}, port: {free_port()}, context: 1024, slots: 1,\n"
        "   engineOptions: {loadMode: mlock}}",
        backends=f"cpu: {{engine: llama-cpp, accelerator: cpu, binary: {old_llama_server}}}",
        head=HEAD.format(stack=lab.stack),
    )
    lab.apply()
    lab.edit(str(old_llama_server), str(llama_server))
    plan = lab.ok("plan", "-o", "json").json()
    found = [d["summary"] for d in plan["diagnostics"] if d["code"] == "E0315"]
    old, new = (_defaults(program) for program in (old_llama_server, llama_server))
    given = set(lab.record("chat")["launch"]["argv"])
    differing = {name for name in old.keys() & new.keys() - given if old[name] and new[name] and old[name] != new[name]}
    assert "this build has no --mlock any more; --load-mode takes its place" in found or "--load-mode" in given
    assert {text.split()[3] for text in found if text.startswith("the default of ")} == differing
    assert plan["applyable"]
    text = lab.ok("plan").out
    assert all(words in text for words in found)
    assert lab.pid("chat"), "nothing was stopped"

"""Rendered launches really start the real engines, which then report what the launch expects."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gezelctl.catalog.types import Origin, PayloadFile
from gezelctl.config.model import SecretRef, Spec
from gezelctl.embedded.commandline import help_text
from gezelctl.engines.launch import render
from gezelctl.engines.loglines import classify
from gezelctl.engines.types import LaunchSpec
from gezelctl.gguf.types import GgufSummary
from gezelctl.observe.types import EngineProbe
from tests.launchmake import gguf, payload, probe, request
from tests.serving import free_port, started

pytestmark = pytest.mark.engine("smollm2")


def smollm2_header() -> GgufSummary:
    """The keys of SmolLM2-135M that decide a launch."""
    return gguf(context_length=8192, block_count=30, embedding_length=576, attention__head_count=9)


def launch(program: EngineProbe, model: Path, folder: Path, *, draft: bool = False, **server: Any) -> LaunchSpec:
    files = [PayloadFile(model.name, "weights", Origin("path", path=str(model)), "a" * 64)]
    if draft:
        (folder / "draft.gguf").symlink_to(model)
        files.append(PayloadFile("draft.gguf", "draft", Origin("path", path=str(model)), "b" * 64))
    (folder / model.name).symlink_to(model)
    base = msgspec.structs.replace(payload(), files=tuple(files))
    result = render(
        request(
            probe=program, payload=base, files=base.files, payload_dir=str(folder), header=smollm2_header(),
            slots_dir=str(folder / "slots"), server={"port": free_port(), "api_key": SecretRef(from_env="K"), **server},
        )
    )  # fmt: skip
    assert result.spec is not None, result.diagnostics
    return result.spec


def at(build: str, program: Path | str) -> EngineProbe:
    return msgspec.structs.replace(probe(build), program=str(program))


ALL_OPTIONS: dict[str, Any] = {
    "nGpuLayers": -1, "cpuMoe": False, "nCpuMoe": 1, "flashAttn": "on", "cacheReuse": 64, "swaFull": True,
    "kvUnified": False, "kvOffload": True, "threads": 2, "threadsBatch": 2, "batchSize": 512, "ubatchSize": 128,
    "loadMode": "mmap", "splitMode": "layer", "tensorSplit": "1", "cacheRamMib": 64, "ctxCheckpoints": 2,
    "chatTemplate": "chatml", "reasoningFormat": "none", "reasoningBudget": 0, "metrics": True, "fit": "off",
}  # fmt: skip


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.engine(name)) for name in ("llama-server", "llama-server-old", "embedded")
    ]
)
def program(request: pytest.FixtureRequest) -> EngineProbe:
    """Each llama.cpp program with its own flags."""
    if request.param == "embedded":
        return at("embedded", sys.executable)
    old = request.param == "llama-server-old"
    path = request.getfixturevalue("old_llama_server" if old else "llama_server")
    return at("b10434" if old else "b11434", path)


def test_every_option_starts_and_the_server_reports_what_is_expected(
    program: EngineProbe, smollm2: Path, tmp_path: Path
) -> None:
    spec = launch(program, smollm2, tmp_path, context=1000, slots=2, engine_options=ALL_OPTIONS)
    with started(spec, tmp_path, key="s3cret") as served:
        expect = spec.expect
        model = served.ask("/v1/models")["data"][0]
        assert expect.model_id in {model["id"], *model.get("aliases", [])}
        assert served.ask("/props")["model_path"] == expect.model_path
        slots = served.ask("/slots")
        assert [s["n_ctx"] for s in slots] == [expect.context_tokens] * expect.slots
        assert served.chat()["content"]
        assert served.http.get("/metrics").status_code == 200
        assert served.http.get("/slots", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert any("KV buffer size" in line for line in served.lines)
        assert served.stop() == 0
    assert "s3cret" not in "\n".join(served.lines)


def test_a_drafter_really_drafts(program: EngineProbe, smollm2: Path, tmp_path: Path) -> None:
    spec = launch(program, smollm2, tmp_path, draft=True, context=512, spec=Spec(type="draft-simple", n_max=4))
    with started(spec, tmp_path, key="k") as served:
        assert spec.expect.speculation
        assert [s["speculative"] for s in served.ask("/slots")] == [True]
        assert served.chat()["content"]


@pytest.mark.engine("embedded")
def test_embeddings_of_the_embedded_server(smollm2: Path, tmp_path: Path) -> None:
    spec = launch(
        at("embedded", sys.executable), smollm2, tmp_path, context=512,
        engine_options={"embeddings": True}, extra_args={"pooling": "mean"},
    )  # fmt: skip
    assert not spec.expect.chat
    with started(spec, tmp_path, key="k") as served:
        answer = served.http.post("/v1/embeddings", json={"input": "hello"}).raise_for_status().json()
        assert len(answer["data"][0]["embedding"]) == 576


def test_a_failed_start_is_named(program: EngineProbe, smollm2: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2.read_bytes()[:40_000_000])
    folder = tmp_path / "payload"
    folder.mkdir()
    spec = launch(program, cut, folder, context=512)
    with started(spec, tmp_path, ready=False) as served:
        code = served.process.wait(60)
        failure = classify(served.lines, code)
    assert (code, failure.code) == (1, "GGUF_TRUNCATED"), served.lines[-5:]


def test_the_help_of_the_embedded_server_knows_every_setting_but_two() -> None:
    from gezelctl.config.settings import LLAMA_CPP_SETTINGS

    text = help_text()
    assert {s.argv for s in LLAMA_CPP_SETTINGS if s.argv not in text} == {"--device", "--rpc"}

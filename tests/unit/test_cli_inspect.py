"""`gezelctl inspect`: everything that can be named, as text and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from gezelctl.cli.main import run
from gezelctl.gguf.reader import read_summary
from gezelctl.gguf.types import GgufSummary
from tests import ggufmake as make
from tests import hubserver, shapes
from tests.shapes import DENSE, EXPERTS, HYBRID_MTP, WINDOWED, tensors, write_model

REPO = "lab/tiny"


@pytest.fixture
def hub() -> Iterator[hubserver.Hub]:
    with hubserver.running_hub() as server:
        yield server


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEZELCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GEZELCTL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("HF_ENDPOINT", "HF_TOKEN", "GEZELCTL_FILE", "GEZELCTL_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def inspected(capsysbinary: pytest.CaptureFixture[bytes], *words: str) -> dict[str, Any]:
    assert run(["inspect", *words, "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsysbinary.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 64) -> str:
    assert run(["inspect", *words]) == code
    shown = capsys.readouterr()
    assert not shown.out
    assert "cure:" in shown.err
    return shown.err


BAD_TEMPLATE = "{% for m in messages %}\n{{ m.content }\n{% endfor %}"
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "dense": ("llama", DENSE, shapes.TEMPLATE),
    "windowed": ("gemma3", WINDOWED, ""),
    "experts": ("qwen3moe", EXPERTS, BAD_TEMPLATE),
    "hybrid": ("qwen35", HYBRID_MTP, shapes.TEMPLATE),
}


@pytest.mark.parametrize("name", MODELS)
def test_text(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion) -> None:
    architecture, keys, template = MODELS[name]
    table = tensors(keys, 320, untied=name == "experts")
    write_model(tmp_path / f"{name}.gguf", architecture, keys, template=template, tensors=table)
    assert run(["inspect", f"{name}.gguf"]) == 0
    assert capsys.readouterr().out == snapshot


def test_json_is_the_header_and_what_follows_from_it(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen35", HYBRID_MTP, tensors=tensors(HYBRID_MTP, 320))
    found = inspected(capsysbinary, "m.gguf")
    assert msgspec.convert(found, GgufSummary) == read_summary(path)
    derived = found["derived"]
    assert (derived["layerCount"], derived["nextnLayers"], derived["recurrentLayers"]) == (8, 1, [0, 1, 2, 4, 5, 6])
    classes = derived["bytesByClass"]
    assert sum(classes.values()) == 2 * classes["totalBytes"] == 2 * found["weights"]["totalBytes"]
    assert classes["nextnBytes"] > found["weights"]["layers"][8][2] > 0, "all of an MTP layer, not its nextn tensors"


def test_a_broken_template_is_named_with_its_line(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    write_model(tmp_path / "m.gguf", "llama", DENSE, template=BAD_TEMPLATE)
    (finding,) = inspected(capsysbinary, "m.gguf")["derived"]["templateFindings"]
    assert (finding["line"], finding["severity"]) == (2, "error")


def test_foreign_text_steers_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = make.LLAMA | {"general.name": "a\x1b[2Jb\u202e", "tokenizer.ggml.pre": "x\ny"}
    (tmp_path / "m.gguf").write_bytes(make.gguf_bytes(values, make.LLAMA_TENSORS))
    assert run(["inspect", "m.gguf"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert r"a\x1b[2Jb\u202e" in shown


def test_the_first_shard_stands_for_the_set(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    for index in range(2):
        split = {"split.no": (make.U16, index), "split.count": (make.U16, 2)}
        values = make.LLAMA | {"llama.block_count": 3} | split if index == 0 else split
        data = make.gguf_bytes(values, [(f"blk.{index}.ffn_up.weight", (32, 64), 1)])
        (tmp_path / f"m-{index + 1:05d}-of-00002.gguf").write_bytes(data)
    found = inspected(capsysbinary, "m-00001-of-00002.gguf")
    assert (found["shards"], found["weights"]["tensorCount"]) == (2, 2)


def test_an_mlx_folder(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], snapshot: SnapshotAssertion) -> None:
    folder = tmp_path / "mlx"
    folder.mkdir()
    text = {"num_hidden_layers": 26, "hidden_size": 1152, "num_attention_heads": 4, "num_key_value_heads": 1}
    text |= {"head_dim": 256, "vocab_size": 262144, "sliding_window": 512, "max_position_embeddings": 32768}
    config = {"model_type": "gemma3", "text_config": text, "quantization": {"bits": 4, "group_size": 64}}
    (folder / "config.json").write_text(json.dumps(config))
    for index, size in enumerate((1000, 234)):
        (folder / f"model-{index}.safetensors").write_bytes(b"\0" * size)
    found = inspected(capsysbinary, "./mlx")
    assert (found["weightsBytes"], found["layers"], found["quantizationBits"]) == (1234, 26, 4)
    assert run(["inspect", "mlx"]) == 0
    assert capsysbinary.readouterr().out.decode() == snapshot


@pytest.mark.engine("mlx")
def test_a_real_mlx_folder(mlx_model: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    found = inspected(capsysbinary, str(mlx_model))
    assert found["weightsBytes"] == sum(path.stat().st_size for path in mlx_model.glob("model*.safetensors"))
    assert found["layers"] > 0


def test_an_address(hub: hubserver.Hub, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    data = make.gguf_bytes(make.LLAMA, make.LLAMA_TENSORS)
    hub.add(REPO, "sub/m.gguf", data)
    (tmp_path / "local.gguf").write_bytes(data)
    local = inspected(capsysbinary, "local.gguf")
    url = f"{hub.endpoint}/{REPO}/resolve/main/sub/m.gguf"
    far = inspected(capsysbinary, f"{url}?X-Amz-Signature=planted")
    assert far["source"] == url, "what is signed is not shown"
    assert far | {"source": ""} == local | {"source": ""}


@pytest.mark.parametrize("named", ["hf:lab/tiny/sub/m.gguf@v1", "{hub}/lab/tiny/blob/v1/sub/m.gguf"])
def test_a_file_of_the_hub_is_read_with_its_token(
    hub: hubserver.Hub,
    named: str,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.add(REPO, "sub/m.gguf", make.gguf_bytes(make.LLAMA, make.LLAMA_TENSORS), revision="v1")
    hub.gated.add(REPO)
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    found = inspected(capsysbinary, named.format(hub=hub.endpoint))
    assert found["architecture"] == "llama"
    assert hub.token not in json.dumps(found)


def test_shards_of_the_hub(
    hub: hubserver.Hub, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    for index in range(3):
        split = {"split.no": (make.U16, index), "split.count": (make.U16, 3)}
        values = make.LLAMA | {"llama.block_count": 3} | split if index == 0 else split
        data = make.gguf_bytes(values, [(f"blk.{index}.ffn_up.weight", (32, 64), 1)])
        hub.add(REPO, f"q4/m-{index + 1:05d}-of-00003.gguf", data)
    assert inspected(capsysbinary, f"hf:{REPO}/q4/m-00001-of-00003.gguf")["shards"] == 3
    assert inspected(capsysbinary, f"{hub.endpoint}/{REPO}/resolve/main/q4/m-00001-of-00003.gguf")["shards"] == 3


def catalog_config(tmp_path: Path, endpoint: str, digest: str) -> None:
    (tmp_path / "models.yaml").write_text(
        "apiVersion: gezelctl/v1\nstack: lab\n"
        f"store: {{path: {tmp_path / 'store'}}}\n"
        f"sources: {{huggingface: {{endpoint: '{endpoint}'}}}}\n"
        "backends: {cpu: {engine: llama-cpp, binary: llama-server}}\n"
        "defaults: {backend: cpu}\n"
        "models:\n"
        f"  - {{name: chat, port: 8081, source: {{huggingface: {REPO}, filename: m.gguf, sha256: '{digest}'}}}}\n"
    )


def test_a_server_of_models_yaml(
    hub: hubserver.Hub, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    digest = hub.add(REPO, "m.gguf", make.gguf_bytes(make.LLAMA, make.LLAMA_TENSORS))
    catalog_config(tmp_path, hub.endpoint, digest)
    found = inspected(capsysbinary, "server.chat", "-f", "models.yaml")
    assert (found["source"], found["architecture"]) == ("server.chat", "llama")
    hub.requests.clear()
    assert inspected(capsysbinary, "server.chat") == found, "models.yaml of this folder is found by itself"
    assert not hub.requests, "a pinned header is read once"


def test_a_catalog_model(
    gilde: Path, capsys: pytest.CaptureFixture[str], hub: hubserver.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    message = refused(capsys, "deepseek-r1-8b-q4", "--catalog", str(gilde), code=1)
    assert "unsloth/DeepSeek-R1-0528-Qwen3-8B-GGUF/resolve/" in message
    assert hub.requests[0].path.startswith("/unsloth/")
    assert "deepseek-r1-8b-q4" in refused(capsys, "deepseek-r1-8b", "--catalog", str(gilde), code=65)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no-such-model"], 64, "no catalog to look a model up in"),
        (["server.chat"], 64, "there is no such server"),
        (["hf:lab"], 64, "is not hf:owner/name/file.gguf"),
        (["hf:lab/tiny/../m.gguf"], 64, "is not hf:owner/name/file.gguf"),
        (["./missing.gguf"], 1, "cannot be opened"),
        (["hf:lab/tiny/m-00002-of-00003.gguf"], 64, "Name the first shard, m-00001-of-00003.gguf."),
        (["http://[bad/m.gguf"], 1, "is no http or https address"),
        (["."], 1, "config.json"),
        (["text.gguf"], 1, "is not a GGUF file"),
    ],
)
def test_what_cannot_be_inspected(
    words: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    assert said in refused(capsys, *words, code=code)


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "--help"]) == 0
    assert "Example: gezelctl inspect " in capsys.readouterr().out


@pytest.mark.engine("smollm2")
def test_the_135m_model(smollm2: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    derived = inspected(capsysbinary, str(smollm2))["derived"]
    assert (derived["fileType"], derived["heads"], derived["kvHeads"], derived["keyLength"]) == ("Q4_1", [9], [3], 64)
    assert derived["bytesByClass"]["totalBytes"] == 96576768
    assert derived["contextBytesPerToken"] == 2 * 2 * 3 * 64 * 30

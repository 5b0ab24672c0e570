"""`gezelctl fit`: exact bytes, what fits where, and the launch, on hosts that are given as facts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from gezelctl.cli.main import run
from gezelctl.engines.types import LaunchSpec
from gezelctl.observe.memory import parse_memory
from gezelctl.observe.types import Facts, Gpu
from tests import hubserver
from tests.serving import free_port, started
from tests.shapes import DENSE, EXPERTS, HYBRID_MTP, WINDOWED, tensors, write_model

MIB, GIB = 1 << 20, 1 << 30
GOLDEN: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "cases" / "memory" / "golden.yaml").read_text())
WORDS = (
    "--context-total 8192 --slots 1",
    "--context-total 8192 --slots 1 --kv-cache q8_0",
    "--context-total 16384 --slots 4",
    "--context-total 16384 --slots 4 --kv-unified",
    "--context-total 8192 --slots 1 --ubatch 2048",
    "--context-total 8192 --slots 1 --swa-full",
    "--context-total 10000 --slots 3",
    "--context-total 40000 --slots 1",
)
"""The settings of the golden figures, in their order, as options."""


def card(number: int, gib: int = 24) -> Gpu:
    return Gpu(f"GPU-{number}", "NVIDIA GeForce RTX 3090", gib * GIB, gib * GIB)


def host(ram_gib: int, *gpus: Gpu, **more: Any) -> Facts:
    base = Facts(
        host="lab-01",
        os="linux",
        os_version="Debian",
        arch="x86_64",
        cpus=16,
        memory_total_bytes=ram_gib * GIB,
        memory_available_bytes=ram_gib * GIB,
        gpus=gpus,
    )
    return msgspec.structs.replace(base, **more)


HOSTS = {
    "laptop": host(8),
    "mac": host(64, os="darwin", arch="arm64", recommended_working_set_bytes=48 * GIB),
    "card": host(64, card(0)),
    "cards": host(64, card(0), card(1)),
}
SERVERS = """\
apiVersion: gezelctl/v1
stack: lab
backends:
  gpu: {engine: llama-cpp, accelerator: cuda, binary: /opt/llama.cpp/llama-server}
defaults: {backend: gpu}
models:
  - {name: chat, port: 8081, slots: 3, kvCache: q5_1, source: {path: m.gguf}}
"""


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEZELCTL_STATE_DIR", "/var/lib/gezelctl")
    monkeypatch.setenv("GEZELCTL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("HF_ENDPOINT", "HF_TOKEN", "GEZELCTL_FILE", "GEZELCTL_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    for name, facts in HOSTS.items():
        document = {"facts": facts, "engines": {}}
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(document))


@pytest.fixture
def hub() -> Iterator[hubserver.Hub]:
    with hubserver.running_hub() as server:
        yield server


def fitted(capsysbinary: pytest.CaptureFixture[bytes], *words: str) -> dict[str, Any]:
    assert run(["fit", *words, "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsysbinary.readouterr().out)
    return found


def golden_file(folder: Path, name: str) -> Path:
    model = GOLDEN["models"][name]
    return write_model(folder / f"{name}.gguf", model["architecture"], model["keys"], template="")


@pytest.mark.parametrize("name", GOLDEN["models"])
def test_context_bytes_of_the_engine(name: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    golden_file(tmp_path, name)
    found = [fitted(capsysbinary, f"{name}.gguf", "--facts", "card.json", *words.split()) for words in WORDS]
    assert [f["contextBytes"] for f in found] == GOLDEN["models"][name]["bytes"]
    assert all(f["exact"] for f in found)


@pytest.mark.parametrize("name", GOLDEN["models"])
def test_context_bytes_of_the_header_files(
    name: str, gguf_headers: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = str(gguf_headers / f"{name}.gguf")
    found = [fitted(capsysbinary, path, *words.split())["contextBytes"] for words in WORDS]
    assert found == GOLDEN["models"][name]["bytes"]


def test_devices_add_up_to_the_top_level(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    table = tensors(EXPERTS, 320, untied=True)
    write_model(tmp_path / "m.gguf", "qwen3moe", EXPERTS, tensors=table)
    found = fitted(capsysbinary, "m.gguf", "--facts", "cards.json", "--n-cpu-moe", "2", "--tensor-split", "1,1")
    names = [name for name in found if name.endswith("Bytes")]
    assert {"contextBytes", "weightsBytes", "computeBoundBytes", "outputBytes", "totalBytes"} <= set(names)
    for name in names:
        assert found[name] == sum(device[name] for device in found["devices"])
    for device in found["devices"]:
        parts = sum(size for name, size in device.items() if name.endswith("Bytes"))
        assert parts == 2 * device["totalBytes"]
    assert [device["device"] for device in found["devices"]] == ["host", "CUDA0", "CUDA1"]
    experts = 2048 // 32 * 18 * 768 * 128
    assert found["devices"][0]["weightsBytes"] == 2 * experts + 320 * 2048 // 32 * 34


def test_what_engine_and_models_yaml_mean_by_context(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    write_model(tmp_path / "m.gguf", "llama", DENSE)
    split = fitted(capsysbinary, "m.gguf", "--context-total", "10000", "--slots", "3")
    assert (split["nCtx"], split["nCtxSeq"], split["streams"], split["unified"]) == (10752, 3584, 3, False)
    assert split["argv"][split["argv"].index("--ctx-size") + 1] == "10752"
    slot = fitted(capsysbinary, "m.gguf", "--context", "4096", "--slots", "3")
    assert (slot["nCtx"], slot["nCtxSeq"], slot["slots"]) == (12288, 4096, 3)
    default = fitted(capsysbinary, "m.gguf", "--context-total", "8192")
    assert (default["slots"], default["unified"], default["nCtx"]) == (4, True, 8192)
    assert default["argv"][default["argv"].index("--ctx-size") + 1] == "8192"


def test_types_of_k_and_v_apart(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    write_model(tmp_path / "m.gguf", "llama", DENSE)
    words = ("m.gguf", "--context-total", "8192", "--slots", "1", "--kv-cache")
    both, k, v = (fitted(capsysbinary, *words, kind) for kind in ("q8_0/q4_0", "q8_0", "q4_0"))
    assert 2 * both["contextBytes"] == k["contextBytes"] + v["contextBytes"]
    assert both["kvCache"] == "q8_0/q4_0"
    assert any("one KV cache type" in note for note in both["notes"])


CASES: dict[str, tuple[str, dict[str, Any], int, str, str]] = {
    "laptop": ("llama", DENSE, 32000, "laptop", ""),
    "mac": ("gemma3", WINDOWED, 262144, "mac", ""),
    "card": ("qwen35", HYBRID_MTP, 248320, "card", "--context 65536 --slots 2"),
    "cards": ("qwen3moe", EXPERTS | {"block_count": 48, "expert_count": 512}, 151936, "cards", ""),
    "refused": ("qwen3moe", EXPERTS | {"block_count": 48, "expert_count": 512}, 151936, "laptop", ""),
    "total": ("llama", DENSE, 32000, "card", "--context-total 10000 --slots 3"),
}


@pytest.mark.parametrize("name", CASES)
def test_text(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion) -> None:
    architecture, keys, vocab, facts, words = CASES[name]
    write_model(tmp_path / "m.gguf", architecture, keys, vocab=vocab, tensors=tensors(keys, vocab, untied=True))
    assert run(["fit", "m.gguf", "--facts", f"{facts}.json", *words.split()]) == 0
    assert capsys.readouterr().out.replace(str(tmp_path), "/models") == snapshot


def test_a_refusal_is_an_answer(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    write_model(tmp_path / "m.gguf", "llama", DENSE | {"block_count": 60, "context_length": 1 << 20})
    found = fitted(capsysbinary, "m.gguf", "--facts", "laptop.json", "--context", str(1 << 20), "--slots", "8")
    assert (found["fits"], found["launch"], found["argv"]) == (False, None, [])
    assert found["refusal"]["cure"]
    assert found["nCtxSeq"] == 1 << 20, "the breakdown is of what was asked for"
    assert found["totalBytes"] > 8 * GIB


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(facts=st.sampled_from(list(HOSTS)), case=st.sampled_from(list(CASES)), layers=st.integers(1, 60))
def test_more_context_and_more_slots_never_fit_better(
    facts: str, case: str, layers: int, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    architecture, keys, vocab, _, _ = CASES[case]
    keys = keys | {"block_count": layers}
    table = tensors(keys, vocab, untied=True)
    write_model(tmp_path / "m.gguf", architecture, keys, vocab=vocab, tensors=table)
    found = fitted(capsysbinary, "m.gguf", "--facts", f"{facts}.json", "--kv-cache", "f16")
    cells = {(cell["context"], cell["slots"]): cell for cell in found["table"]}
    order = ["device", "offload", "no"]
    for (context, slots), cell in cells.items():
        for wider in ((context * 2, slots), (context, slots * 2)):
            if wider in cells:
                assert order.index(cells[wider]["fits"]) >= order.index(cell["fits"])
    if found["fits"]:
        launch = found["launch"]["estimate"]
        assert launch["totalBytes"] == launch["ramBytes"] + sum(launch["gpuBytes"].values())


def test_a_server_brings_its_own_settings(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    write_model(tmp_path / "m.gguf", "llama", DENSE)
    (tmp_path / "models.yaml").write_text(SERVERS)
    found = fitted(capsysbinary, "server.chat", "-f", "models.yaml", "--facts", "card.json")
    assert (found["slots"], found["kvCache"]) == (3, "q5_1")
    assert [device["device"] for device in found["devices"]] == ["host", "CUDA0"]
    assert found["argv"][found["argv"].index("--port") + 1] == "8081"
    over = fitted(capsysbinary, "server.chat", "--facts", "card.json", "--slots", "1", "--accelerator", "cpu")
    assert (over["slots"], over["kvCache"], len(over["devices"])) == (1, "q5_1", 1)


def test_drafter_and_projector_count(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    write_model(tmp_path / "m.gguf", "llama", DENSE, tensors=tensors(DENSE, 320))
    draft = DENSE | {"block_count": 1}
    write_model(tmp_path / "d.gguf", "llama", draft, tensors=tensors(draft, 320))
    write_model(tmp_path / "p.gguf", "clip", {}, template="", tensors=[("v.patch_embd.weight", (32, 64), 0)])
    words = ("m.gguf", "--facts", "card.json", "--context", "8192", "--slots", "1")
    plain = fitted(capsysbinary, *words)
    assert (plain["draftBytes"], plain["projectorBytes"]) == (0, 0)
    drafted = fitted(capsysbinary, *words, "--spec", "draft-simple", "--draft", "d.gguf")
    assert drafted["draftBytes"] > 0
    assert drafted["launch"]["spec"]["types"] == ["draft-simple"]
    seeing = fitted(capsysbinary, *words, "--mmproj", "p.gguf")
    assert seeing["projectorBytes"] > 32 * 64 * 4
    assert "--mmproj" in seeing["argv"]


def test_from_afar_on_another_host(
    hub: hubserver.Hub, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    table = tensors(DENSE, 32000, untied=True)
    path = write_model(tmp_path / "m.gguf", "llama", DENSE, vocab=32000, tensors=table)
    hub.add("lab/tiny", "m.gguf", path.read_bytes())
    far = fitted(capsysbinary, f"{hub.endpoint}/lab/tiny/resolve/main/m.gguf", "--facts", "cards.json")
    here = fitted(capsysbinary, "m.gguf", "--facts", "cards.json")
    assert hub.sent_bytes < 3 << 20 < path.stat().st_size
    different = ("source", "argv")
    assert {k: v for k, v in far.items() if k not in different} == {k: v for k, v in here.items() if k not in different}


def test_a_snapshot_stands_for_its_host(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    write_model(tmp_path / "m.gguf", "llama", DENSE)
    facts = msgspec.to_builtins(HOSTS["cards"])
    (tmp_path / "snapshot.json").write_text(json.dumps({"kind": "Snapshot", "observed": {"facts": facts}}))
    found = fitted(capsysbinary, "m.gguf", "--facts", "snapshot.json")
    assert found == fitted(capsysbinary, "m.gguf", "--facts", "cards.json")


def test_this_host(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    write_model(tmp_path / "m.gguf", "llama", DENSE)
    assert run(["fit", "m.gguf"]) == 0
    assert b"what fits" in capsysbinary.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--context 1 --context-total 2", 64, "exclude each other"),
        ("--kv-cache q9_0", 64, "'q9_0' is none of f32"),
        ("--kv-cache q8_0/", 64, "'' is none of f32"),
        ("--slots 257", 64, "1<=x<=256"),
        ("--facts missing.json", 64, "missing.json cannot be read: no such file or directory"),
        ("--facts m.gguf", 64, "m.gguf holds no facts"),
        ("--facts models.json", 64, "models.json holds no facts"),
        ("--host elsewhere", 64, "its facts are not here"),
        ("--backend gpu", 64, "models.yaml has none"),
        ("--backend gpu --accelerator cpu", 64, "exclude each other"),
        ("--draft nothing", 64, "no such file"),
    ],
)
def test_what_cannot_be_asked(
    words: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "m.gguf", "llama", DENSE)
    (tmp_path / "models.json").write_text("{}")
    assert run(["fit", "m.gguf", *words.split()]) == code
    assert said in capsys.readouterr().err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "--help"]) == 0
    assert "Example: gezelctl fit " in capsys.readouterr().out


@pytest.mark.engine("llama-server", "smollm2")
@pytest.mark.parametrize(
    "words",
    ["--context 2048 --slots 2", "--context-total 3000 --slots 3 --kv-cache f16 --ubatch 256", "--context 1024"],
)
def test_the_engine_takes_the_launch_and_the_bytes(
    words: str,
    llama_server: Path,
    smollm2: Path,
    tmp_path: Path,
    *,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GEZELCTL_STATE_DIR", str(tmp_path / "state"))
    found = fitted(capsysbinary, str(smollm2), "--accelerator", "cpu", *words.split())
    argv, port = found["argv"][1:], free_port()
    argv[argv.index("--port") + 1] = str(port)
    spec = LaunchSpec(
        server="fit",
        engine="llama-cpp",
        backend="cpu",
        program=str(llama_server),
        argv=(*argv, "-lv", "4"),
        host="127.0.0.1",
        port=port,
        directories=(argv[argv.index("--slot-save-path") + 1],),
    )
    with started(spec, tmp_path) as served:
        slots = served.ask("/slots")
        read = parse_memory(served.lines)
    assert [slot["n_ctx"] for slot in slots] == [found["nCtxSeq"]] * found["slots"]
    assert read is not None
    assert abs(sum(read.context_bytes.values()) - found["contextBytes"]) <= 0.01 * MIB * len(read.context_bytes)
    assert sum(read.output_bytes.values()) <= found["outputBytes"] + 0.01 * MIB
    assert sum(read.compute_bytes.values()) <= found["computeBoundBytes"]

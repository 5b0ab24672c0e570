"""Bad input and broken parts: each has its exit code, says what is wrong and where, and how to cure it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.e2e.lab import FAKE_BACKEND, Lab, alive, free_port, wait_for
from tests.hubserver import Fault, Hub, running_hub

A, B = "a" * 64, "b" * 64
OUT_OF_MEMORY = (
    "0.1 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8192.00 MiB on device 0: "
    "cudaMalloc failed: out of memory"
)
CHAT = "- {name: chat, source: {path: ./tiny.gguf}, port: 18777, context: 128, slots: 1"
HUB = "- {name: chat, port: 18777, source: {huggingface: lab/chat"


def _apply(lab: Lab) -> tuple[int, str]:
    """Exit code and everything that was printed about it on stderr."""
    done = lab.run("apply", "-f", "models.yaml", "--yes")
    return done.code, done.err


@pytest.mark.parametrize(
    ("models", "place", "said"),
    [
        (f"{CHAT}, contxt: 5}}", "9:84", ['unknown key "contxt"', "did you mean context?"]),
        (CHAT.replace("128", "many") + "}", "9:69", ['context must be a whole number, not "many"']),
        (
            f"{CHAT}}}\n{CHAT.replace('18777', '18778')}}}",
            "10:12",
            ["two servers are called chat (first at models.yaml:9)"],
        ),
        (
            f"{CHAT}}}\n{CHAT.replace('chat', 'coder')}}}",
            "10:54",
            ["port 18777 is taken by server chat", "models.yaml:9"],
        ),
        (f"{HUB}}}}}", "9:31", ["the source names no file", "exactly one of filename (with sha256), shards"]),
        (
            f"{HUB}, filename: x.gguf, sha256: {A}, shards: [{{filename: y.gguf, sha256: {B}}}]}}}}",
            "9:31",
            ["the source has filename and shards"],
        ),
        (f"{HUB}, filename: ../x.gguf, sha256: {A}}}}}", "9:73", ['"../x.gguf" is not allowed', "without .."]),
        ("- {name: chat, model: lab-chat-q5, port: 18777}", "9:25", ["lab-chat-q5", "did you mean lab-chat-q4?"]),
        (f"{CHAT}, extraArgs: {{temperatur: 1}}}}", "", ["has no --temperatur", "nearest flag is --temp"]),
        (f"{CHAT}, extraArgs: {{port: 1}}}}", "", ["--port is managed by gezelctl", "Use port."]),
        (f"{CHAT}, apiKey: sk-12345678901234567890}}", "9:", ["apiKey", "fromEnv"]),
    ],
    ids=["key", "type", "name", "port", "neither", "both", "dots", "model", "flag", "reserved", "literal-secret"],
)
def test_invalid_configuration(lab: Lab, models: str, place: str, said: list[str]) -> None:
    lab.fake_engine()
    lab.gguf()
    shutil.copy(REPO / "tests/cases/catalog/lab.yaml", lab.root / "catalog.yaml")
    lab.write(models, backends=FAKE_BACKEND, head=lab.fake_head("catalogs: [{path: ./catalog.yaml}]\n"))
    code, err = _apply(lab)
    assert code == 65
    assert f"models.yaml:{place}" in err
    assert all(text in err for text in said), err
    assert "error: 1 error in the configuration" in err
    assert "12345678901234567890" not in err
    assert not lab.processes()


def test_all_findings_are_shown_at_once(lab: Lab) -> None:
    lab.write("- {name: chat, port: seven, contxt: 1}\n- {name: Chat, port: 99999}")
    done = lab.run("validate")
    assert done.code == 65
    assert done.out == ""
    assert done.err.count("error[E") >= 4
    assert "errors in the configuration" in done.err


def _truncate(bytes_left: int) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[:bytes_left])


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_truncate(200), ["is truncated in a header", "fetch the file again"]),
        (_truncate(-64), ["is truncated in the tensor data", "fetch the file again"]),
        (lambda p: p.write_bytes(b"<!doctype html><html>" + b"x" * 500), ["is a web page, not a model"]),
        (lambda p: p.write_bytes(b"PK\x03\x04" + b"x" * 500), ["tiny.gguf"]),
        (lambda p: p.write_bytes(b""), ["tiny.gguf", "empty"]),
        (_folder, ["is a folder", "name the GGUF file in it"]),
        (Path.unlink, ["does not exist", "correct source.path"]),
    ],
    ids=["header", "tensors", "web-page", "zip", "empty", "folder", "missing"],
)
def test_a_source_that_is_no_model(lab: Lab, spoil: Callable[[Path], object], said: list[str]) -> None:
    lab.fake("chat")
    spoil(lab.root / "tiny.gguf")
    code, err = _apply(lab)
    assert code == 7
    assert "nothing was changed, since the plan is blocked: payload.llama-cpp.chat: " in err
    assert all(text in err for text in said), err
    assert err.count("tiny.gguf") == 1, "a server that only waits for its model is not told of again"
    assert not (lab.root / "store/models").exists()


def test_a_local_file_with_other_bytes_than_pinned(lab: Lab) -> None:
    lab.fake("chat")
    lab.edit("path: ./tiny.gguf", f"path: ./tiny.gguf, sha256: {A}")
    code, err = _apply(lab)
    assert code == 7
    assert f"models.yaml pins {A}" in err
    assert "cure: restore the file or correct source.sha256" in err


@pytest.mark.parametrize(
    ("fault", "pinned", "said"),
    [
        (None, A, ["sha256 does not match", f"expected {A}", "actual "]),
        (Fault("truncate", after=1000), "", ["tiny.gguf"]),
        (Fault("html"), "", ["web page"]),
        (Fault("status", status=503), "", ["HTTP 503"]),
    ],
    ids=["sha256", "short", "web-page", "503"],
)
def test_a_download_that_goes_wrong_publishes_nothing(
    lab: Lab, fault: Fault | None, pinned: str, said: list[str]
) -> None:
    lab.fake_engine()
    data = lab.gguf().read_bytes()
    with running_hub() as hub:
        digest = hub.add("lab/chat", "tiny.gguf", data)
        source = f"huggingface: lab/chat, filename: tiny.gguf, sha256: {pinned or digest}"
        _on_hub(lab, hub, source)
        hub.fault = fault
        code, err = _apply(lab)
        assert code in {4, 7}
        assert all(text in err for text in said), err
        assert not list((lab.root / "store").rglob("*.gguf*"))
        assert not lab.processes()

        hub.fault = None
        _on_hub(lab, hub, f"huggingface: lab/chat, filename: tiny.gguf, sha256: {digest}")
        lab.apply()
        assert lab.idle()


def _on_hub(lab: Lab, hub: Hub, source: str) -> None:
    head = lab.fake_head(f"sources: {{huggingface: {{endpoint: {hub.endpoint}}}}}\n")
    lab.write(lab.fake_server("chat", source), backends=FAKE_BACKEND, head=head)


def test_a_url_source_is_verified(lab: Lab) -> None:
    lab.fake_engine()
    data = lab.gguf().read_bytes()
    with running_hub() as hub:
        digest = hub.add("lab/chat", "tiny.gguf", data)
        url = f"{hub.endpoint}/lab/chat/resolve/main/tiny.gguf"
        for sha256, code in ((B, 4), (digest, 0)):
            lab.write(
                lab.fake_server("chat", f"url: {url}, sha256: {sha256}"), backends=FAKE_BACKEND, head=lab.fake_head()
            )
            done = lab.run("apply", "-f", "models.yaml", "--yes")
            assert done.code == code, done.err
        assert (lab.root / "store/models/llama-cpp/chat/tiny.gguf").read_bytes() == data


def test_a_port_held_by_a_foreign_process_names_it(lab: Lab) -> None:
    lab.fake("chat")
    port = lab.ports["chat"]
    holder = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", str(port), "--bind", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: lab.run("plan").code == 7, "the port to be held")
        code, err = _apply(lab)
        assert code == 7
        assert f"server.chat: port {port} is held by pid {holder.pid} (" in err
        assert f"http.server {port}" in err
        assert "cure: stop that process or choose another port" in err
        assert holder.poll() is None, "a foreign process is never signalled"
    finally:
        holder.kill()
        holder.wait()
    lab.apply()


def test_a_port_taken_between_plan_and_start(lab: Lab) -> None:
    """The engine takes its time to say its version, so the port is taken after it was looked at."""
    lab.fake("chat", "coder", options="--fake-delay 1.5")
    applying = lab.start("apply", "-f", "models.yaml", "--yes")
    wait_for(lambda: lab.pid("chat"), "the first server to start")
    port = lab.ports["coder"]
    holder = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", str(port), "--bind", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        done = lab.end(applying)
        assert done.code == 4
        assert f"failed: server.coder: port {port} is in use by pid {holder.pid} (" in done.err
        assert lab.record("coder") == {}
        assert lab.status()["chat"]["health"] == "Ready"
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (None, 0o755, ["does not exist", "install the build there"]),
        ("#!/bin/sh\n", 0o644, ["is not executable", "chmod +x"]),
        (
            "#!/bin/sh\necho 'libcuda.so.1: cannot open shared object file' >&2\nexit 127\n",
            0o755,
            ["--help", "127", "libcuda"],
        ),
        ("#!/bin/sh\nkill -ILL $$\n", 0o755, ["--help"]),
        ("hello", 0o755, ["is not a program for this machine"]),
        ("#!/bin/sh\necho hello\n", 0o755, ["engine.fake"]),
    ],
    ids=["missing", "not-executable", "dies", "illegal-instruction", "no-program", "other-program"],
)
def test_an_engine_that_cannot_be_used(lab: Lab, content: str | None, mode: int, said: list[str]) -> None:
    lab.fake("chat")
    program = lab.root / "fake-llama-server"
    program.unlink()
    if content is not None:
        program.write_text(content)
        program.chmod(mode)
    code, err = _apply(lab)
    assert code == 7
    assert "the plan is blocked: engine.fake: " in err
    assert all(text in err for text in said), err
    assert not lab.processes()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (f'--fake-crash 1 --fake-line "{OUT_OF_MEMORY}"', 3, ["memory", "cudaMalloc failed"]),
        ('--fake-crash 1 --fake-line "error: invalid argument: --no-such"', 3, ["ended with exit code 1", "--no-such"]),
        ("--fake-crash -9", 3, ["ended with signal 9 while loading"]),
        ("--fake-context 99", 3, ["does not run as planned: context of a slot is 99 instead of 128"]),
        ("--fake-generation 500", 3, ["its first request failed: /v1/chat/completions answers 500"]),
    ],
    ids=["out-of-memory", "argument", "killed", "mismatch", "no-generation"],
)
def test_a_server_that_does_not_come_up(lab: Lab, options: str, code: int, said: list[str]) -> None:
    lab.fake("chat", options=options)
    found, err = _apply(lab)
    assert found == code
    assert all(text in err for text in said), err
    assert "done 1, failed 1, skipped 0" in err
    row = lab.status()["chat"]
    assert row["sync"] != "Synced"
    assert row["health"] in {"Failed", "Degraded"}
    assert row["why"]
    assert lab.run("status", "--check").code == 3
    assert "step_failed" in lab.ok("events", "--level", "error").out

    lab.behave("")
    done = lab.run("apply", "-f", "models.yaml", "--yes", "--restart", "chat")
    assert done.code == 0, done.err
    assert lab.idle()
    assert lab.status()["chat"]["health"] == "Ready"


def test_a_failed_server_stops_what_would_come_after_it(lab: Lab) -> None:
    lab.fake("alpha", "beta", options="--fake-crash 1")
    done = lab.run("apply", "-f", "models.yaml", "--yes", "-o", "json", "--progress", "none")
    assert done.code == 4
    result = done.json()
    assert [f["address"] for f in result["failed"]] == ["server.alpha"]
    assert result["skipped"] == ["server.beta"]
    assert "skipped: server.beta" in done.err
    assert not lab.processes()


@pytest.mark.engine("llama-server", "smollm2")
def test_the_real_server_dies_of_a_model_that_looks_whole(lab: Lab, llama_server: Path, smollm2: Path) -> None:
    """The header is right and all bytes are there, but a needed tensor has another name."""
    data = smollm2.read_bytes()
    (lab.root / "m.gguf").write_bytes(data.replace(b"blk.7.ffn_up.weight", b"blk.7.ffn_zp.weight", 1))
    lab.write(
        f"- {{name: chat, source: {{path: ./m.gguf}}, port: {free_port()}, context: 512, slots: 1, backend: real}}",
        backends=f"real: {{engine: llama-cpp, accelerator: cpu, binary: {llama_server}}}",
    )
    code, err = _apply(lab)
    assert code == 3
    assert "failed: server.chat: server chat ended with exit code 1 while loading" in err
    assert "log: " in err
    assert "blk.7.ffn_up.weight" in err
    assert "cure: " in err
    assert not lab.processes()


def test_a_store_on_another_file_system_is_filled_by_copy(lab: Lab, tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system (/dev/shm beside the temporary folder)")
    lab.fake("chat")
    store = other / lab.mark
    lab.edit("store: {path: ./store}", f"store: {{path: {store}}}")
    try:
        plan = lab.ok("plan").out
        assert "copy" in plan
        assert "on another file system than the store" in plan
        lab.apply()
        copied = store / "models/llama-cpp/chat/tiny.gguf"
        assert copied.read_bytes() == (lab.root / "tiny.gguf").read_bytes()
        assert copied.stat().st_nlink == 1
        assert lab.idle()
        assert alive(lab.pid("chat"))
        lab.ok("destroy", "-f", "models.yaml", "--yes")
    finally:
        shutil.rmtree(store, ignore_errors=True)

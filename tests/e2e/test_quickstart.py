"""From nothing to a served model and back, on each backend, with real engines."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.e2e.lab import Lab, alive, ask, free_port


def _example(lab: Lab, smollm2: Path) -> int:
    """The quickstart as it stands, on a free port."""
    port = free_port()
    shutil.copy(REPO / "examples" / "quickstart" / "models.yaml", lab.root)
    lab.edit("18135", str(port))
    lab.link(smollm2, "SmolLM2-135M-Instruct.Q4_1.gguf")
    lab.stack = "quickstart"
    return port


@pytest.mark.engine("embedded")
def test_quickstart_serves_stays_and_goes(lab: Lab, smollm2: Path) -> None:
    port = _example(lab, smollm2)
    plan = lab.run("plan", "--detailed-exitcode")
    assert plan.code == 2
    assert "+ server.smollm2" in plan.out
    assert not list((lab.root / "state").rglob("runs/*")), "a plan starts nothing"

    done = lab.apply()
    assert f"server.smollm2: done: serving on http://127.0.0.1:{port}, pid " in done.err
    assert "done 2, failed 0, skipped 0" in done.err
    status, answer = ask(port, "Why is the sky blue?", model="smollm2")
    assert status == 200
    assert answer.strip()

    row = lab.status()["smollm2"]
    assert (row["sync"], row["health"], row["model"], row["port"]) == ("Synced", "Ready", "smollm2", port)
    assert lab.ok("status", "--check").out.startswith("NAME")

    pid = lab.pid("smollm2")
    again = lab.apply()
    assert "No changes:" in again.out
    assert "1 server as wanted by models.yaml" in again.out
    assert lab.idle()
    assert lab.pid("smollm2") == pid
    assert alive(pid)

    gone = lab.ok("destroy", "-f", "models.yaml", "--yes")
    assert "- server.smollm2" in gone.out
    assert not alive(pid)
    assert lab.run("status", "--check").code == 3
    assert (lab.root / "store/models/llama-cpp/smollm2/manifest.json").is_file(), "payloads stay"


@pytest.mark.engine("embedded", "llama-server", "mlx")
def test_three_backends_in_one_file_and_an_edit_touches_one(
    lab: Lab, smollm2: Path, llama_server: Path, mlx_model: Path
) -> None:
    ports = {name: free_port() for name in ("inside", "binary", "apple")}
    lab.link(smollm2, "m.gguf")
    lab.write(
        f"""
- {{name: inside, source: {{path: ./m.gguf}}, port: {ports["inside"]}, backend: inside, context: 512, slots: 1}}
- {{name: binary, source: {{path: ./m.gguf}}, port: {ports["binary"]}, backend: binary, context: 512, slots: 1}}
- {{name: apple, source: {{path: {mlx_model}}}, port: {ports["apple"]}, backend: mlx}}
""",
        backends=f"""
inside: {{engine: llama-cpp, accelerator: cpu, embedded: true}}
binary: {{engine: llama-cpp, accelerator: cpu, binary: {llama_server}}}
mlx: {{engine: mlx, accelerator: cpu}}
""",
    )
    lab.apply()
    assert lab.idle()
    for name, port in ports.items():
        status, _ = ask(port, "Hello", model=name)
        assert status == 200, name
    before = {name: lab.pid(name) for name in ports}

    lab.edit(
        f"port: {ports['binary']}, backend: binary, context: 512",
        f"port: {ports['binary']}, backend: binary, context: 768",
    )
    plan = lab.ok("plan").out
    assert "-/+ server.binary" in plan
    assert "512 -> 768" in plan
    assert re.search(r"Restarts: server\.binary \(about \d+ s\)\.", plan)
    lab.apply()
    after = {name: lab.pid(name) for name in ports}
    assert (after["inside"], after["apple"]) == (before["inside"], before["apple"])
    assert after["binary"] != before["binary"]
    assert lab.status()["binary"]["contextTokens"] == 768
    assert lab.idle()

    lab.ok("destroy", "-f", "models.yaml", "--yes")
    assert not any(alive(pid) for pid in after.values())


@pytest.mark.engine("llama-server-old", "smollm2")
def test_an_older_build_serves_from_the_same_file(lab: Lab, smollm2: Path, old_llama_server: Path) -> None:
    port = free_port()
    lab.link(smollm2, "m.gguf")
    lab.write(
        f"- {{name: chat, source: {{path: ./m.gguf}}, port: {port}, backend: old, context: 512, slots: 1}}",
        backends=f"old: {{engine: llama-cpp, accelerator: vulkan, binary: {old_llama_server}}}",
    )
    lab.apply()
    assert ask(port, "Hello")[0] == 200
    assert lab.idle()

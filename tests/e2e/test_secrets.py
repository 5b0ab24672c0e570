"""A planted secret reaches its server and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tests.e2e.lab import FAKE_BACKEND, Lab, ask, free_port
from tests.hubserver import running_hub

FIRST, SECOND = "first-planted-9c41d7", "second-planted-5be210"


def _written(lab: Lab, needle: str) -> list[Path]:
    """Files of the lab that hold the needle; models are too large and too random to matter."""
    files = [p for p in lab.root.rglob("*") if p.is_file() and p.suffix != ".gguf" and p.name != "key.txt"]
    return [p for p in files if needle.encode() in p.read_bytes()]


@pytest.mark.engine("llama-server", "smollm2")
@pytest.mark.parametrize("kind", ["fromEnv", "fromFile"])
def test_an_api_key_is_asked_for_and_never_shown(lab: Lab, llama_server: Path, smollm2: Path, kind: str) -> None:
    port = free_port()
    lab.link(smollm2, "m.gguf")
    place = {"fromEnv": "CHAT_SECRET", "fromFile": "./key.txt"}[kind]
    lab.write(
        f"- {{name: chat, source: {{path: ./m.gguf}}, port: {port}, context: 512, slots: 1, backend: real, "
        f"apiKey: {{{kind}: {place}}}}}",
        backends=f"real: {{engine: llama-cpp, accelerator: cpu, binary: {llama_server}}}",
    )

    def set_secret(value: str) -> None:
        lab.extra_env["CHAT_SECRET"] = value
        (lab.root / "key.txt").write_text(value + "\n")
        (lab.root / "key.txt").chmod(0o600)

    set_secret(FIRST)
    shown = [lab.ok("plan"), *(lab.ok("plan", "-o", kind) for kind in ("wide", "json", "markdown")), lab.ok("render")]
    assert "(secret, set)" in shown[0].out
    shown += [lab.ok("plan", "--out", "plan.json"), lab.apply()]
    assert ask(port, "Hello")[0] == 401
    assert ask(port, "Hello", key=FIRST)[0] == 200
    assert lab.idle()

    snapshot = lab.ok("snapshot", "-f", "models.yaml")
    shown += [snapshot, *(lab.ok(*a) for a in (("status", "-o", "json"), ("events",), ("logs", "chat", "-n", "0")))]
    shown += [lab.ok("facts", "-o", "json"), lab.ok("plan", "--explain", "chat"), lab.ok("render", "-o", "json")]
    process = psutil.Process(lab.pid("chat"))
    assert FIRST not in " ".join(process.cmdline())
    token = lab.record("chat")["token"]
    assert token not in snapshot.out
    assert (lab.state / "runs/chat.json").stat().st_mode & 0o077 == 0

    pid = lab.pid("chat")
    set_secret(SECOND)
    plan = lab.ok("plan")
    assert "secret.LLAMA_API_KEY  (secret, changed)" in plan.out
    assert "needs a restart" in plan.out
    shown += [plan, lab.apply()]
    assert lab.pid("chat") != pid
    assert ask(port, "Hello", key=FIRST)[0] == 401
    assert ask(port, "Hello", key=SECOND)[0] == 200
    for secret in (FIRST, SECOND):
        assert not [d for d in shown if secret in d.out + d.err]
        assert _written(lab, secret) == []


@pytest.mark.parametrize(("kind", "place"), [("fromEnv", "CHAT_SECRET"), ("fromFile", "./key.txt")])
def test_a_missing_secret_blocks_and_says_where_it_was_looked_for(lab: Lab, kind: str, place: str) -> None:
    lab.fake("chat")
    lab.edit("slots: 1}", f"slots: 1, apiKey: {{{kind}: {place}}}}}")
    done = lab.run("apply", "-f", "models.yaml", "--yes")
    assert done.code == 7
    assert "server.chat: the secret for LLAMA_API_KEY cannot be read from" in done.err
    assert place.removeprefix("./") in done.err
    assert not lab.processes()


def test_the_hub_token_goes_to_the_hub_only(lab: Lab) -> None:
    lab.fake_engine()
    with running_hub() as hub:
        data = lab.gguf().read_bytes()
        digest = hub.add("lab/chat", "tiny.gguf", data)
        hub.gated.add("lab/chat")
        sources = f"sources: {{huggingface: {{endpoint: {hub.endpoint}, token: {{fromEnv: LAB_HUB}}}}}}\n"
        source = f"huggingface: lab/chat, filename: tiny.gguf, sha256: {digest}"
        lab.write(lab.fake_server("chat", source), backends=FAKE_BACKEND, head=lab.fake_head(sources))

        missing = lab.run("apply", "-f", "models.yaml", "--yes")
        assert missing.code != 0
        assert "LAB_HUB" in missing.err

        lab.extra_env["LAB_HUB"] = hub.token
        done = lab.apply()
        assert "server.chat: done: serving" in done.err
        sent = {r.origin for r in hub.requests if hub.token in r.headers.get("authorization", "")}
        assert sent == {"hub"}
        assert hub.token not in done.out + done.err
        assert _written(lab, hub.token) == []
        environ = psutil.Process(lab.pid("chat")).environ()
        assert hub.token not in environ.values(), "a server does not inherit what it has no use for"
        assert os.environ.get("LAB_HUB") is None

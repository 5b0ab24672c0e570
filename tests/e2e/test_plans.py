"""Plans that travel: made from a snapshot elsewhere, or saved, reviewed and applied."""

from __future__ import annotations

import json
import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.lab import Lab, free_port


def _snapshot(lab: Lab) -> Path:
    path = lab.root / "lab-01.json"
    path.write_text(lab.ok("snapshot", "-f", "models.yaml").out)
    return path


def _elsewhere(lab: Lab) -> Lab:
    """Another machine: models.yaml and the snapshot are there, and nothing else."""
    other = Lab(lab.root / "elsewhere", stack=lab.stack)
    other.root.mkdir()
    shutil.copy(lab.root / "models.yaml", other.root)
    shutil.copy(lab.root / "lab-01.json", other.root)
    return other


def _changes(done: Any) -> tuple[str, list[Any]]:
    plan = done.json()
    return plan["digest"], plan["changes"]


@pytest.mark.engine("llama-server", "embedded", "smollm2")
def test_a_snapshot_plans_elsewhere_as_the_host_itself(lab: Lab, llama_server: Path, smollm2: Path) -> None:
    lab.link(smollm2, "m.gguf")
    lab.write(
        f"""
- {{name: chat, source: {{path: ./m.gguf}}, port: {free_port()}, backend: binary, context: 512, slots: 1}}
- {{name: tiny, source: {{path: ./m.gguf}}, port: {free_port()}, backend: inside, context: 512, slots: 1}}
""",
        backends=f"""
binary: {{engine: llama-cpp, accelerator: cpu, binary: {llama_server}}}
inside: {{engine: llama-cpp, accelerator: cpu, embedded: true}}
""",
    )
    lab.apply()
    _snapshot(lab)
    other = _elsewhere(lab)
    assert other.run("plan", "--against", "snapshot=lab-01.json", "--detailed-exitcode").code == 0

    port = free_port()
    for one in (lab, other):
        one.edit("backend: binary, context: 512", "backend: binary, context: 768")
        with (one.root / "models.yaml").open("a") as file:
            file.write(f"  - {{name: new, source: {{path: ./m.gguf}}, port: {port}, backend: inside, context: 256}}\n")
    here = lab.run("plan", "-o", "json", "--detailed-exitcode")
    there = other.run("plan", "--against", "snapshot=lab-01.json", "-o", "json", "--detailed-exitcode")
    assert here.code == there.code == 2
    assert _changes(here) == _changes(there)

    comment = other.ok("plan", "--against", "snapshot=lab-01.json", "-o", "markdown").out
    assert comment.startswith("<!-- gezelctl:plan stack=lab host=")
    assert "| `-/+` | `server.chat` |" in comment
    assert "| `+` | `server.new` |" in comment
    again = other.ok("plan", "--against", "snapshot=lab-01.json", "-o", "markdown").out
    assert again == comment, "no clock in the comment"

    digest = there.json()["digest"]
    wrong = lab.run("apply", "-f", "models.yaml", "--yes", "--expect-digest", f"sha256:{'0' * 64}")
    assert wrong.code == 7
    assert digest in wrong.err
    done = lab.run("apply", "-f", "models.yaml", "--yes", "--expect-digest", digest)
    assert done.code == 0, done.err


def test_what_blocks_a_plan_is_said_beside_machine_formats_and_annotated(lab: Lab) -> None:
    lab.fake("chat")
    lab.edit("./tiny.gguf", "./nowhere.gguf")
    lab.extra_env["GITHUB_ACTIONS"] = "true"
    for kind, said in (("json", True), ("markdown", True), ("text", False)):
        done = lab.run("plan", "-o", kind)
        assert done.code == 7
        assert ("blocked: payload.llama-cpp.chat: " in done.err) == said
        assert done.err.count("::error::payload.llama-cpp.chat: ") == 1


def test_an_old_snapshot_is_warned_of_and_still_used(lab: Lab) -> None:
    lab.fake("chat")
    path = _snapshot(lab)
    document = json.loads(path.read_text())
    document["observedAt"] = (datetime.now(UTC) - timedelta(hours=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
    path.write_text(json.dumps(document))
    args = ("plan", "--against", "snapshot=lab-01.json", "--detailed-exitcode", "-o", "json")
    old = lab.run(*args)
    assert old.code == 2
    assert "warning: the snapshot is 1 d 6 h old, --max-age is 1 d: " in old.err
    assert old.json()["against"]["ageS"] >= 30 * 3600, "warnings do not disturb the data"
    assert "warning" not in lab.run(*args, "--max-age", "2d").err
    document["observedAt"] = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    path.write_text(json.dumps(document))
    assert "which is still to come" in lab.run(*args).err


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (lambda _: "{", 65, "is not complete JSON"),
        (lambda _: "apiVersion: x", 65, "is not JSON"),
        (lambda _: "[]", 65, "is not a snapshot"),
        (lambda d: json.dumps({**d, "kind": "Plan"}), 65, "is not a snapshot"),
        (lambda d: json.dumps({**d, "formatVersion": "2.0"}), 65, "has format version 2.0"),
        (lambda d: json.dumps({**d, "observed": 5}), 65, "is damaged"),
        (lambda d: json.dumps({**d, "stack": "other"}), 64, "is a snapshot of stack other"),
        (lambda d: json.dumps({**d, "observedAt": "yesterday"}), 65, "is damaged"),
    ],
    ids=["cut", "yaml", "list", "kind", "version", "damaged", "stack", "time"],
)
def test_a_snapshot_that_cannot_be_used(lab: Lab, spoil: Any, code: int, said: str) -> None:
    lab.fake("chat")
    path = _snapshot(lab)
    path.write_text(spoil(json.loads(path.read_text())))
    done = lab.run("plan", "--against", "snapshot=lab-01.json")
    assert done.code == code
    assert said in done.err
    assert "cure: " in done.err
    assert done.out == ""


def test_a_snapshot_of_another_host(lab: Lab) -> None:
    lab.fake("chat")
    path = _snapshot(lab)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "host": "lab-77"}))
    assert lab.run("plan", "--against", "snapshot=lab-01.json").code == 0, "the snapshot says which host it is"
    done = lab.run("plan", "--against", "snapshot=lab-01.json", "--host", "lab-02")
    assert done.code == 64
    assert "is a snapshot of host lab-77, the plan is for lab-02" in done.err
    assert "cure: pass --host lab-77" in done.err
    assert lab.run("plan", "--against", "snapshot=lab-01.json", "--out", "p.json").code == 64


def test_a_backend_that_the_snapshot_does_not_know(lab: Lab) -> None:
    lab.fake("chat")
    _snapshot(lab)
    other = _elsewhere(lab)
    other.edit("fake: {", "renamed: {")
    other.edit("backend: fake", "backend: renamed")
    done = other.run("plan", "--against", "snapshot=lab-01.json")
    assert done.code == 7
    assert "take a new snapshot on the host" in done.out


def test_a_saved_plan_is_applied_exactly_once(lab: Lab) -> None:
    lab.fake("chat")
    made = lab.ok("plan", "--out", "plan.json")
    saved = lab.root / "plan.json"
    assert "apply exactly this plan with: gezelctl apply plan.json" in made.err
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    shown = lab.ok("show", "plan.json").out
    assert "+ server.chat" in shown
    assert "Saved plan sha256:" in shown
    assert lab.ok("show", "plan.json", "-o", "name").out == "payload.llama-cpp.chat\nserver.chat\n"
    assert lab.ok("show", "plan.json", "-o", "json").json()["digest"] == json.loads(saved.read_text())["digest"]

    elsewhere = lab.root / "folder"
    elsewhere.mkdir()
    done = lab.run("apply", str(saved), cwd=elsewhere)
    assert done.code == 0, done.err
    assert "server.chat: done: serving" in done.err
    pid = lab.pid("chat")

    again = lab.run("apply", "plan.json")
    assert again.code == 5
    assert "the stack was changed since the plan was made (serial 0, now 1)" in again.err
    lab.ok("destroy", "-f", "models.yaml", "--yes")
    replayed = lab.run("apply", "plan.json")
    assert replayed.code == 5
    assert lab.pid("chat") == 0 != pid


def test_a_saved_plan_without_changes_is_not_used_up(lab: Lab) -> None:
    lab.fake("chat")
    lab.apply()
    lab.ok("plan", "--out", "plan.json")
    for _ in range(2):
        done = lab.run("apply", "plan.json")
        assert done.code == 0
        assert "No changes:" in done.out


def test_a_saved_plan_is_stale_after_an_edit(lab: Lab) -> None:
    lab.fake("chat")
    lab.ok("plan", "--out", "plan.json")
    lab.edit("context: 128", "context: 64")
    done = lab.run("apply", "plan.json")
    assert done.code == 5
    assert f"{lab.root}/models.yaml changed since the plan was made" in done.err
    assert "cure: Make a new plan with --out." in done.err
    assert not lab.processes()


def test_a_saved_plan_is_stale_when_the_host_moved(lab: Lab) -> None:
    lab.fake("chat")
    lab.apply()
    lab.edit("context: 128", "context: 64")
    lab.ok("plan", "--out", "plan.json")
    for process in lab.processes():
        process.kill()
        process.wait(10)
    done = lab.run("apply", "plan.json")
    assert done.code == 5
    assert "server.chat is no longer as the plan saw it" in done.err


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (lambda t: t.replace('"128"', '"64"', 1), 5, "the saved plan was changed after it was saved"),
        (lambda t: t.replace('"applyable": true', '"applyable": false'), 5, "the saved plan was changed"),
        (lambda t: t[:200], 64, "is broken"),
        (lambda _: "{}", 64, "plan.json"),
        (lambda t: json.dumps({**json.loads(t), "formatVersion": "9.0"}), 5, "9.0"),
        (lambda t: json.dumps({**json.loads(t), "checksum": ""}), 7, "not saved for apply"),
    ],
    ids=["argv", "flag", "cut", "empty", "version", "unsealed"],
)
def test_a_saved_plan_that_was_tampered_with(lab: Lab, spoil: Any, code: int, said: str) -> None:
    lab.fake("chat")
    lab.ok("plan", "--out", "plan.json")
    saved = lab.root / "plan.json"
    text = saved.read_text()
    saved.write_text(spoil(text))
    assert saved.read_text() != text
    done = lab.run("apply", "plan.json")
    assert (done.code, said in done.err) == (code, True), done.err
    assert "cure: " in done.err
    assert not lab.processes()


def test_what_a_saved_plan_does_not_take(lab: Lab) -> None:
    lab.fake("chat")
    lab.ok("plan", "--out", "plan.json")
    for more in (("--only", "chat"), ("--prune",), ("-f", "models.yaml"), ("--host", "x"), ("--restart", "chat")):
        done = lab.run("apply", "plan.json", *more)
        assert done.code == 64, more
        assert "a saved plan takes no planning options" in done.err
    swapped = lab.run("apply", "models.yaml", "--yes")
    assert swapped.code == 64
    assert "models.yaml is no saved plan" in swapped.err
    assert "gezelctl apply -f models.yaml" in swapped.err
    stdin = lab.run("plan", "-f", "-", "--out", "p.json", given=(lab.root / "models.yaml").read_text())
    assert stdin.code == 64
    assert not (lab.root / "p.json").exists()


def test_a_narrowed_saved_plan_stays_narrow(lab: Lab) -> None:
    lab.fake("alpha", "beta")
    lab.ok("plan", "--only", "alpha", "--out", "plan.json")
    done = lab.run("apply", "plan.json")
    assert done.code == 0, done.err
    assert lab.pid("alpha")
    assert not lab.pid("beta")
    assert json.loads((lab.state / "state.json").read_text()).get("lastApplied", "") == ""


def test_reports_are_written_beside_the_text(lab: Lab) -> None:
    lab.fake("chat")
    lab.extra_env["GITHUB_STEP_SUMMARY"] = str(lab.root / "summary.md")
    done = lab.ok("plan", "--report", "markdown=plan.md", "--report", "json=plan.json")
    assert "+ server.chat" in done.out
    assert (lab.root / "plan.md").read_text() == (lab.root / "summary.md").read_text()
    assert json.loads((lab.root / "plan.json").read_text())["summary"]["create"] == 1
    lab.extra_env.clear()
    refused = lab.run("plan", "--report", "markdown=no/such/plan.md")
    assert refused.code == 1
    assert "cannot write no/such/plan.md" in refused.err
    assert lab.run("plan", "--report", "pdf=x").code == 64

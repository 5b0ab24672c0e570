"""The contract of the command line: exit codes, streams, formats, and words that a newcomer understands."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from gezelctl.cli.main import COMMANDS
from gezelctl.errors import ExitCode
from tests.conftest import REPO
from tests.e2e.lab import Lab, alive, wait_for


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_shows_an_example(lab: Lab, command: str) -> None:
    done = lab.ok(*([command] if command else []), "--help")
    assert done.err == ""
    assert "Example: " in done.out
    assert max(map(len, done.out.splitlines())) <= 100
    example = next(line for line in done.out.splitlines() if "Example: " in line)
    assert f"gezelctl {command}".strip() in example


def test_exit_codes_are_unique_and_documented() -> None:
    codes = [int(code) for code in ExitCode]
    assert len(set(codes)) == len(codes) == len(ExitCode.__members__)
    manual = (REPO / "README.md").read_text()
    first_cells = " ".join(re.findall(r"^\|([^|]*)\|", manual, re.MULTILINE))
    assert {int(n) for n in re.findall(r"\b\d+\b", first_cells)} >= set(codes)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["plna"], "No such command: plna. Did you mean plan?"),
        (["xyzzy"], "No such command: xyzzy."),
        (["restart", "chat"], "Did you mean apply --restart NAME?"),
        (["plan", "models.yaml"], "A file is named with -f."),
        (["plan", "--bogus"], "No such option"),
        (["plan", "--detailed"], "No such option"),
        (["plan", "-o", "xml"], "'xml' is not one of 'text', "),
        (["apply"], "Missing option -f/--file (or set GEZELCTL_FILE): "),
        (["destroy"], "Missing option -f/--file"),
        (["apply", "no-such-plan.json"], "no-such-plan.json: No such file or directory"),
        (["plan", "--against", "yesterday"], "Write live or snapshot=FILE."),
        (["plan", "--max-age", "soon"], "soon is not a duration"),
        (["apply", "-f", "models.yaml", "--lock-timeout", "-1"], "-1 is not a duration"),
        (["status", "nobody"], "no such server: server.nobody"),
        (["logs", "nobody"], "no log of a server nobody"),
        (["logs", "../../etc/passwd"], "no log of a server ../../etc/passwd"),
        (["plan", "--only", "chta"], "Did you mean server.chat?"),
        (["plan", "--except", "nobody"], "server.nobody is no server of stack lab on this host"),
        (["apply", "-f", "models.yaml", "--yes", "--restart", "nobody"], "server.nobody is no server"),
        (["render", "--only", "nobody"], "server.nobody is no server"),
        (["plan", "--explain", "nobody"], "server.nobody"),
        (["schema", "nothing"], "is not one of"),
        (["completion", "tcsh"], "is not one of"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_usage_errors(lab: Lab, args: list[str], said: str) -> None:
    lab.fake("chat")
    done = lab.run(*args)
    assert done.code == 64, done.err
    assert done.out == ""
    assert said in done.err


def test_no_file_is_said_with_the_cure(lab: Lab) -> None:
    for args in (("plan",), ("status",), ("plan", "-f", "other.yaml")):
        done = lab.run(*args)
        assert done.code == 65
        assert "the file does not exist" in done.err
        assert "cure: " in done.err


def test_apply_asks_and_without_a_terminal_refuses(lab: Lab) -> None:
    lab.fake("chat")
    for more in ((), ("--no-input",)):
        done = lab.run("apply", "-f", "models.yaml", *more)
        assert done.code == 7
        assert "error: Apply this plan? Nothing was changed, since " in done.err
        assert "cure: Agree with --yes." in done.err
        assert "+ server.chat" in done.out, "the plan was shown before"
    assert lab.run("apply", "-f", "models.yaml", "-o", "json").code == 7, "JSON never implies --yes"
    assert not lab.processes()
    lab.apply()
    done = lab.run("destroy", "-f", "models.yaml")
    assert done.code == 7
    assert "This deletes 1 server of stack lab." in done.err
    assert alive(lab.pid("chat"))


def test_a_terminal_is_asked(lab: Lab) -> None:
    lab.fake("chat")
    for answer, code in (("no", 7), ("yes", 0)):
        leader, follower = pty.openpty()
        applying = lab.start("apply", "-f", "models.yaml", stdin=follower)
        os.write(leader, f"{answer}\n".encode())
        done = lab.end(applying)
        assert done.code == code, done.err
        assert "Apply this plan? Type yes to go on: " in done.err
        for descriptor in (leader, follower):
            os.close(descriptor)
    assert alive(lab.pid("chat"))


def test_plan_formats_are_data_alone(lab: Lab) -> None:
    lab.fake("chat")
    lab.edit("context: 128", "context: 100000")  # more than the model was trained for: a warning
    document = lab.ok("plan", "-o", "json").json()
    assert document["kind"] == "Plan"
    assert [d["severity"] for d in document["diagnostics"]] == ["warning"]
    assert yaml.safe_load(lab.ok("plan", "-o", "yaml").out)["digest"] == document["digest"]
    assert lab.ok("plan", "-o", "name").out == "payload.llama-cpp.chat\nserver.chat\n"
    assert lab.ok("plan", "-o", "markdown").out.startswith("<!-- gezelctl:plan stack=lab")
    assert str(lab.root) in lab.ok("plan", "-o", "wide").out
    first, second = (lab.ok("plan", "-o", "markdown").out for _ in range(2))
    assert first == second
    assert not lab.state.exists(), "a plan leaves no state"


def test_order_in_the_file_changes_no_byte_of_the_plan(lab: Lab) -> None:
    lab.fake("alpha", "beta", "gamma")
    lines = (lab.root / "models.yaml").read_text().splitlines()
    first = lab.ok("plan", "-o", "json").json()
    models = lines.index("models:") + 1
    (lab.root / "models.yaml").write_text("\n".join([*lines[:models], *reversed(lines[models:])]) + "\n")
    second = lab.ok("plan", "-o", "json").json()
    assert first["digest"] == second["digest"]
    assert [c["address"] for c in first["changes"]] == [c["address"] for c in second["changes"]]
    lab.apply()
    (lab.root / "models.yaml").write_text("\n".join(lines) + "\n")
    assert lab.idle()


def test_colour_only_where_it_is_wanted(lab: Lab) -> None:
    lab.fake("chat")
    plain = lab.ok("plan").out
    assert "\x1b[" not in plain
    coloured = lab.ok("plan", "--color", "always").out
    assert "\x1b[32m" in coloured
    strip = re.compile(r"\x1b\[[0-9;]*m")
    seen = re.compile(r"seen [^.]*\.")
    assert seen.sub("", strip.sub("", coloured)) == seen.sub("", plain), "colour adds nothing and drops nothing"
    lab.extra_env["FORCE_COLOR"] = "1"
    assert "\x1b[" in lab.ok("plan").out
    lab.extra_env["NO_COLOR"] = "1"
    assert "\x1b[" not in lab.ok("plan").out
    assert "\x1b[" in lab.ok("plan", "--color", "always").out


def test_progress_modes(lab: Lab) -> None:
    lab.fake("chat")
    quiet = lab.run("apply", "-f", "models.yaml", "--yes", "--progress", "none", "-q")
    assert (quiet.code, quiet.err) == (0, "")
    told = lab.ok("apply", "-f", "models.yaml", "--yes", "--restart", "chat", "--progress", "json")
    events = [json.loads(line) for line in told.err.splitlines() if line.startswith("{")]
    assert [(e["address"], e["state"]) for e in events if e["event"] == "step"] == [
        ("server.chat", "started"),
        ("server.chat", "done"),
    ]
    assert events[0]["message"] == "restarting: asked for with --restart"
    plain = lab.ok("apply", "-f", "models.yaml", "--yes", "--restart", "chat", "--progress", "plain")
    assert "server.chat: done: serving on http://127.0.0.1:" in plain.err
    assert "\x1b[" not in plain.err
    result = lab.ok("apply", "-f", "models.yaml", "--yes", "--restart", "chat", "-o", "json").json()
    assert result["done"] == ["server.chat"]
    assert lab.ok("apply", "-f", "models.yaml", "--yes", "-o", "json").json() == {}


def test_only_and_except(lab: Lab) -> None:
    lab.fake("alpha", "beta", "gamma")
    done = lab.ok("apply", "-f", "models.yaml", "--yes", "--only", "beta")
    assert "Partial plan: only server.beta." in done.out
    assert lab.pid("beta")
    assert not lab.pid("alpha")
    done = lab.ok("apply", "-f", "models.yaml", "--yes", "--except", "server.alpha")
    assert "without server.alpha" in done.out
    assert lab.pid("gamma")
    assert not lab.pid("alpha")
    assert lab.run("plan", "--detailed-exitcode").code == 2
    assert lab.run("plan", "--detailed-exitcode", "--except", "alpha").code == 0
    lab.ok("destroy", "-f", "models.yaml", "--yes", "--only", "beta")
    assert (lab.pid("beta"), lab.pid("gamma") != 0) == (0, True)


def test_restart_is_a_planned_action(lab: Lab) -> None:
    lab.fake("alpha", "beta")
    lab.apply()
    before = lab.pid("alpha"), lab.pid("beta")
    plan = lab.run("plan", "--restart", "alpha", "--detailed-exitcode")
    assert plan.code == 2
    assert "-/+ server.alpha" in plan.out
    assert "asked for with --restart" in plan.out
    lab.ok("apply", "-f", "models.yaml", "--yes", "--restart", "alpha")
    assert lab.pid("alpha") != before[0]
    assert lab.pid("beta") == before[1]
    assert lab.idle()


def test_what_left_the_file_is_kept_until_pruned(lab: Lab) -> None:
    lab.fake("alpha", "beta", "gamma")
    lab.apply()
    pids = {name: lab.pid(name) for name in ("alpha", "beta", "gamma")}
    lines = (lab.root / "models.yaml").read_text().splitlines(keepends=True)

    def keep(*names: str) -> None:
        wanted = [line for line in lines if "name: " not in line or any(f"name: {n}," in line for n in names)]
        (lab.root / "models.yaml").write_text("".join(wanted))

    keep("alpha", "beta")
    kept = lab.run("plan", "--detailed-exitcode")
    assert kept.code == 0, "a kept server is no change"
    assert "! server.gamma" in kept.out
    assert "kept, since pruning is off" in kept.out
    lab.apply()
    assert alive(pids["gamma"])
    assert lab.status()["gamma"]["wanted"] is False
    pruned = lab.ok("apply", "-f", "models.yaml", "--yes", "--prune")
    assert "- server.gamma" in pruned.out
    assert not alive(pids["gamma"])

    (lab.root / "models.yaml").write_text(
        "".join(line for line in lines if "name: " not in line).replace("models:", "models: []")
    )
    guarded = lab.run("apply", "-f", "models.yaml", "--yes", "--prune")
    assert guarded.code == 7
    assert "this would delete 2 of 2 servers" in guarded.err
    assert "--allow-empty" in guarded.err
    assert alive(pids["alpha"])
    lab.ok("apply", "-f", "models.yaml", "--yes", "--prune", "--allow-empty")
    assert not lab.processes()


def test_destroy_when_there_is_nothing(lab: Lab) -> None:
    lab.fake("chat")
    done = lab.ok("destroy", "-f", "models.yaml", "--yes")
    assert done.out.startswith("Nothing to destroy: stack lab has no server on ")
    assert done.err == ""


def test_a_stopped_server_is_seen_and_started_again(lab: Lab) -> None:
    lab.fake("chat")
    lab.apply()
    for process in lab.processes():
        process.kill()
        process.wait(10)
    row = lab.status()["chat"]
    assert (row["sync"], row["health"]) == ("Drifted", "Failed")
    assert "its process has ended" in row["why"]
    plan = lab.ok("plan")
    assert "no longer running" in plan.out
    lab.apply()
    assert lab.status()["chat"]["health"] == "Ready"


def test_looking_commands(lab: Lab) -> None:
    lab.fake("chat")
    assert lab.ok("lock").out == "free\n"
    assert lab.ok("events").out == "No events.\n"
    lab.apply()
    port = lab.ports["chat"]
    assert f"# server.chat on fake: http://127.0.0.1:{port}" in lab.ok("render").out
    assert f"--port {port}" in lab.ok("render", "--only", "chat").out
    argv = lab.ok("render", "-o", "json").json()[0]["argv"]
    assert argv[argv.index("--port") + 1] == str(port)
    assert "listening on" in lab.ok("logs", "chat").out
    assert lab.ok("logs", "server.chat", "-n", "1").out.count("\n") == 1
    facts = lab.ok("facts")
    assert "engine   fake: " in facts.out
    assert lab.ok("facts", "-o", "json").json()["engines"]["fake"]["flags"]
    events = [json.loads(line) for line in lab.ok("events", "-o", "jsonl").out.splitlines()]
    assert [e["type"] for e in events] == ["run_started", *["step_started", "step_done"] * 2, "run_finished"]
    text = lab.ok("events").out
    assert not [line for line in text.splitlines() if line.endswith("run_started")], "each line says something"
    assert {e["address"] for e in events if e.get("address")} == {"payload.llama-cpp.chat", "server.chat"}
    assert lab.ok("events", "--for", "chat").out.count("\n") == 2
    table = lab.ok("status").out.splitlines()
    assert table[0].split() == ["NAME", "SYNC", "HEALTH", "MODEL", "PORT", "PID", "SINCE", "WHY"]
    assert table[1].split()[:5] == ["chat", "Synced", "Ready", "chat", str(port)]
    assert "." not in table[1], "no fractions of a second"
    assert lab.ok("status", "-o", "name").out == "server.chat\n"
    assert lab.ok("status", "chat").out.splitlines()[1:] == table[1:]
    explained = lab.ok("plan", "--explain", "chat").out
    assert re.search(r"context +128 +\w+ +models.yaml:\d+", explained)
    assert "models.yaml is valid: stack lab, 1 server" in lab.ok("validate").err
    assert re.fullmatch(r"gezelctl \d+\.\d+\.\d+\S*\n", lab.ok("--version").out)
    assert lab.ok("version", "-o", "json").json()["gezelctl"]


def test_logs_follow_ends_with_an_interrupt(lab: Lab) -> None:
    lab.fake("chat")
    lab.apply()
    following = lab.start("logs", "chat", "--follow")
    time.sleep(0.6)
    log = lab.state / "logs/chat.log"
    with log.open("a") as file:
        file.write("a new line\n")
    time.sleep(0.6)
    following.send_signal(signal.SIGINT)
    done = lab.end(following)
    assert done.code == 130
    assert done.out.endswith("a new line\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_watching_ends_with_a_signal(lab: Lab, number: signal.Signals, code: int) -> None:
    lab.fake("chat")
    watching = lab.start("status", "--watch")
    time.sleep(1)
    watching.send_signal(number)
    done = lab.end(watching)
    assert done.code == code
    assert done.out.startswith("NAME")


def test_a_reader_that_leaves_is_no_error(lab: Lab) -> None:
    lab.fake("chat")
    for command in ("plan", "plan -o json", "facts -o json", "schema models"):
        found = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {sys.executable} -m gezelctl {command} | head -c 1"],
            cwd=lab.root,
            env=lab.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (found.returncode, found.stderr, len(found.stdout)) == (0, "", 1), command


def test_a_full_disk_behind_stdout_is_said(lab: Lab) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    lab.fake("chat")
    with full.open("w") as out:
        found = subprocess.run(
            [sys.executable, "-m", "gezelctl", "plan"],
            cwd=lab.root,
            env=lab.env,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert found.returncode == 1
    assert "cannot write output: No space left on device" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("name", ["models", "plan", "snapshot", "event", "installed-manifest"])
def test_schemas_are_those_that_are_checked_in(lab: Lab, name: str) -> None:
    assert lab.ok("schema", name).out == (REPO / "schemas" / f"{name}.schema.json").read_text()


def test_completion_script_is_accepted_by_bash(lab: Lab) -> None:
    script = lab.root / "complete.bash"
    script.write_text(lab.ok("completion", "bash").out)
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    found = subprocess.run([bash, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_configuration_from_stdin_and_environment(lab: Lab) -> None:
    lab.fake("chat")
    text = (lab.root / "models.yaml").read_text()
    from_stdin = lab.run("plan", "-f", "-", "-o", "name", given=text)
    assert (from_stdin.code, from_stdin.out) == (0, "payload.llama-cpp.chat\nserver.chat\n")
    lab.extra_env["GEZELCTL_FILE"] = str(lab.root / "models.yaml")
    elsewhere = lab.root / "elsewhere"
    elsewhere.mkdir()
    lab.ok("apply", "--yes", cwd=elsewhere)
    lab.ok("status", "--check", cwd=elsewhere)


def test_two_stacks_on_one_host_do_not_meet(lab: Lab) -> None:
    lab.fake("chat")
    lab.apply()
    other = Lab(lab.root / "other", stack="other", mark=lab.mark)
    other.root.mkdir()
    other.extra_env["GEZELCTL_STATE_DIR"] = str(lab.root / "state")
    other.fake("chat")
    assert lab.ports["chat"] != other.ports["chat"]
    other.apply()
    assert len(lab.processes()) == 2
    other.ok("destroy", "-f", "models.yaml", "--yes")
    assert [p.pid for p in lab.processes()] == [lab.pid("chat")]
    wait_for(lab.idle, "the first stack to be left alone", 5)

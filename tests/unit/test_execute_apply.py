"""Carrying out plans with real processes and real HTTP: what is done, failed and skipped, and what stands then."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gezelctl.config.model import Archive
from gezelctl.config.secrets import Secret
from gezelctl.engines.types import Expectation, LaunchSpec, SecretEnv
from gezelctl.errors import EngineError, ExitCode, RefusedError
from gezelctl.execute.apply import apply_plan
from gezelctl.execute.context import ApplyResult, StepFailure
from gezelctl.execute.process import stop
from gezelctl.execute.prove import read_log
from gezelctl.observe.hub import Hub
from gezelctl.observe.processes import process_state
from gezelctl.plan.types import Change, PayloadMeta, Plan
from gezelctl.store.events import read_events
from gezelctl.store.layout import Paths
from gezelctl.store.manifests import installed
from gezelctl.store.records import read_record, read_records, read_state
from gezelctl.store.types import RunRecord
from tests import hubserver
from tests.executing import (
    META,
    PROGRAM,
    Recorder,
    download,
    hub_file,
    launch,
    link,
    make_context,
    make_paths,
    make_plan,
    model_bytes,
    path_file,
    server_change,
    tar_bytes,
)


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Paths]:
    found = make_paths(tmp_path)
    yield found
    for record in read_records(found)[0]:
        stop(record, None, grace_s=0.2)


def run(paths: Paths, *changes: Change, complete: bool = True, **context: Any) -> tuple[ApplyResult, Recorder]:
    made, recorder = make_context(paths, **context)
    return apply_plan(make_plan(*changes, complete=complete), made), recorder


def recorded(paths: Paths, server: str = "chat") -> RunRecord:
    record = read_record(paths, server)
    assert record is not None
    return record


def only_failure(result: ApplyResult) -> StepFailure:
    (failure,) = result.failed
    return failure


def test_a_server_is_started_and_proved(paths: Paths) -> None:
    spec = launch()
    result, recorder = run(paths, server_change(spec))
    assert (result.done, result.failed, result.skipped, result.exit_code) == (("server.chat",), (), (), ExitCode.OK)
    record = recorded(paths)
    assert record.proved
    assert record.load_seconds > 0
    assert process_state(record) == ("running", record.pid)
    assert [s for _, s, _ in recorder.steps] == ["started", "done"]
    assert f"pid {record.pid}" in recorder.steps[-1][2]
    state = read_state(paths)
    assert state is not None
    assert (state.serial, state.last_applied) == (1, make_plan(server_change(spec)).digest)
    assert [e.type for e in read_events(paths)] == [
        "version",
        "run_started",
        "step_started",
        "step_done",
        "run_finished",
    ]


def test_loading_is_waited_for(paths: Paths) -> None:
    result, _ = run(paths, server_change(launch("--fake-delay", "1.0")))
    assert result.exit_code == ExitCode.OK
    assert recorded(paths).load_seconds >= 1.0


def test_work_that_shows_extends_the_time(paths: Paths) -> None:
    """1.2 s without a word would be too long for this server; it talks all the while."""
    result, _ = run(paths, server_change(launch("--fake-chatter", "2.5", timeout_s=1)))
    assert result.exit_code == ExitCode.OK


def test_a_silent_start_is_given_up_and_left_to_be_looked_at(paths: Paths) -> None:
    result, _ = run(paths, server_change(launch("--fake-line", "last words", "--fake-delay", "60", timeout_s=1)))
    failure = only_failure(result)
    assert (failure.code, failure.proof, result.exit_code) == ("START_TIMEOUT", True, ExitCode.UNHEALTHY)
    assert not recorded(paths).proved
    assert process_state(recorded(paths)).state == "running"


WRAPPERS = ["0.00.1 E srv    load_model: failed to load model, 'x.gguf'", "exiting due to model loading error"]
MAGIC = "0.00.100.000 E gguf_init_from_file: failed: invalid magic characters: 'vers', expected 'GGUF'"
LIBRARY = "llama-server: error while loading shared libraries: libgomp.so.1: cannot open shared object file"
CRASHES: list[tuple[int, list[str], str, str]] = [
    (1, ["error: invalid argument: --draft-max"], "ARG_UNKNOWN", "--draft-max"),
    (1, [MAGIC, *WRAPPERS], "NOT_GGUF", "invalid magic"),
    (-4, [], "CPU_ISA", "signal 4"),
    (127, [LIBRARY], "LIBS", "libgomp.so.1"),
]


@pytest.mark.parametrize(("status", "lines", "code", "words"), CRASHES, ids=[c[2] for c in CRASHES])
def test_a_death_while_loading_is_named(paths: Paths, status: int, lines: list[str], code: str, words: str) -> None:
    flags = ["--fake-crash", str(status), *(part for line in lines for part in ("--fake-line", line))]
    log = paths.log("chat")
    log.parent.mkdir(parents=True)
    log.write_text("ggml_cuda: cudaMalloc failed: out of memory\n")  # of an earlier start: not to be classified
    result, _ = run(paths, server_change(launch(*flags)))
    failure = only_failure(result)
    assert failure.code == code
    assert words in failure.message
    assert failure.cure
    assert (failure.proof, result.exit_code) == (True, ExitCode.UNHEALTHY)
    assert process_state(recorded(paths)).state == "gone"


@pytest.mark.parametrize(
    ("flags", "expect", "code", "words"),
    [
        (["--fake-context", "512"], {}, "CONTEXT_MISMATCH", "512 instead of 2048"),
        ([], {"slots": 4}, "SLOTS_MISMATCH", "2 instead of 4"),
        ([], {"speculation": True}, "SPECULATION_OFF", "off instead of on"),
        ([], {"model_id": "other"}, "IDENTITY_MISMATCH", "chat instead of other"),
        ([], {"model_path": "/x.gguf"}, "IDENTITY_MISMATCH", "/x.gguf"),
        (["--fake-generation", "500"], {}, "GENERATION_FAILED", "told to fail"),
    ],
)
def test_a_server_that_is_not_as_planned_is_not_green(
    paths: Paths, flags: list[str], expect: dict[str, Any], code: str, words: str
) -> None:
    result, _ = run(paths, server_change(launch(*flags, **expect)))
    failure = only_failure(result)
    assert failure.code == code
    assert words in failure.message
    assert result.exit_code == ExitCode.UNHEALTHY
    assert not recorded(paths).proved


def test_health_that_lies_is_found_out_by_the_generation(paths: Paths) -> None:
    result, _ = run(paths, server_change(launch("--fake-hang-generation", timeout_s=1)))
    failure = only_failure(result)
    assert failure.code == "START_TIMEOUT"
    assert "does not answer its first request" in failure.message


def test_an_embedding_server_is_proved_by_an_embedding(paths: Paths) -> None:
    result, _ = run(paths, server_change(launch("--embeddings", chat=False)))
    assert result.exit_code == ExitCode.OK


def test_the_api_key_is_used_and_shown_nowhere(paths: Paths) -> None:
    spec = launch(secret=SecretEnv("LLAMA_API_KEY", from_env="CHAT_KEY"))
    env = {**os.environ, "CHAT_KEY": "planted-value-0123"}
    result, recorder = run(paths, server_change(spec), env=env)
    assert result.exit_code == ExitCode.OK
    for file in (p for p in paths.state.rglob("*") if p.is_file()):
        assert b"planted-value" not in file.read_bytes(), file
    assert "planted-value" not in repr(recorder.steps) + repr(result)


def test_a_missing_secret_stops_before_the_running_server_is_stopped(paths: Paths) -> None:
    spec = launch()
    run(paths, server_change(spec))
    before = recorded(paths)
    wanting = replace(spec, secret_env=(SecretEnv("LLAMA_API_KEY", from_env="NOT_SET_ANYWHERE"),))
    result, _ = run(paths, server_change(wanting, "restart"))
    assert result.exit_code == ExitCode.PARTIAL
    assert "NOT_SET_ANYWHERE is not set" in only_failure(result).message
    assert process_state(before).state == "running"


def test_a_restart_changes_this_process_and_no_other(paths: Paths) -> None:
    one, two = launch(name="one"), launch(name="two")
    run(paths, server_change(one), server_change(two))
    old = {name: recorded(paths, name) for name in ("one", "two")}
    changed = replace(one, argv=(*one.argv, "--threads", "2"))
    result, _ = run(paths, server_change(changed, "restart"))
    assert result.exit_code == ExitCode.OK
    assert process_state(old["one"]).state == "gone"
    assert recorded(paths, "two").pid == old["two"].pid
    assert process_state(recorded(paths, "one")).state == process_state(old["two"]).state == "running"


def test_a_live_change_rewrites_the_record_only(paths: Paths) -> None:
    spec = launch()
    run(paths, server_change(spec))
    before = recorded(paths)
    result, _ = run(paths, server_change(replace(spec, start_timeout_s=99), "update"))
    after = recorded(paths)
    assert result.exit_code == ExitCode.OK
    assert json.loads(bytes(after.launch))["startTimeoutS"] == 99
    assert (after.pid, after.token, after.proved) == (before.pid, before.token, True)


def test_a_delete_stops_and_leaves_only_the_log(paths: Paths) -> None:
    spec = launch("--slot-save-path", str(paths.slots("chat")))
    run(paths, server_change(spec))
    before = recorded(paths)
    assert paths.slots("chat").is_dir(), "the engine wants the folder to exist"
    paths.config("chat").parent.mkdir()
    paths.config("chat").write_text("{}")
    result, _ = run(paths, Change(address="server.chat", action="delete", reason="not_in_config"))
    assert result.exit_code == ExitCode.OK
    assert process_state(before).state == "gone"
    assert read_record(paths, "chat") is None
    assert not paths.config("chat").exists()
    assert not paths.slots("chat").exists()
    assert paths.log("chat").exists()


def test_a_failed_payload_stops_new_work(paths: Paths, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model at all")
    payload = Change(
        address="payload.llama-cpp.tiny", action="link", reason="model_missing", files=(link(path_file(bad)),)
    )
    server = server_change(launch(), depends_on=("payload.llama-cpp.tiny",))
    result, recorder = run(paths, payload, server)
    assert only_failure(result).code == "NOT_GGUF"
    assert (result.done, result.skipped, result.exit_code) == ((), ("server.chat",), ExitCode.PARTIAL)
    assert ("server.chat", "skipped", "payload.llama-cpp.tiny failed") in recorder.steps
    assert read_record(paths, "chat") is None
    state = read_state(paths)
    assert state is not None
    assert (state.serial, state.last_applied) == (0, "")


def test_payload_then_server_with_progress(paths: Paths) -> None:
    data = model_bytes()
    with hubserver.running_hub() as hub:
        hub.gated.add("lab/tiny")
        hub.add("lab/tiny", "a.gguf", data)
        payload = Change(
            address="payload.llama-cpp.tiny", action="fetch", reason="model_missing", payload=META,
            files=(download(hub_file("a.gguf", data)),),
        )  # fmt: skip
        result, recorder = run(paths, payload, server_change(launch()), hub=Hub(hub.endpoint, Secret(hub.token)))
        assert hub.token not in paths.events.read_text()
    assert result.done == ("payload.llama-cpp.tiny", "server.chat")
    assert installed(paths)[0].manifest.catalog_version == "1.0.0"
    assert recorder.bytes[-1] == ("payload.llama-cpp.tiny", len(data), len(data))


def fetched_engine(paths: Paths, replan: Callable[[], Plan] | None) -> tuple[ApplyResult, str]:
    """Apply a plan that fetches an engine for a server; returns the result and the archive's digest."""
    data = tar_bytes(("llama-server", PROGRAM))
    with hubserver.running_hub() as hub:
        hub.redirect = False
        digest = hub.add("lab/engine", "b.tar.gz", data)
        archive = Archive(url=f"{hub.endpoint}/lab/engine/resolve/main/b.tar.gz", sha256=digest)
        engine = Change(address="engine.cuda", action="fetch", reason="engine_missing")
        server = Change(address="server.chat", action="create", reason="engine_missing", depends_on=("engine.cuda",))
        context, _ = make_context(paths, archives={"cuda": archive})
        return apply_plan(make_plan(engine, server), context, replan=replan), digest


def test_a_server_whose_engine_is_fetched_is_planned_once_it_is_there(paths: Paths) -> None:
    def replan() -> Plan:
        assert list((paths.store / "engines" / "cuda").glob("*/llama-server")), "the engine is there by now"
        return make_plan(server_change(launch()))

    result, digest = fetched_engine(paths, replan)
    assert (result.done, result.skipped, result.replan) == (("engine.cuda", "server.chat"), (), ())
    assert recorded(paths).proved
    assert (paths.engine_dir("cuda", digest) / "llama-server").exists()


def test_a_restart_that_is_not_needed_any_more_is_told(paths: Paths) -> None:
    data = model_bytes()
    source = paths.store.parent / "a.gguf"
    source.write_bytes(data)
    payload = Change(
        address="payload.llama-cpp.tiny", action="link", reason="payload_damaged", payload=META,
        files=(link(path_file(source, data)),),
    )  # fmt: skip
    context, recorder = make_context(paths)
    plan = make_plan(payload, server_change(launch(), "restart"))
    result = apply_plan(plan, context, replan=lambda: make_plan(Change("server.chat", "noop", "unchanged")))
    assert result.done == ("payload.llama-cpp.tiny",)
    assert "needs no restart" in recorder.notes()


def test_without_a_new_plan_such_a_server_is_skipped_and_named(paths: Paths) -> None:
    result, _ = fetched_engine(paths, None)
    assert (result.done, result.skipped, result.replan) == (("engine.cuda",), ("server.chat",), ("server.chat",))


def test_a_server_that_the_new_plan_blocks_has_failed(paths: Paths) -> None:
    blocked = Change(address="server.chat", action="blocked", reason="unknown_flag", cause="no flag --x", cure="y")
    result, _ = fetched_engine(paths, lambda: make_plan(blocked, applyable=False))
    assert (result.done, only_failure(result).code, result.exit_code) == (("engine.cuda",), "unknown_flag", 4)


def test_what_is_kept_or_the_same_is_left_alone(paths: Paths) -> None:
    changes = [Change(address=f"server.{a}", action=a, reason="x") for a in ("keep", "noop")]
    result, recorder = run(paths, *changes)
    assert (result.done, result.exit_code, recorder.steps) == ((), ExitCode.OK, [])


def test_a_plan_that_cannot_be_applied_is_refused(paths: Paths) -> None:
    blocked = Change(address="server.chat", action="blocked", reason="x", cause="it does not fit", cure="use less")
    context, _ = make_context(paths)
    with pytest.raises(RefusedError, match=r"server\.chat: it does not fit") as caught:
        apply_plan(make_plan(blocked, applyable=False), context)
    assert caught.value.cure == "use less"


def test_a_new_plan_that_cannot_be_made_is_a_failure_of_the_run(paths: Paths) -> None:
    def replan() -> Plan:
        raise EngineError("the host cannot be observed", cure="look at it")

    result, _ = fetched_engine(paths, replan)
    assert (only_failure(result).address, result.skipped, result.exit_code) == ("plan", ("server.chat",), 4)
    assert [e.type for e in read_events(paths)][-1] == "run_finished"


@pytest.mark.parametrize(
    ("failed", "skipped", "code"),
    [
        ((), (), 0),
        ((True,), (), 3),
        ((True, True), (), 3),
        ((True,), ("x",), 4),
        ((False,), (), 4),
        ((True, False), (), 4),
    ],
)
def test_the_exit_code_follows_the_result(failed: tuple[bool, ...], skipped: tuple[str, ...], code: int) -> None:
    failures = tuple(StepFailure(f"server.{i}", "create", "X", "x", proof=proof) for i, proof in enumerate(failed))
    assert ApplyResult(failed=failures, skipped=skipped).exit_code == code
    assert ApplyResult(failed=failures, skipped=skipped, stopped=143).exit_code == 143


APPLY_CHILD = """
import sys
from pathlib import Path
from gezelctl.execute.apply import apply_plan
from tests.executing import launch, make_context, make_paths, make_plan, server_change
paths = make_paths(Path(sys.argv[1]))
specs = [launch("--fake-delay", sys.argv[2], name=n, port=int(p)) for n, p in zip(("one", "two"), sys.argv[3:])]
context, recorder = make_context(paths)
result = apply_plan(make_plan(*map(server_change, specs)), context)
print(result.done, [f.code for f in result.failed], result.skipped)
sys.exit(result.exit_code)
"""


def apply_child(tmp_path: Path, delay: str, *specs: LaunchSpec) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", APPLY_CHILD, str(tmp_path), delay, *(str(s.port) for s in specs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def wait_for(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(paths: Paths, name: str) -> bool:
    record = read_record(paths, name)
    return record is not None and record.pid != 0


def test_the_first_sigint_finishes_the_step_and_leaves(paths: Paths, tmp_path: Path) -> None:
    specs = [launch(name=n) for n in ("one", "two")]
    with apply_child(tmp_path, "1.5", *specs) as child:
        wait_for(lambda: running(paths, "one"))
        child.send_signal(signal.SIGINT)
        out = child.communicate(timeout=30)[0]
        assert (child.returncode, out) == (130, "('server.one',) [] ('server.two',)\n")
    assert recorded(paths, "one").proved


def test_the_second_signal_stops_now_and_the_server_is_still_known(paths: Paths, tmp_path: Path) -> None:
    specs = [launch(name=n) for n in ("one", "two")]
    with apply_child(tmp_path, "30", *specs) as child:
        wait_for(lambda: running(paths, "one"))
        child.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        out = child.communicate(timeout=10)[0]
        assert (child.returncode, out) == (143, "() ['INTERRUPTED'] ('server.two',)\n")
    assert process_state(recorded(paths, "one")).state == "running"
    assert not recorded(paths, "one").proved


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.15, 0.4])
def test_killed_while_starting_the_next_apply_converges(paths: Paths, tmp_path: Path, after_s: float) -> None:
    """Whatever the first run left, the second ends with one proved process and a free lock."""
    spec = launch(name="one")
    with apply_child(tmp_path, "0.3", spec) as child:
        wait_for(paths.events.exists)
        time.sleep(after_s)
        child.kill()
        child.communicate()
    left = read_record(paths, "one")
    result, _ = run(paths, server_change(spec, "restart" if left else "create"))
    assert result.exit_code == ExitCode.OK
    now = recorded(paths, "one")
    assert now.proved
    if left is not None:
        assert left.token != now.token
        assert process_state(left).state == "gone"


def test_a_long_log_keeps_its_head_and_tail(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(
        b"old\n" + b"first\r\n" + b"middle line\n" * 100_000 + b"progress 1\rprogress 2\rlast\n" + b"\0" + b"x" * 9000
    )
    lines = read_log(log, 4)
    assert (lines[0], lines[-4:-1]) == ("first", ["progress 1", "progress 2", "last"])
    assert len(lines) < 50_000
    assert len(lines[-1]) == 2000
    assert read_log(tmp_path / "none", 0) == []


@pytest.mark.engine("llama-server", "smollm2")
def test_a_real_llama_server_is_installed_started_proved_and_stopped(
    paths: Paths, llama_server: Path, smollm2: Path
) -> None:
    port = launch().port
    model = paths.payload_dir("llama-cpp", "smollm2") / smollm2.name
    payload = Change(
        address="payload.llama-cpp.smollm2", action="link", reason="model_missing",
        payload=PayloadMeta("llama-cpp", "smollm2"), files=(link(path_file(smollm2)),),
    )  # fmt: skip
    flags = ["--host", "127.0.0.1", "--port", str(port), "--alias", "tiny", "--ctx-size", "1024", "--parallel", "2"]
    spec = LaunchSpec(
        server="tiny",
        engine="llama-cpp",
        backend="cpu",
        program=str(llama_server),
        argv=("--model", str(model), *flags),
        host="127.0.0.1",
        port=port,
        secret_env=(SecretEnv("LLAMA_API_KEY", from_env="TINY_KEY"),),
        expect=Expectation("tiny", str(model), context_tokens=512, slots=2, speculation=False),
    )
    result, recorder = run(paths, payload, server_change(spec), env={**os.environ, "TINY_KEY": "a-key-for-tiny"})
    assert result.failed == ()
    manifest = installed(paths)[0].manifest
    assert manifest.gguf is not None
    assert manifest.gguf.block_count == 30
    record = recorded(paths, "tiny")
    assert "serving on" in recorder.steps[-1][2]
    wrong, _ = run(
        paths,
        server_change(replace(spec, argv=(*spec.argv, "--no-such-flag")), "restart"),
        env={**os.environ, "TINY_KEY": "k"},
    )
    assert "--no-such-flag" in only_failure(wrong).message
    assert process_state(record).state == "gone"


@pytest.mark.engine("mlx")
def test_a_real_mlx_server_is_proved_and_a_broken_model_is_named(paths: Paths, mlx_model: Path, tmp_path: Path) -> None:
    """mlx_lm.server itself, whose /health is up while its model cannot be loaded."""
    port = launch().port

    def serve(model: Path) -> LaunchSpec:
        flags = ("--model", str(model), "--host", "127.0.0.1", "--port", str(port))
        return LaunchSpec(
            server="mlx", engine="mlx", backend="mlx", program=sys.executable, argv=("-m", "mlx_lm.server", *flags),
            host="127.0.0.1", port=port, expect=Expectation(), start_timeout_s=60,
        )  # fmt: skip

    result, _ = run(paths, server_change(serve(mlx_model)))
    assert result.failed == ()
    assert recorded(paths, "mlx").proved
    broken = tmp_path / "broken"
    shutil.copytree(mlx_model, broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "model_type": "no-such-type"}))
    result, _ = run(paths, server_change(serve(broken), "restart"))
    failure = only_failure(result)
    assert "no-such-type" in failure.message
    assert failure.code != "GENERATION_FAILED"
    assert result.exit_code == ExitCode.UNHEALTHY

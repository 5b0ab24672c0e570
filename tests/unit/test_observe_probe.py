"""Engine builds: real ones, and the ways in which a program is none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gezelctl.config.model import Archive, Backend
from gezelctl.observe.probe import probe_backend
from gezelctl.observe.run import ask
from gezelctl.observe.types import EngineProbe
from gezelctl.store.layout import Paths

HELP = "-m,    --model FNAME    model path to load\n--list-devices          print devices\n"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(store=tmp_path / "store", state=tmp_path / "state", cache=tmp_path / "cache")


def script(path: Path, body: str, *, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return path


def engine(path: Path, *, extra: str = "") -> Path:
    """A program that answers as llama-server does, and counts how often it is asked for --help."""
    asked = path.with_name("asked")
    body = f"""case "$1" in
--help) echo x >> {asked}; cat <<'EOF'
{HELP}EOF
;;
--version) echo 'version: 77 (abc)' >&2 ;;
--list-devices) {extra or "echo 'Available devices:'"} ;;
esac"""
    return script(path, body)


def llama(program: Path, **more: object) -> Backend:
    return Backend(engine="llama-cpp", binary=str(program), **more)  # type: ignore[arg-type] # options of the test


def probe(program: Path, paths: Paths, **more: object) -> EngineProbe:
    return probe_backend("cpu", llama(program, **more), paths, timeout_s=5)


@pytest.mark.engine("llama-server")
def test_a_real_build(llama_server: Path, paths: Paths) -> None:
    found = probe(llama_server, paths)
    assert (found.error, found.backend, found.program) == ("", "cpu", str(llama_server))
    assert found.version.startswith("0.6.0-dev (build 0")
    assert len(found.flags) == 251
    assert found.devices == ()
    assert len(found.digest) == 16


@pytest.mark.engine("llama-server-old")
def test_an_older_build_lists_its_own_flags(old_llama_server: Path, paths: Paths) -> None:
    found = probe(old_llama_server, paths, accelerator="vulkan")
    assert (found.error, found.build) == ("", 1)
    assert any("--mlock" in flag.names for flag in found.flags)


@pytest.mark.engine("llama-server")
def test_the_digest_moves_with_the_bytes(llama_server: Path, paths: Paths, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "bin"
    shutil.copytree(llama_server.parent, copy, symlinks=True)
    program = copy / "llama-server"
    assert probe(program, paths).digest == probe(llama_server, paths).digest
    library = next(path for path in copy.glob("libggml-cpu.so.0.*"))
    os.utime(library, (1, 1))
    assert probe(program, paths).digest != probe(llama_server, paths).digest


@pytest.mark.engine("embedded")
def test_the_embedded_engine(paths: Paths) -> None:
    found = probe_backend("cpu", Backend(engine="llama-cpp", embedded=True), paths)
    assert (found.error, found.program, found.prefix) == ("", sys.executable, ("-m", "gezelctl.embedded"))
    assert any("--model" in flag.names for flag in found.flags)
    assert found.version.startswith("xllamacpp ")


@pytest.mark.engine("mlx")
def test_mlx_is_asked_once(paths: Paths) -> None:
    backend = Backend(engine="mlx", python=sys.executable)
    found = probe_backend("mac", backend, paths)
    assert (found.error, found.program) == ("", sys.executable)
    assert found.version.startswith("mlx-lm ")
    assert Path(found.prefix[0]).is_file()
    before = time.perf_counter()
    assert probe_backend("mac", backend, paths) == found
    assert time.perf_counter() - before < 0.1


def test_mlx_without_its_package_names_the_cure(paths: Paths, tmp_path: Path) -> None:
    python = script(tmp_path / "python", f'exec {sys.executable} -S -I "$@"')
    found = probe_backend("mac", Backend(engine="mlx", python=str(python)), paths)
    assert found.error == "ENGINE_MISSING"
    assert "ModuleNotFoundError: No module named 'mlx'" in found.message
    assert f"{python} -m pip install mlx-lm" in found.message


def test_a_build_is_asked_once_until_a_file_of_it_changes(paths: Paths, tmp_path: Path) -> None:
    program = engine(tmp_path / "bin" / "llama-server")
    asked = program.with_name("asked")
    first = probe(program, paths)
    assert probe(program, paths) == first
    assert asked.read_text() == "x\n"
    os.utime(program, (1, 1))
    assert probe(program, paths).digest != first.digest
    assert asked.read_text() == "x\nx\n"
    (program.parent / "libggml-new.so").write_bytes(b"library")
    probe(program, paths)
    assert asked.read_text() == "x\nx\nx\n"


def test_a_damaged_cache_is_made_anew(paths: Paths, tmp_path: Path) -> None:
    program = engine(tmp_path / "llama-server")
    first = probe(program, paths)
    (entry,) = (paths.cache / "probes").iterdir()
    entry.write_text('{"tool": 1')
    assert probe(program, paths) == first


def test_a_cache_that_cannot_be_written_only_costs_time(paths: Paths, tmp_path: Path) -> None:
    paths.cache.write_text("a file stands here")
    assert probe(engine(tmp_path / "llama-server"), paths).build == 77


def test_free_memory_never_comes_from_the_cache(paths: Paths, tmp_path: Path) -> None:
    listing = tmp_path / "devices"
    program = engine(tmp_path / "llama-server", extra=f"cat {listing}")
    for free in (23000, 12000):
        listing.write_text(f"Available devices:\n  CUDA0: Card (24000 MiB, {free} MiB free)\n")
        (device,) = probe(program, paths, accelerator="cuda").devices
        assert device.free_bytes == free * 1024 * 1024
    assert probe(program, paths, accelerator="cpu").devices == ()


def test_the_engine_sees_the_backends_variables_and_no_options_of_ours(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    program = engine(tmp_path / "llama-server")
    program.write_text(program.read_text().replace("#!/bin/sh", f"#!/bin/sh\nenv > {seen}"))
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "broken")
    monkeypatch.setenv("LLAMA_API_KEY", "planted-secret")
    probe(program, paths, env={"CUDA_VISIBLE_DEVICES": "1"})
    text = seen.read_text()
    assert "CUDA_VISIBLE_DEVICES=1" in text
    assert "LLAMA_ARG_" not in text
    assert "planted-secret" not in text


def test_missing(paths: Paths, tmp_path: Path) -> None:
    found = probe(tmp_path / "nowhere" / "llama-server", paths)
    assert found.error == "ENGINE_MISSING"
    what, cure = found.message.split("\n")
    assert what == f"{tmp_path}/nowhere/llama-server does not exist"
    assert cure.startswith("install the build there")


def test_a_link_to_nothing_and_a_script_without_its_interpreter(paths: Paths, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    headless = tmp_path / "headless"
    headless.write_text("#!/no/such/interpreter\n")
    headless.chmod(0o755)
    for program in (link, headless):
        found = probe(program, paths)
        assert found.error == "ENGINE_MISSING"
        assert "points to nothing, or its interpreter is missing" in found.message


def test_a_folder(paths: Paths, tmp_path: Path) -> None:
    found = probe(tmp_path, paths)
    assert found.error == "ENGINE_MISSING"
    assert "is not a file" in found.message


def test_not_executable(paths: Paths, tmp_path: Path) -> None:
    program = script(tmp_path / "llama-server", "exit 0", mode=0o644)
    found = probe(program, paths)
    assert found.error == "ENGINE_NOT_EXECUTABLE"
    assert f"chmod +x {program}" in found.message


def test_a_file_that_is_no_program(paths: Paths, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_bytes(b"\x7fELF" + bytes(60))
    program.chmod(0o755)
    found = probe(program, paths)
    assert found.error == "ENGINE_NOT_EXECUTABLE"
    assert "is not a program for this machine (Exec format error)" in found.message


@pytest.mark.parametrize(
    ("body", "ended", "cure"),
    [
        (
            "echo start; echo './x: error while loading shared libraries: libcuda.so.1: cannot open' >&2; exit 127",
            "exit code 127: ./x: error while loading shared libraries: libcuda.so.1: cannot open",
            "install the library that it names",
        ),
        ("kill -ILL $$", "signal SIGILL", "name a build for this processor"),
        ("exit 132", "signal SIGILL", "name a build for this processor"),
        ("echo; echo 'first line'; echo 'second'; exit 3", "exit code 3: first line", "run it by hand"),
        (
            "printf 'bad \\033[31m line\\n'; exit 1",
            "exit code 1: bad \N{REPLACEMENT CHARACTER}[31m line",
            "run it by hand",
        ),
    ],
)
def test_an_engine_that_dies(body: str, ended: str, cure: str, paths: Paths, tmp_path: Path) -> None:
    found = probe(script(tmp_path / "llama-server", body), paths)
    assert found.error == "ENGINE_DIES"
    what, advice = found.message.split("\n")
    assert what.endswith(f"--help ended with {ended}")
    assert advice.startswith(cure)


def test_a_failure_is_not_remembered(paths: Paths, tmp_path: Path) -> None:
    program = engine(tmp_path / "llama-server")
    blocker = tmp_path / "blocker"
    blocker.touch()
    program.write_text(program.read_text().replace("#!/bin/sh", f"#!/bin/sh\ntest -e {blocker} && exit 9"))
    assert probe(program, paths).error == "ENGINE_DIES"
    blocker.unlink()
    assert probe(program, paths).error == ""


def test_one_that_hangs_is_ended_with_what_it_started(paths: Paths, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = script(tmp_path / "llama-server", f"sleep 300 & echo $! > {pids}; echo $$ >> {pids}; wait")
    started = time.monotonic()
    found = probe_backend("cpu", llama(program), paths, timeout_s=0.7)
    assert time.monotonic() - started < 3
    assert found.error == "ENGINE_HANGS"
    assert "did not end within 0.7 s" in found.message
    for pid in pids.read_text().split():
        assert not _alive(int(pid))


INTERRUPTED = """
import sys
from gezelctl.observe.run import ask
from gezelctl.observe.threads import each
try:
    each(sys.argv[1:], lambda program: ask((program,), {}, 60))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_an_interrupt_leaves_nothing_that_worker_threads_asked(tmp_path: Path) -> None:
    marks = [tmp_path / f"pid-{number}" for number in range(3)]
    programs = [str(script(tmp_path / f"p{n}", f"echo $$ > {mark}; exec sleep 300")) for n, mark in enumerate(marks)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    asking = subprocess.Popen([sys.executable, "-c", INTERRUPTED, *programs], stderr=subprocess.PIPE, env=env)
    deadline = time.monotonic() + 10
    while not all(mark.exists() and mark.read_text() for mark in marks):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    asking.send_signal(signal.SIGINT)
    _, errors = asking.communicate(timeout=10)
    assert (asking.returncode, errors) == (130, b"")
    assert [mark for mark in marks if _alive(int(mark.read_text()))] == []


def test_an_interrupt_waits_until_a_child_is_known(tmp_path: Path) -> None:
    """The signal comes while Popen forks: as soon as it may, the child is ended."""
    mark = tmp_path / "pid"
    program = script(tmp_path / "p", f"echo $$ > {mark}; kill -INT $PPID; exec sleep 300")
    for _ in range(5):
        mark.unlink(missing_ok=True)
        with pytest.raises(KeyboardInterrupt):
            ask((str(program),), {}, 30)
        assert not mark.exists() or not _alive(int(mark.read_text()))


def _alive(pid: int) -> bool:
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True


def test_one_that_prints_without_end(paths: Paths, tmp_path: Path) -> None:
    found = probe_backend("cpu", llama(script(tmp_path / "llama-server", "exec yes nonsense")), paths, timeout_s=20)
    assert found.error == "ENGINE_DIES"
    assert "nonsense" in found.message


@pytest.mark.parametrize("body", ["true", "echo hello", "head -c 2000 /dev/urandom"])
def test_one_that_is_something_else(body: str, paths: Paths, tmp_path: Path) -> None:
    found = probe(script(tmp_path / "llama-server", body), paths)
    assert found.error == "ENGINE_UNKNOWN"
    assert "lists no --model option" in found.message


def test_an_archive_is_pending_until_it_is_unpacked(paths: Paths) -> None:
    archive = Archive(url="https://example.org/llama.tar.gz", sha256="ab" * 32)
    backend = Backend(engine="llama-cpp", archive=archive)
    assert probe_backend("arc", backend, paths) == EngineProbe(
        backend="arc", engine="llama-cpp", program="", pending=True
    )
    folder = paths.engine_dir("arc", archive.sha256)
    folder.mkdir(parents=True)
    assert probe_backend("arc", backend, paths).error == "ENGINE_MISSING"
    program = engine(folder / "build" / "bin" / "llama-server")
    found = probe_backend("arc", backend, paths)
    assert (found.error, found.program, found.build) == ("", str(program), 77)


def test_a_warm_probe_starts_no_process(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = engine(tmp_path / "llama-server")
    first = probe(program, paths)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert probe(program, paths) == first

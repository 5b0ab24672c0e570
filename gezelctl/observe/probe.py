"""What one engine build is and can do: version, flags, devices. Asked once per build, then remembered.

An answer is kept as `<cache>/probes/<name>.json` and holds as long as every file that it depends on keeps its size and
mtime: the program and its own libraries beside it (llama-server is a small launcher, the engine is in libllama and
libggml), or the installed distribution for a Python engine. Failures are never kept: their cause may lie elsewhere.

The digest names the bytes without reading them: 16 hex digits of sha256 over the program's base name, name, size and
mtime (whole seconds, because archives and copies keep no more) of those files, and the version text. A build that is
moved, or copied with its times, keeps its digest; one that is rebuilt gets another. For a Python engine it is taken
over the hashes in the distribution's RECORD instead.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

import msgspec

from gezelctl import __version__
from gezelctl.config.model import Backend
from gezelctl.errors import EngineError
from gezelctl.observe.cachefile import Stamp, read_cache, stamp, write_cache
from gezelctl.observe.run import ask, clean_environment, died, first_specific_line, missing
from gezelctl.observe.types import Device, EngineProbe, Flag
from gezelctl.store.layout import Paths, find_program

TIMEOUT_S = 30.0
"""A build with CUDA libraries on a cold network disk takes over ten seconds to say its version."""
_MLX_TIMEOUT_S = 120.0
_LIBRARY = re.compile(r"(lib)?(ggml|llama|mtmd)[\w.+-]*\.(so|dylib)(\.\d+)*$")
_PACKAGE = Path(__file__).resolve().parents[1]
_MLX_SCRIPT = """
import json, platform
from importlib import metadata
import mlx.core as mx, mlx_lm.server
def record(name):
    return str(metadata.distribution(name).locate_file(metadata.distribution(name)._path)) + "/RECORD"
info = getattr(mx, "device_info", None) or mx.metal.device_info
device = info() if mx.metal.is_available() else {}
print(json.dumps({
    "versions": {n: metadata.version(n) for n in ("mlx-lm", "mlx")} | {"Python": platform.python_version()},
    "records": [record(n) for n in ("mlx-lm", "mlx")],
    "name": str(device.get("device_name", "")),
    "bytes": int(device.get("max_recommended_working_set_size", 0)),
}))
"""


class _Launcher(NamedTuple):
    """How a build is started, and what its answers depend on; no files = the answer itself says (MLX)."""

    program: str
    prefix: tuple[str, ...]
    files: tuple[str, ...]
    record: str = ""


class _Known(msgspec.Struct, frozen=True):
    tool: str
    files: tuple[Stamp, ...]
    probe: EngineProbe


class _MlxAnswer(msgspec.Struct):
    """Versions by distribution, their RECORD files, and Metal's device with its recommended working set in bytes."""

    versions: dict[str, str]
    records: tuple[str, ...]
    name: str
    bytes: int


def probe_backend(name: str, backend: Backend, paths: Paths, *, timeout_s: float = TIMEOUT_S) -> EngineProbe:
    """The build behind `backend`; never raises for a build that cannot be used, but says so in `error` and `message`.

    `message` is what is wrong, a line break, and the cure. `devices` are asked anew each time, for their free memory,
    unless the accelerator is the CPU.
    """
    try:
        launcher = _mlx(backend) if backend.engine == "mlx" else _llama_cpp(name, backend, paths)
        if launcher is None:
            return EngineProbe(backend=name, engine=backend.engine, program="", pending=True)
        env = clean_environment(backend.env)
        probe = _remembered(launcher, backend, env, paths.cache, timeout_s)
        devices = probe.devices or _devices(launcher, backend, probe, env, timeout_s)
        return msgspec.structs.replace(probe, backend=name, devices=devices)
    except EngineError as error:
        program = (
            backend.binary or backend.python or (sys.executable if backend.embedded or backend.engine == "mlx" else "")
        )
        return EngineProbe(
            backend=name,
            engine=backend.engine,
            program=program,
            error=error.code,
            message=f"{error.message}\n{error.cure}",
        )


def _llama_cpp(name: str, backend: Backend, paths: Paths) -> _Launcher | None:
    """None for an archive that is not unpacked yet. Raises EngineError."""
    if backend.embedded:
        return _embedded()
    if backend.archive:
        folder = paths.engine_dir(name, backend.archive.sha256)
        if not folder.is_dir():
            return None
        found = find_program(folder, backend.archive.binary)
        if found is None:
            cure = "set the backend's archive.binary to the program's path inside the archive"
            message = f"{folder} holds no program {backend.archive.binary}"
            raise EngineError(message, cure=cure, code="ENGINE_MISSING")
        return _binary(str(found))
    if backend.binary is None:
        raise EngineError("the backend names no program", cure="set binary, archive or embedded", code="ENGINE_MISSING")
    return _binary(backend.binary)


def _binary(program: str) -> _Launcher:
    path = Path(program)
    if not path.exists():
        raise missing(program)
    if not path.is_file():
        raise EngineError(
            f"{program} is not a file", cure="name the llama-server program itself", code="ENGINE_MISSING"
        )
    if not os.access(path, os.X_OK):
        cure = f"run `chmod +x {program}`"
        raise EngineError(f"{program} is not executable", cure=cure, code="ENGINE_NOT_EXECUTABLE")
    return _Launcher(program, (), (str(path), *_libraries(path.resolve())))


def _libraries(program: Path) -> Iterable[str]:
    """llama.cpp's own libraries beside the program and in ../lib, the two places its builds are installed to."""
    for folder in (program.parent, program.parent.parent / "lib"):
        try:
            with os.scandir(folder) as entries:
                found = [e.path for e in entries if _LIBRARY.fullmatch(e.name) and not e.is_symlink()]
        except OSError:
            continue
        yield from sorted(found)


def _embedded() -> _Launcher:
    record = _distribution_record("xllamacpp")
    if not record:
        cure = "run `pip install 'gezelctl[embedded]'`"
        raise EngineError("the embedded engine (xllamacpp) is not installed", cure=cure, code="ENGINE_MISSING")
    own = sorted(str(path) for path in (*_PACKAGE.glob("embedded.py"), *_PACKAGE.glob("embedded/*.py")))
    return _Launcher(sys.executable, ("-m", "gezelctl.embedded"), (record, *own), record)


def _distribution_record(package: str) -> str:
    """The RECORD of the distribution of `package`; found without importlib.metadata, whose import costs more."""
    spec = PathFinder.find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    site = Path(spec.origin).parent.parent
    return next((str(path / "RECORD") for path in site.glob(f"{package}-*.dist-info")), spec.origin)


def _mlx(backend: Backend) -> _Launcher:
    program = backend.python or sys.executable
    if not Path(program).exists():
        raise missing(program)
    return _Launcher(program, (str(_PACKAGE / "mlx_sidecar.py"),), ())


def _remembered(
    launcher: _Launcher, backend: Backend, env: Mapping[str, str], cache: Path, timeout_s: float
) -> EngineProbe:
    file = cache / "probes" / f"{_cache_name(launcher, backend)}.json"
    known = read_cache(file, _Known)
    if known is not None and known.tool == __version__:
        files = launcher.files or tuple(path for path, _, _ in known.files)
        if known.files == tuple(map(stamp, files)):
            return known.probe
    if backend.engine == "mlx":
        files, probe = _ask_mlx(launcher, env)
    else:
        files, probe = launcher.files, _ask_llama_cpp(launcher, env, timeout_s)
    write_cache(file, _Known(__version__, tuple(map(stamp, files)), probe))
    if probe.flags:
        write_cache(_flags_file(cache, probe.digest), probe.flags)
    return probe


def former_flags(digest: str, cache: Path) -> tuple[Flag, ...]:
    """The flags of a build that was probed once, also when it is gone by now; () when that is not known any more."""
    return read_cache(_flags_file(cache, digest), tuple[Flag, ...]) or ()


def _flags_file(cache: Path, digest: str) -> Path:
    return cache / "flags" / f"{digest}.json"


def _cache_name(launcher: _Launcher, backend: Backend) -> str:
    what = (backend.engine, launcher.program, launcher.prefix, sorted(backend.env.items()))
    return hashlib.blake2b(msgspec.json.encode(what), digest_size=16).hexdigest()


def _ask_llama_cpp(launcher: _Launcher, env: Mapping[str, str], timeout_s: float) -> EngineProbe:
    from gezelctl.observe.helptext import parse_help, parse_version

    command = (launcher.program, *launcher.prefix)
    answer = ask((*command, "--help"), env, timeout_s)
    if answer.status != 0:
        raise died((*command, "--help"), answer)
    options = parse_help(answer.stdout)
    if not any("--model" in flag.names for flag in options.flags):
        line = first_specific_line(answer)
        message = f"{launcher.program} --help lists no --model option" + (f", but says: {line}" if line else "")
        raise EngineError(message, cure="name a llama-server program", code="ENGINE_UNKNOWN")
    version = parse_version(ask((*command, "--version"), env, timeout_s).text)
    return EngineProbe(
        backend="",
        engine="llama-cpp",
        program=launcher.program,
        prefix=launcher.prefix,
        digest=_digest(launcher, version.text),
        version=version.text,
        build=version.build,
        flags=options.flags,
        removed=options.removed,
    )


def _ask_mlx(launcher: _Launcher, env: Mapping[str, str]) -> tuple[tuple[str, ...], EngineProbe]:
    command = (launcher.program, "-c", _MLX_SCRIPT)
    answer = ask(command, env, _MLX_TIMEOUT_S)
    try:
        found = msgspec.json.decode(answer.stdout.strip().rpartition("\n")[2], type=_MlxAnswer)
    except msgspec.DecodeError as error:
        raise _no_mlx(launcher.program, answer.stderr) from error
    version = ", ".join(f"{name} {number}" for name, number in found.versions.items())
    # Metal tells no free memory; its recommended working set is the budget (max_recommended_working_set_size).
    metal = Device(id="metal", name=found.name, total_bytes=found.bytes, free_bytes=found.bytes)
    probe = EngineProbe(
        backend="",
        engine="mlx",
        program=launcher.program,
        prefix=launcher.prefix,
        digest=_short(version, *map(_record_hashes, found.records)),
        version=version,
        devices=(metal,) if found.bytes else (),
    )
    return (launcher.program, *found.records), probe


def _no_mlx(program: str, stderr: str) -> EngineError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    reason = lines[-1][:300] if lines else "it printed nothing"
    return EngineError(
        f"{program} cannot run mlx_lm.server: {reason}",
        cure=f"run `{program} -m pip install mlx-lm` (on Linux also `'mlx[cpu]'`)",
        code="ENGINE_MISSING",
    )


def _devices(
    launcher: _Launcher, backend: Backend, probe: EngineProbe, env: Mapping[str, str], timeout_s: float
) -> tuple[Device, ...]:
    can_list = any("--list-devices" in flag.names for flag in probe.flags)
    if backend.accelerator == "cpu" or not can_list:
        return ()
    from gezelctl.observe.helptext import parse_devices

    command = (launcher.program, *launcher.prefix, "--list-devices")
    answer = ask(command, env, timeout_s)
    if answer.status != 0:
        raise died(command, answer)
    return parse_devices(answer.stdout)


def _digest(launcher: _Launcher, version: str) -> str:
    if launcher.record:
        return _short(version, _record_hashes(launcher.record))
    stamps = (f"{Path(path).name} {size} {mtime // 10**9}" for path, size, mtime in map(stamp, launcher.files))
    return _short(Path(launcher.program).name, *stamps, version)


def _record_hashes(record: str) -> str:
    """The hash lines of a wheel's RECORD, sorted, without the installer's own metadata."""
    try:
        lines = Path(record).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(sorted(line for line in lines if ",sha256=" in line and ".dist-info/" not in line))


def _short(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

"""`python -m gezelctl.embedded ARGV…`: a llama.cpp server with llama-server's command line and exit codes.

0 after SIGTERM or SIGINT, 1 for a bad argument or a failed start. While the model loads no handler is installed, so
a signal ends the process at once, as it ends llama-server; a second signal during shutdown does the same.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from importlib import metadata
from types import ModuleType

from gezelctl.embedded.commandline import INFORMATIVE, ArgumentError, apply, help_text, parse

_STOPS = (signal.SIGTERM, signal.SIGINT)
_DEFAULT_PORT = 8080


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _fail(text: str) -> int:
    sys.stderr.write(text + "\n")
    return 1


def _xllamacpp() -> ModuleType:
    import xllamacpp

    return xllamacpp  # type: ignore[no-any-return] # the package has no types


def _version() -> str:
    version = metadata.version("xllamacpp")
    return f"version: xllamacpp {version}\nbuilt for Python {platform.python_version()} {platform.machine()}\n"


def _devices() -> str:
    """Devices as `llama-server --list-devices` prints them: everything but the CPU."""
    mib = 1 << 20
    rows = [
        f"  {d['name']}: {d['description']} ({d['memory_total'] // mib} MiB, {d['memory_free'] // mib} MiB free)"
        for d in _xllamacpp().get_device_info()
        if not d["type"].name.endswith("_CPU")
    ]
    return "\n".join(["Available devices:", *(rows or ["  (none)"])]) + "\n"


def _wait_for_stop() -> None:
    """Block until SIGTERM or SIGINT, then give both their default action back: a second one ends the process.

    A pipe, because the signal may reach one of the engine's own threads, which would not wake `signal.pause`.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for stop in _STOPS:
        signal.signal(stop, lambda _signum, _frame: None)
    os.read(reader, 1)
    for stop in _STOPS:
        signal.signal(stop, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def _inform(option: str) -> int:
    _say({"--usage": help_text, "--version": _version, "--list-devices": _devices}[option]())
    return 0


def _serve(argv: list[str]) -> int:
    found = parse(argv)
    if not any("--model" in option.names for option, _, _ in found):
        raise ArgumentError("error: --model is required (the embedded server has no router mode)")
    xllamacpp = _xllamacpp()
    params = xllamacpp.CommonParams()
    params.port = _DEFAULT_PORT
    apply(found, xllamacpp, params)
    if key := os.environ.get("LLAMA_API_KEY"):
        params.api_keys = key.split(",")
    for stop in _STOPS:
        signal.signal(stop, signal.SIG_DFL)
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        return _fail(f"gezelctl.embedded: {error}")
    _wait_for_stop()
    del server  # waits for the server's own loop to end
    return 0


def main(argv: list[str]) -> int:
    """Run the server, or print what --help, --version or --list-devices ask for. Returns the exit code."""
    asked = next((INFORMATIVE[word] for word in argv if word in INFORMATIVE), None)
    try:
        return _inform(asked) if asked else _serve(argv)
    except ArgumentError as fault:
        return _fail(str(fault))
    except metadata.PackageNotFoundError:
        return _fail("error: the embedded server is not installed; run: pip install 'gezelctl[embedded]'")
    except ModuleNotFoundError as error:
        return _fail(f"error: {error}; run: pip install 'gezelctl[embedded]'")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

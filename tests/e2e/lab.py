"""A little lab for one test: its own folders and ports, the command line as a real process, and nothing left behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import REPO
from tests.ggufmake import LLAMA, LLAMA_TENSORS, gguf_bytes

MARK = "E2E_LAB"
"""In the environment of everything that a lab starts, so that it is found again whatever its record says."""
CAPTURED = REPO / "tests" / "cases" / "observe"
_HEAD = "apiVersion: gezelctl/v1\nstack: {stack}\nstore: {{path: ./store}}\n"
FAKE_BACKEND = "fake: {engine: llama-cpp, accelerator: cpu, binary: ./fake-llama-server}"
_SETTINGS = re.compile(r"(GEZELCTL|LLAMA|HF|GITHUB|XDG)_|(NO_COLOR|FORCE_COLOR|CI|TERM|COLUMNS|_GEZELCTL_COMPLETE)\Z")


@dataclass(frozen=True)
class Done:
    """What a command line left: its exit code and both streams."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Lab:
    """One stack of one host. Paths in models.yaml are relative to `root`, where every command runs."""

    root: Path
    stack: str = "lab"
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    extra_env: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    # the command line

    @property
    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not _SETTINGS.match(k)}
        own = {"GEZELCTL_STATE_DIR": str(self.root / "state"), "GEZELCTL_CACHE_DIR": str(self.root / "cache")}
        return {**kept, **own, MARK: self.mark, "PYTHONWARNINGS": "error::ResourceWarning", **self.extra_env}

    def start(self, *args: str, cwd: Path | None = None, stdin: Any = subprocess.DEVNULL) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gezelctl", *args],
            cwd=cwd or self.root,
            env=self.env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, process: subprocess.Popen[str], given: str | None = None) -> Done:
        """Wait for a command; whatever it did, it must not have shown a traceback."""
        out, err = process.communicate(given, timeout=120)
        assert "Traceback" not in out + err, err
        assert "has a bug" not in err, err
        return Done(process.returncode, out, err)

    def run(self, *args: str, cwd: Path | None = None, given: str | None = None) -> Done:
        stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
        return self.end(self.start(*args, cwd=cwd, stdin=stdin), given)

    def ok(self, *args: str, cwd: Path | None = None) -> Done:
        """A command that must succeed."""
        done = self.run(*args, cwd=cwd)
        assert done.code == 0, f"{args} left with {done.code}\n{done.out}\n{done.err}"
        return done

    def apply(self) -> Done:
        return self.ok("apply", "-f", "models.yaml", "--yes")

    def idle(self) -> bool:
        """Whether a plan finds nothing to do."""
        done = self.run("plan", "--detailed-exitcode")
        assert done.code in {0, 2}, done.err
        return done.code == 0

    # its files

    def write(self, models: str, *, backends: str = "", head: str = "") -> Path:
        """models.yaml of this stack; `models` and `backends` are lines of YAML below those keys."""
        path = self.root / "models.yaml"
        text = head or _HEAD.format(stack=self.stack)
        named = f"backends:\n{_indented(backends)}" if backends else ""
        path.write_text(f"{text}{named}models:\n{_indented(models)}" if models else f"{text}{named}models: []\n")
        return path

    def fake(self, *servers: str, options: str = "", head: str = "") -> None:
        """models.yaml with these servers on the scripted engine, whose `options` are those of `behave`."""
        self.fake_engine(options)
        self.gguf()
        self.write("\n".join(map(self.fake_server, servers)), backends=FAKE_BACKEND, head=self.fake_head(head))

    def fake_head(self, more: str = "") -> str:
        return f"{_HEAD.format(stack=self.stack)}defaults: {{backend: fake}}\n{more}"

    def fake_server(self, name: str, source: str = "path: ./tiny.gguf", more: str = "") -> str:
        """One line of `models`; its port is free now and kept for the lab's life."""
        port = self.ports.setdefault(name, free_port())
        return f"- {{name: {name}, source: {{{source}}}, port: {port}, context: 128, slots: 1{more}}}"

    def edit(self, before: str, after: str, name: str = "models.yaml") -> None:
        path = self.root / name
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    def gguf(self, name: str = "tiny.gguf", salt: int = 0) -> Path:
        """A small, whole GGUF that only the fake engine serves."""
        path = self.root / name
        path.write_bytes(gguf_bytes({**LLAMA, "general.quantization_version": salt}, LLAMA_TENSORS))
        return path

    def link(self, source: Path, name: str) -> Path:
        """A real model file beside models.yaml, without its bytes being copied where that is possible."""
        path = self.root / name
        try:
            path.hardlink_to(source)
        except OSError:
            path.symlink_to(source)
        return path

    def fake_engine(self, options: str = "", name: str = "fake-llama-server") -> Path:
        """A program with llama-server's own help text and a scripted server behind it; `behave` changes the script."""
        self.behave(options)
        program = self.root / name
        program.write_text(
            "#!/bin/sh\n"
            'case " $* " in\n'
            f'  *" --help "*) exec cat {CAPTURED}/llama-server-b11434-help.txt ;;\n'
            f'  *" --version "*) exec cat {CAPTURED}/llama-server-b11434-version.txt ;;\n'
            '  *" --list-devices "*) echo "Available devices:"; exit 0 ;;\n'
            "esac\n"
            f'eval "set -- \\"\\$@\\" $(cat {self.root}/fake.options)"\n'
            f'exec {sys.executable} {REPO}/tests/fake_engine.py "$@"\n'
        )
        program.chmod(0o755)
        return program

    def behave(self, options: str) -> None:
        """Options of tests/fake_engine.py for the next start, quoted for a shell."""
        (self.root / "fake.options").write_text(options)

    # what it left

    @property
    def state(self) -> Path:
        return self.root / "state" / self.stack

    def record(self, server: str) -> dict[str, Any]:
        path = self.state / "runs" / f"{server}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def pid(self, server: str) -> int:
        return int(self.record(server).get("pid", 0))

    def status(self) -> dict[str, dict[str, Any]]:
        """The rows of `status -o json` by server."""
        return {row["name"]: row for row in self.ok("status", "-o", "json").json()["servers"]}

    def processes(self) -> list[psutil.Process]:
        """Every process that carries this lab's mark, but not this one."""
        return [p for p in psutil.process_iter() if p.pid != os.getpid() and _environment(p).get(MARK) == self.mark]

    def leave(self) -> list[str]:
        """Stop everything, first as a user would; returns what even `destroy` left running."""
        self.extra_env.clear()
        self.write("")
        if self.state.exists():
            self.run("destroy", "-f", "models.yaml", "--yes")
        left = self.processes()
        words = [" ".join(p.cmdline()) for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=10)
        return words


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.strip("\n").split("\n"))


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def free_port() -> int:
    """Below the range that the kernel gives to outgoing connections, so that nobody takes it until its server does."""
    while True:
        port = random.randint(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(ready: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """Poll until `ready` gives something; fails with `what` when it does not in time."""
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)
    return found


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def ask(port: int, question: str, *, model: str = "", key: str = "") -> tuple[int, str]:
    """One question through the OpenAI API; the HTTP status and what came back as text."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 8, "temperature": 0}
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps({**body, **({"model": model} if model else {})}).encode(),
        headers,
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, str(json.load(response)["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode("utf-8", "replace")

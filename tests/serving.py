"""A started server for tests of engines: start it, wait until it serves, ask it, stop it by its pid."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from gezelctl.engines.types import LaunchSpec


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """One process with its log; `ask` and `post` speak JSON to it."""

    def __init__(self, spec: LaunchSpec, process: subprocess.Popen[bytes], log: Path, key: str) -> None:
        self.spec, self.process, self._log = spec, process, log
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=spec.base_url, headers=headers, timeout=60, trust_env=False)

    @property
    def lines(self) -> list[str]:
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()

    def ask(self, path: str) -> Any:
        return self.http.get(path).raise_for_status().json()

    def chat(self, **fields: Any) -> Any:
        """The message of one short chat completion."""
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, **fields}
        answer = self.http.post("/v1/chat/completions", json=body).raise_for_status().json()
        return answer["choices"][0]["message"]

    def wait(self, timeout_s: float = 90) -> None:
        """Until /health is 200; fails with the log when the process ends first."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if self.http.get("/health").status_code == 200:
                    return
            assert self.process.poll() is None, "\n".join(self.lines[-20:])
            time.sleep(0.05)
        raise AssertionError("not ready: " + "\n".join(self.lines[-20:]))

    def stop(self, sent: signal.Signals = signal.SIGTERM, timeout_s: float = 15) -> int:
        self.process.send_signal(sent)
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def started(spec: LaunchSpec, folder: Path, *, key: str = "", ready: bool = True) -> Iterator[Served]:
    """Start `spec` as the executor does: own folders and config files first, LLAMA_ARG_* out of the environment."""
    for directory in spec.directories:
        Path(directory).mkdir(parents=True, exist_ok=True)
    for file in spec.config_files:
        Path(file.path).write_text(file.content, encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    env |= spec.env | {secret.name: key for secret in spec.secret_env}
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [spec.program, *spec.argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=env,
            start_new_session=True,
        )
    served = Served(spec, process, log, key)
    try:
        if ready:
            served.wait()
        yield served
    finally:
        served.http.close()
        if process.poll() is None:
            process.kill()
            process.wait()

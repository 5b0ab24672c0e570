"""A server is done when it serves: ready, saying of itself what was planned, and answering one short request."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gezelctl.config.secrets import Secret
from gezelctl.engines.loglines import Failure, classify, degraded
from gezelctl.engines.types import Expectation, LaunchSpec
from gezelctl.errors import UnhealthyError
from gezelctl.execute.process import UNSEEN_EXIT, Child, Rejoined
from gezelctl.observe.live import Target, ask_server
from gezelctl.observe.types import Live

FIRST_POLL_S: Final = 0.03
LAST_POLL_S: Final = 0.5
HARD_CAP: Final = 6
"""A start that keeps working is given up after this many times its own timeout."""
BUSY_SHARE: Final = 0.1
"""CPU time per second above which a start counts as working; being asked for its health costs far less."""
MAX_TOKENS: Final = 4
WINDOW_S: Final = 2.0
"""CPU time is judged over at least so long: it is counted in ticks of 10 ms, and polls cost some."""
ANSWER_BYTES: Final = 1 << 20
LOG_EDGE_BYTES: Final = 256 * 1024
LINE_CHARS: Final = 2000
_SWITCH: Final[dict[bool | None, str]] = {True: "on", False: "off", None: "not told"}


@dataclass(frozen=True)
class Proof:
    """`load_seconds` from the spawn until ready; `lost` is what it runs without, by its log, one sentence each."""

    load_seconds: float
    lost: tuple[str, ...] = ()


class Prover:
    """Proves one server that was just started, or that an earlier gezelctl started and left unproven."""

    def __init__(self, child: Child | Rejoined, spec: LaunchSpec, api_key: Secret | None) -> None:
        self._child = child
        self._spec = spec
        self._target = Target(spec.server, spec.engine, spec.host, spec.port, api_key)
        self._begun = time.monotonic()
        self._activity = _Activity(child, self._begun)

    def prove(self) -> Proof:
        """Wait until the server serves as planned.

        Raises UnhealthyError with the code of the cause: the classified failure when the process ended,
        START_TIMEOUT, GENERATION_FAILED, or IDENTITY_MISMATCH, SLOTS_MISMATCH, CONTEXT_MISMATCH, SPECULATION_OFF.
        """
        if self._spec.engine == "mlx":
            # mlx_lm.server answers /health before its model is loaded, and also when that failed
            self._await(self._port_answers)
            self._request()
            live = ask_server(self._target)
            load_seconds = time.monotonic() - self._begun
        else:
            live = self._await(self._ready)
            load_seconds = time.monotonic() - self._begun
        check_expectation(self._spec, live)
        if self._spec.engine != "mlx":
            self._request()
        return Proof(round(load_seconds, 3), degraded(self.log_lines()))

    def _ready(self) -> Live | None:
        live = ask_server(self._target)
        return live if live.health == "Ready" else None

    def _port_answers(self) -> Live | None:
        live = ask_server(self._target)
        return live if live.health != "Unknown" else None

    def _await(self, ready: Callable[[], Live | None]) -> Live:
        pause = FIRST_POLL_S
        while True:
            self._require_alive()
            live = ready()
            if live is not None:
                self._require_alive()  # the answer is only worth something while the answering process is ours
                return live
            self._require_time("is not ready")
            time.sleep(pause)
            pause = min(pause * 1.3, LAST_POLL_S)

    def _require_alive(self) -> None:
        code = self._child.exit_code()
        if code is not None:
            raise died(self._spec.server, classify(self.log_lines(), code), f"ended with {_ending(code)} while loading")

    def _require_worker(self) -> None:
        """mlx_lm.server loads in a thread; when that dies, the process stays and its requests wait for ever."""
        failure = classify(self.log_lines(), None)
        if failure.code != "UNKNOWN":
            raise died(self._spec.server, failure, "runs, but cannot load its model")

    def _require_time(self, state: str) -> None:
        """The timeout counts from the last sign of work; a start that works on is given up at the hard cap."""
        now = time.monotonic()
        quiet = now - self._activity.last(now)
        limit = self._spec.start_timeout_s
        if quiet < limit and now - self._begun < limit * HARD_CAP:
            return
        lines = self.log_lines()
        last = f"; last line: {lines[-1]}" if lines else ""
        why = f"no sign of work for {quiet:.0f} s" if quiet >= limit else "though it is working"
        raise UnhealthyError(
            f"server {self._spec.server} {state} after {now - self._begun:.0f} s, {why}{last}",
            cure=f"read `gezelctl logs {self._spec.server}`; raise startTimeoutS if it only needs longer",
            code="START_TIMEOUT",
        )

    def log_lines(self) -> list[str]:
        """What this start has printed: its first and last 256 KiB, in lines."""
        return read_log(Path(self._child.record.log), self._child.record.log_offset)

    def _request(self) -> None:
        """One short request, watched: a process that dies under it, or hangs, is noticed while it is under way."""
        request = _Request(self._target, self._spec.expect)
        request.start()
        looked = time.monotonic()
        while request.is_alive():
            request.join(0.05)
            self._require_alive()
            self._require_time("does not answer its first request")
            if self._spec.engine == "mlx" and time.monotonic() - looked > LAST_POLL_S:
                looked = time.monotonic()
                self._require_worker()
        self._require_alive()
        if request.fault:
            if self._spec.engine == "mlx":
                self._require_worker()
            raise UnhealthyError(
                f"server {self._spec.server} is up, but its first request failed: {request.fault}",
                cure=f"read `gezelctl logs {self._spec.server}`",
                code="GENERATION_FAILED",
            )


class _Activity:
    """The last moment at which a starting server printed something or used a real share of a CPU."""

    def __init__(self, child: Child | Rejoined, begun: float) -> None:
        self._child = child
        self._last = self._sampled = begun
        self._log_bytes = 0
        self._cpu_s = 0.0

    def last(self, now: float) -> float:
        log_bytes = _size(Path(self._child.record.log))
        if log_bytes != self._log_bytes:
            self._log_bytes, self._last = log_bytes, now
        if now - self._sampled >= WINDOW_S:
            cpu_s = self._cpu_seconds()
            if cpu_s - self._cpu_s > BUSY_SHARE * (now - self._sampled):
                self._last = now
            self._cpu_s, self._sampled = cpu_s, now
        return self._last

    def _cpu_seconds(self) -> float:
        import psutil

        try:
            times = psutil.Process(self._child.record.pid).cpu_times()
        except psutil.Error:
            return self._cpu_s
        # waiting for the disk is work too: a cold model is mapped, not read
        return float(times.user + times.system + getattr(times, "iowait", 0.0))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class _Request(threading.Thread):
    """One short generation, or one embedding. `fault` says in words what went wrong, "" when nothing did."""

    def __init__(self, target: Target, expect: Expectation) -> None:
        super().__init__(daemon=True)
        self._target = target
        self._expect = expect
        self.fault = ""

    def run(self) -> None:
        path, body = self._call()
        headers = {"Content-Type": "application/json"}
        if self._target.api_key:
            headers["Authorization"] = f"Bearer {self._target.api_key.reveal()}"
        connection = http.client.HTTPConnection(self._target.reached_at, self._target.port)
        try:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            self.fault = self._judge(path, response.status, response.read(ANSWER_BYTES))
        except (OSError, http.client.HTTPException) as error:
            self.fault = f"{path}: {str(error) or type(error).__name__}"
        finally:
            connection.close()

    def _call(self) -> tuple[str, dict[str, object]]:
        model = {"model": self._expect.model_id} if self._expect.model_id else {}
        if not self._expect.chat:
            return "/v1/embeddings", {**model, "input": self._expect.prompt}
        message = {"role": "user", "content": self._expect.prompt}
        return "/v1/chat/completions", {**model, "messages": [message], "max_tokens": MAX_TOKENS, "stream": False}

    def _judge(self, path: str, status: int, body: bytes) -> str:
        text = body[:300].decode("utf-8", "replace")
        if status != 200:
            return f"{path} answers {status}: {text}"
        try:
            answer = json.loads(body)
        except ValueError:
            return f"{path} answers no JSON: {text}"
        items = answer.get("choices" if self._expect.chat else "data") if isinstance(answer, dict) else None
        return "" if isinstance(items, list) and items else f"{path} answers without a result: {text}"


def read_log(log: Path, offset: int) -> list[str]:
    """The lines of a log from `offset` on, split at any line end; the middle of a very long start is left out."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            end = stream.tell()
            stream.seek(offset)
            head = stream.read(LOG_EDGE_BYTES)
            stream.seek(max(offset + len(head), end - LOG_EDGE_BYTES))
            tail = stream.read(LOG_EDGE_BYTES)
    except OSError:
        return []
    text = (head + tail).replace(b"\0", b"").decode("utf-8", "replace")
    return [line[:LINE_CHARS] for line in re.split(r"\r\n|\r|\n", text) if line.strip()]


def died(server: str, failure: Failure, how: str) -> UnhealthyError:
    """The named failure of a server, with the engine's own line."""
    line = f"\n  log: {failure.line}" if failure.line else ""
    return UnhealthyError(f"server {server} {how}: {failure.summary}{line}", cure=failure.cure, code=failure.code)


def _ending(exit_code: int) -> str:
    if exit_code == UNSEEN_EXIT:
        return "an exit code that nobody saw"
    return f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"


def check_expectation(spec: LaunchSpec, live: Live) -> None:
    """Compare what the server says of itself with the plan. Raises UnhealthyError; its code is the first mismatch."""
    expect = spec.expect
    found: list[tuple[str, str]] = []

    def compare(code: str, what: str, wanted: object, have: object) -> None:
        if wanted not in {None, "", 0} and have != wanted:
            found.append((code, f"{what} is {have or 'not told'} instead of {wanted}"))

    if expect.model_id not in live.model_ids:
        compare("IDENTITY_MISMATCH", "model", expect.model_id, ", ".join(live.model_ids))
    compare("IDENTITY_MISMATCH", "file", expect.model_path, live.model_path)
    compare("SLOTS_MISMATCH", "number of slots", expect.slots, live.slots)
    compare("CONTEXT_MISMATCH", "context of a slot", expect.context_tokens, live.context_tokens)
    if expect.speculation is not None and live.speculation != expect.speculation:
        code = "SPECULATION_OFF" if expect.speculation else "SPECULATION_ON"
        found.append((code, f"speculation is {_SWITCH[live.speculation]} instead of {_SWITCH[expect.speculation]}"))
    if found:
        hint = f" ({live.message})" if live.message else ""
        raise UnhealthyError(
            f"server {spec.server} does not run as planned: {'; '.join(text for _, text in found)}{hint}",
            cure=f"read `gezelctl logs {spec.server}`",
            code=found[0][0],
        )

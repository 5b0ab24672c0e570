"""What the executor reports, shown on stderr: a live line, log lines, JSON lines, or nothing (ux contract 3.15)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

from gezelctl.cli.terminal import Stream
from gezelctl.execute.report import StepState
from gezelctl.plan.units import format_bytes, format_duration, format_pair

_COLUMNS = 80
_REFRESH_S = 0.1
_PLAIN_S = 10.0
_PLAIN_SHARE = 0.1
_PLAIN_FROM_S = 0.2
"""What is done sooner needs no lines of progress: its "done" follows at once."""
_RATE_WINDOW_S = 5.0


def choose_mode(choice: str, stream: Stream, environ: Mapping[str, str], *, quiet: bool) -> str:
    """`auto` is a live line on a terminal outside CI, else plain lines; NO_COLOR turns the live line off too.

    --quiet shows nothing unless a mode was named.
    """
    if choice != "auto":
        return choice
    if quiet:
        return "none"
    live = stream.terminal and environ.get("TERM") != "dumb" and not environ.get("NO_COLOR")
    return "tty" if live and environ.get("CI", "").lower() in {"", "0", "false"} else "plain"


class Transfer:
    """Bytes of one step over time: its rate over the last seconds, and when it was last shown as a line."""

    def __init__(self, now: float) -> None:
        self.done = 0
        self.total = 0
        self.began = now
        self.shown_at = now
        self.shown_done = 0
        self._samples: list[tuple[float, int]] = []

    def update(self, now: float, done: int, total: int) -> None:
        if done < self.done:
            self._samples.clear()
            self.shown_done = done
        self.done, self.total = done, total
        if not self._samples or now - self._samples[-1][0] >= _REFRESH_S:
            self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[1][0] > _RATE_WINDOW_S:
            self._samples.pop(0)

    def rate(self, now: float) -> float:
        """Bytes a second over the window; 0 until there are two samples."""
        if not self._samples or now <= self._samples[0][0]:
            return 0.0
        start, done = self._samples[0]
        return max(0.0, (self.done - done) / (now - start))

    def due(self, now: float) -> bool:
        """Whether a plain line is due: 10 s have passed, or another tenth has come."""
        gained = self.done - self.shown_done
        return now - self.shown_at >= _PLAIN_S or (self.total > 0 and gained >= self.total * _PLAIN_SHARE)

    def text(self, now: float) -> str:
        """ "1.2 of 8.4 GiB, 110.0 MiB/s, 1 min 7 s left"."""
        parts = [format_pair(self.done, self.total) if self.total else format_bytes(self.done)]
        rate = self.rate(now)
        if rate >= 1:
            parts.append(f"{format_bytes(int(rate))}/s")
            if self.total > self.done:
                parts.append(f"{format_duration((self.total - self.done) / rate)} left")
        return ", ".join(parts)


class Progress:
    """An `execute.report.Reporter`. Calls may come from any thread; `close` ends the live line."""

    def __init__(self, stream: Stream, mode: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = stream
        self.mode = mode
        self._clock = clock
        self._lock = threading.Lock()
        self._transfers: dict[str, Transfer] = {}
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_step(self, address: str, state: StepState, message: str) -> None:
        with self._lock:
            if state != "note":
                self._transfers.pop(address, None)
            if self.mode == "json":
                self._json({"event": "step", "address": address, "state": state, "message": message})
            elif self.mode != "none":
                self._line(f"{address}: {_WORDS[state]}{message}" if message else f"{address}: {state}")

    def on_bytes(self, address: str, done: int, total: int) -> None:
        if self.mode == "none":
            return
        with self._lock:
            now = self._clock()
            transfer = self._transfers.setdefault(address, Transfer(now))
            transfer.update(now, done, total)
            if self.mode == "tty":
                if now - self._drawn_at >= _REFRESH_S or done == total:
                    self._draw(now)
            elif self.mode == "plain" and now - transfer.began < _PLAIN_FROM_S:
                return
            elif transfer.due(now) or (done == total and transfer.shown_done != done):
                transfer.shown_at, transfer.shown_done = now, done
                self._plain(address, transfer, now)

    def close(self) -> None:
        with self._lock:
            self.stream.draw("")

    def _plain(self, address: str, transfer: Transfer, now: float) -> None:
        if self.mode == "json":
            rate = int(transfer.rate(now))
            self._json(
                {"event": "bytes", "address": address, "done": transfer.done, "total": transfer.total, "rate": rate}
            )
        else:
            self._line(f"{address}: {transfer.text(now)}")

    def _json(self, event: dict[str, str | int]) -> None:
        self.stream.write(f"{json.dumps(event)}\n", utf8=True)

    def _line(self, text: str) -> None:
        self.stream.write(f"{self.stream.safe(text)}\n")
        if self._transfers and self.mode == "tty":
            self._draw(self._clock())

    def _draw(self, now: float) -> None:
        text = self.stream.safe("   ".join(f"{a}: {t.text(now)}" for a, t in self._transfers.items()))
        self.stream.draw(text[: max(self.stream.columns(_COLUMNS) - 1, 20)])
        self._drawn_at = now


_WORDS: dict[StepState, str] = {
    "started": "",
    "note": "",
    "done": "done: ",
    "failed": "FAILED: ",
    "skipped": "skipped: ",
}

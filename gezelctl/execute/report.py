"""How the executor tells what it does; the command line implements it."""

from __future__ import annotations

from typing import Literal, Protocol

StepState = Literal["started", "note", "done", "failed", "skipped"]


class Reporter(Protocol):
    """Called from the executing thread, often: `on_bytes` up to once a block."""

    def on_step(self, address: str, state: StepState, message: str) -> None:
        """A step begins, has something to say, or ends. `message` is one line for a person, free of secrets."""

    def on_bytes(self, address: str, done: int, total: int) -> None:
        """Bytes brought so far and in total (0 = unknown) for the step at `address`."""

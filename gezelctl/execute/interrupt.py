"""The first SIGINT or SIGTERM lets the current step finish, the second stops now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

from gezelctl.errors import ExitCode

_CODES: Final = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}


class Interrupts:
    """While it is entered, `stopped` tells whether (and with which exit code) the run shall end.

    A second signal raises KeyboardInterrupt. `on_first` is told the exit code of the first one. Outside the main
    thread Python delivers no signals, and this does nothing.
    """

    def __init__(self, on_first: Callable[[ExitCode], None]) -> None:
        self.stopped: ExitCode | None = None
        self._on_first = on_first
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _CODES}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.stopped is not None:
            raise KeyboardInterrupt
        self.stopped = _CODES[signal.Signals(number)]
        self._on_first(self.stopped)

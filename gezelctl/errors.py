"""The error tree. Each class owns its exit code; every message ends with the cure.

GezelctlError                1   failed
├── UsageFault              64   bad flags or arguments
├── InvalidConfig           65   models.yaml (or a catalog it names) has errors; carries all of them
├── RefusedError             7   protection, does not fit, or needs --yes and cannot ask
├── LockedError              6   the lock was not free within the timeout
├── StalePlan                5   the saved plan no longer fits
├── UnknownHost              8   what runs on the host could not be observed
├── UnhealthyError           3   everything was applied, but something does not serve
├── GgufError                1   a GGUF file is broken, hostile, or not a GGUF
├── FetchError               1   a payload or engine could not be fetched or verified
└── EngineError              1   an engine build cannot be used
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Every exit code of the command line (docs: README, "Exit codes")."""

    OK = 0
    FAILED = 1
    CHANGES = 2
    UNHEALTHY = 3
    PARTIAL = 4
    STALE = 5
    LOCKED = 6
    REFUSED = 7
    UNKNOWN = 8
    USAGE = 64
    INVALID = 65
    INTERRUPTED = 130
    TERMINATED = 143


class GezelctlError(Exception):
    """A fault that a person can act on.

    `message` says what is wrong and where; `cure` says what to do, as one sentence in the imperative.
    """

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, cure: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure
        self.code = code

    def __str__(self) -> str:
        return f"{self.message}\n  cure: {self.cure}" if self.cure else self.message


class UsageFault(GezelctlError):
    exit_code = ExitCode.USAGE


class RefusedError(GezelctlError):
    exit_code = ExitCode.REFUSED


class LockedError(GezelctlError, TimeoutError):
    exit_code = ExitCode.LOCKED


class StalePlan(GezelctlError):
    exit_code = ExitCode.STALE


class UnknownHost(GezelctlError):
    exit_code = ExitCode.UNKNOWN


class UnhealthyError(GezelctlError):
    exit_code = ExitCode.UNHEALTHY


class GgufError(GezelctlError, ValueError):
    pass


class FetchError(GezelctlError, OSError):
    pass


class EngineError(GezelctlError):
    pass

"""What carrying out a plan needs, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from gezelctl.config.model import Archive, SecretRef
from gezelctl.config.secrets import Secret, resolve
from gezelctl.engines.types import SecretEnv
from gezelctl.errors import ExitCode, GezelctlError, UnhealthyError
from gezelctl.execute.process import GRACE_S
from gezelctl.execute.report import Reporter
from gezelctl.observe.hub import Hub
from gezelctl.store.layout import Paths


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class ExecContext:
    """Everything that `apply_plan` may use beside the plan itself.

    `archives` holds the engine archives by backend name. `env` is the environment that servers inherit from and
    secrets are read from, `secret_names` those of its variables that hold secrets of models.yaml, which no server
    inherits; `base_dir` is where relative secret files are looked for. `grace_s` is the time between SIGTERM and
    SIGKILL. Without `wait`, servers are started and left unproven, which the next plan says.
    """

    paths: Paths
    reporter: Reporter
    env: Mapping[str, str]
    base_dir: Path
    secret_names: frozenset[str] = frozenset()
    hub: Hub = field(default_factory=Hub)
    archives: Mapping[str, Archive] = field(default_factory=dict)
    now: Callable[[], datetime] = _utc_now
    grace_s: float = GRACE_S
    wait: bool = True
    run_id: str = ""

    def secret(self, ref: SecretEnv) -> Secret:
        """The value of a server's secret. Raises SecretError."""
        return resolve(
            SecretRef(from_env=ref.from_env or None, from_file=ref.from_file or None), self.base_dir, self.env
        )


class StepFailure(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One failed step, free of secrets. `proof`: the change was made, but the server does not serve as planned."""

    address: str
    action: str
    code: str
    message: str
    cure: str = ""
    proof: bool = False


class ApplyResult(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What became of each address that the plan wanted changed; the three groups are disjoint and complete.

    `replan` names servers (also in `skipped`) whose launch could not be planned before an engine was fetched: plan
    and apply again. `stopped` is the exit code of a signal that ended the run, 0 when none did.
    """

    done: tuple[str, ...] = ()
    failed: tuple[StepFailure, ...] = ()
    skipped: tuple[str, ...] = ()
    replan: tuple[str, ...] = ()
    stopped: int = 0
    duration_s: float = 0.0

    @property
    def exit_code(self) -> ExitCode:
        """130/143 stopped; 0 all done; 3 all applied but something does not serve; 4 some steps failed."""
        if self.stopped:
            return ExitCode(self.stopped)
        if not self.failed:
            return ExitCode.OK
        applied = all(f.proof for f in self.failed) and not self.skipped
        return ExitCode.UNHEALTHY if applied else ExitCode.PARTIAL

    @property
    def outcome(self) -> Literal["ok", "unhealthy", "partial", "stopped"]:
        """The exit code in one word."""
        names: dict[ExitCode, Literal["ok", "unhealthy", "partial"]] = {
            ExitCode.OK: "ok",
            ExitCode.UNHEALTHY: "unhealthy",
            ExitCode.PARTIAL: "partial",
        }
        return names.get(self.exit_code, "stopped")


def step_failure(address: str, action: str, error: GezelctlError, mask: Callable[[str], str]) -> StepFailure:
    return StepFailure(
        address=address,
        action=action,
        code=error.code or type(error).__name__,
        message=mask(error.message),
        cure=mask(error.cure),
        proof=isinstance(error, UnhealthyError),
    )

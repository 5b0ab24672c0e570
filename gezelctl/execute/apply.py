"""Carry out a plan: its changes in their order, one step each, journalled before and after.

A failed step stops new work. The caller holds the stack's lock.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from gezelctl.config.secrets import Secret, mask
from gezelctl.engines.llama_cpp.planner.moe import planned_experts
from gezelctl.engines.types import LaunchSpec
from gezelctl.errors import ExitCode, FetchError, GezelctlError, RefusedError, UnhealthyError
from gezelctl.execute.context import ApplyResult, ExecContext, StepFailure, step_failure
from gezelctl.execute.engines import install_engine
from gezelctl.execute.fetch import Fetcher
from gezelctl.execute.install import Installer
from gezelctl.execute.interrupt import Interrupts
from gezelctl.execute.learn import DrafterDiedError, StarvedError, drafter_digest
from gezelctl.execute.servers import ServerSteps
from gezelctl.plan.types import Change, PayloadMeta, Plan
from gezelctl.store.events import EventLog
from gezelctl.store.records import ensure_state, write_state

ACTIONS: Final[dict[str, str]] = {
    "create": "starting",
    "update": "changing in place",
    "restart": "restarting",
    "delete": "stopping",
    "fetch": "downloading",
    "link": "bringing in",
}
"""Every action that is carried out, with the word for it while it is under way."""


def apply_plan(plan: Plan, context: ExecContext, replan: Callable[[], Plan] | None = None) -> ApplyResult:
    """Make the host what `plan` says, and prove each server that was started.

    `replan` plans the same request on the host as it is by then. It is asked once, when an engine or payload was
    brought: only then are an archive's flags and a model's header known, and the servers start as that plan says.
    Raises RefusedError when the plan is not applyable; failures of steps are in the result. The first SIGINT or
    SIGTERM lets the current step finish, the second abandons it.
    """
    if not plan.applyable:
        blocked = next((c for c in plan.changes if c.action == "blocked"), None)
        why = f": {blocked.address}: {blocked.cause}" if blocked else ""
        raise RefusedError(
            f"the plan cannot be applied{why}", cure=blocked.cure if blocked else "see the plan's errors"
        )
    return _Run(plan, context, replan).run()


class _Run:
    def __init__(self, plan: Plan, context: ExecContext, replan: Callable[[], Plan] | None) -> None:
        self._plan = plan
        self._wanted = plan.digest
        self._ask_again = replan
        self._context = context
        self._secrets: list[Secret] = [context.hub.token] if context.hub.token else []
        self._events = EventLog(
            context.paths,
            stack=plan.stack,
            host=plan.host,
            run_id=context.run_id or uuid.uuid4().hex,
            mask=self._mask,
            now=context.now,
        )
        self._servers = ServerSteps(plan, context, self._secrets)
        self._fetcher = Fetcher(context.hub)
        self._done: list[str] = []
        self._failed: list[StepFailure] = []
        self._skipped: list[str] = []
        self._replan: list[str] = []

    def _mask(self, text: str) -> str:
        return mask(text, self._secrets)

    def run(self) -> ApplyResult:
        begun = time.monotonic()
        self._events.write("run_started", detail={"plan": self._plan.digest, "changes": self._plan.summary.changes})
        with Interrupts(self._told) as interrupts, self._fetcher:
            for kind in ("engine.", "payload.", "server."):
                brought = len(self._done)
                if kind == "server." and not self._failed and interrupts.stopped is None:
                    self._release_ports()
                for change in self._plan.changes:
                    if change.action in ACTIONS and change.address.startswith(kind):
                        self._one(change, interrupts)
                if kind != "server." and len(self._done) > brought and interrupts.stopped is None:
                    self._plan_again()
        self._record_state()
        result = ApplyResult(
            done=tuple(self._done),
            failed=tuple(self._failed),
            skipped=tuple(self._skipped),
            replan=tuple(self._replan),
            stopped=int(interrupts.stopped or 0),
            duration_s=round(time.monotonic() - begun, 3),
        )
        self._events.write(
            "run_finished",
            reason=result.outcome,
            level="info" if result.exit_code == 0 else "error",
            duration_ms=int(result.duration_s * 1000),
            detail={"done": len(self._done), "failed": len(self._failed), "skipped": len(self._skipped)},
        )
        return result

    def _told(self, code: ExitCode) -> None:
        name = "SIGINT" if code == ExitCode.INTERRUPTED else "SIGTERM"
        self._context.reporter.on_step("", "note", f"{name}: finishing the current step; once more stops it now")

    def _one(self, change: Change, interrupts: Interrupts) -> None:
        why = self._why_skip(change, interrupts)
        if why:
            self._skip(change, why)
            return
        begun = time.monotonic()
        words = f"{ACTIONS[change.action]}: {change.cause}" if change.cause else ACTIONS[change.action]
        self._context.reporter.on_step(change.address, "started", words)
        self._events.write("step_started", address=change.address, action=change.action, reason=change.reason)
        try:
            message = self._step(change)
        except GezelctlError as error:
            self._fail(step_failure(change.address, change.action, error, self._mask), begun)
        except KeyboardInterrupt:
            interrupts.stopped = interrupts.stopped or ExitCode.INTERRUPTED
            unknown = "stopped in the middle: its state is unknown"
            self._fail(StepFailure(change.address, change.action, "INTERRUPTED", unknown, "apply again"), begun)
        else:
            self._done.append(change.address)
            elapsed = int((time.monotonic() - begun) * 1000)
            self._events.write(
                "step_done", address=change.address, action=change.action, message=message, duration_ms=elapsed
            )
            self._context.reporter.on_step(change.address, "done", self._mask(message))

    def _release_ports(self) -> None:
        try:
            for address in self._servers.release_ports(self._plan.changes):
                self._context.reporter.on_step(address, "note", "stopped early: another server takes its port")
        except GezelctlError as error:
            self._fail(step_failure("server", "stop", error, self._mask), time.monotonic())

    def _plan_again(self) -> None:
        """Go on with the plan that follows from what was just brought; what is blocked in it has failed."""
        if self._ask_again is None or self._failed:
            return
        begun, before = time.monotonic(), self._plan
        try:
            self._plan = self._ask_again()
        except GezelctlError as error:
            self._fail(step_failure("plan", "replan", error, self._mask), begun)
            return
        self._tell_spared(before)
        self._servers = ServerSteps(self._plan, self._context, self._secrets)
        for change in self._plan.changes:
            if change.action == "blocked":
                failure = StepFailure(change.address, change.action, change.reason, change.cause, change.cure)
                self._fail(failure, begun)

    def _tell_spared(self, before: Plan) -> None:
        """Name the servers whose restart was announced and is not needed, such as after the same bytes came back."""
        still = {c.address for c in self._plan.changes if c.action != "noop"}
        for change in before.changes:
            if change.action == "restart" and change.address not in still:
                self._context.reporter.on_step(change.address, "note", "needs no restart: it runs as wanted")

    def _why_skip(self, change: Change, interrupts: Interrupts) -> str:
        if interrupts.stopped is not None:
            return "stopped by a signal"
        if self._failed:
            needed = next((f.address for f in self._failed if f.address in change.depends_on), self._failed[0].address)
            return f"{needed} failed"
        if change.address.startswith("server.") and change.action != "delete" and change.launch is None:
            self._replan.append(change.address)
            return "its launch is planned when the engine is there"
        return ""

    def _skip(self, change: Change, why: str) -> None:
        self._skipped.append(change.address)
        self._events.write("step_skipped", address=change.address, action=change.action, message=why)
        self._context.reporter.on_step(change.address, "skipped", why)

    def _fail(self, failure: StepFailure, begun: float) -> None:
        self._failed.append(failure)
        elapsed = int((time.monotonic() - begun) * 1000)
        self._events.write(
            "step_failed",
            address=failure.address,
            action=failure.action,
            reason=failure.code,
            message=failure.message,
            level="error",
            duration_ms=elapsed,
        )
        self._context.reporter.on_step(failure.address, "failed", failure.message)

    def _step(self, change: Change) -> str:
        """Carry out one change; returns what was done, in words. Raises GezelctlError."""
        kind, _, name = change.address.partition(".")
        if kind == "engine":
            return self._engine(change, name)
        if kind == "payload":
            return self._payload(change, name)
        try:
            return self._servers.step(change, name)
        except DrafterDiedError as error:
            if error.forced:
                raise
            message = self._once_more(change, name, error, "without", lambda launch: not drafter_digest(launch))
            return f"{message}; but without its draft model: {error.reason}"
        except StarvedError as error:
            placed = error.placed
            less = "with less of it on the GPU"
            message = self._once_more(change, name, error, less, lambda new: planned_experts(new.values) != placed)
            return f"{message}; but {less}: {error.reason}"

    def _once_more(
        self, change: Change, name: str, error: UnhealthyError, how: str, helps: Callable[[LaunchSpec], bool]
    ) -> str:
        """Start a server once more as the plan is now that what took it down is known.

        Raises `error` when no other launch can be planned that `helps`.
        """
        plan = self._ask_again() if self._ask_again else self._plan
        again = next((c for c in plan.changes if c.address == change.address and c.action in ACTIONS), None)
        if again is None or again.launch is None or not helps(again.launch):
            raise error
        self._context.reporter.on_step(change.address, "note", f"{error.message}; starting it {how}")
        return ServerSteps(plan, self._context, self._secrets).step(again, name)

    def _engine(self, change: Change, backend: str) -> str:
        archive = self._context.archives.get(backend)
        if archive is None:
            raise FetchError(f"backend {backend} names no archive", cure="make a new plan", code="STALE_PLAN")
        program = install_engine(self._context.paths, backend, archive, self._fetcher, self._progress(change.address))
        return f"unpacked to {program}"

    def _payload(self, change: Change, name: str) -> str:
        engine, _, model_id = name.partition(".")
        meta = change.payload or PayloadMeta(engine=engine, model_id=model_id)
        installer = Installer(
            paths=self._context.paths,
            fetcher=self._fetcher,
            now=self._context.now,
            on_note=lambda text: self._context.reporter.on_step(change.address, "note", self._mask(text)),
            on_bytes=self._progress(change.address),
        )
        manifest = installer.install(meta, change.files, keep_others=not self._plan.complete)
        return f"{len(manifest.files)} file{'s' if len(manifest.files) != 1 else ''} verified"

    def _progress(self, address: str) -> Callable[[int, int], None]:
        return lambda done, total: self._context.reporter.on_bytes(address, done, total)

    def _record_state(self) -> None:
        """The serial grows when anything was changed; the applied plan is recorded when all of a whole plan was."""
        changed = self._done or any(f.proof for f in self._failed)
        state = ensure_state(self._context.paths, self._plan.stack)
        whole = self._plan.complete and not self._failed and not self._skipped
        if changed or (whole and state.last_applied != self._wanted):
            applied = self._wanted if whole else state.last_applied
            write_state(self._context.paths, replace(state, serial=state.serial + bool(changed), last_applied=applied))

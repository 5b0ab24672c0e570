"""From a plan that a person saw to the same plan carried out: stale checks, guards, the lock, the result."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gezelctl.cli.common import require_valid
from gezelctl.cli.output import Output
from gezelctl.cli.plan_view import show_plan
from gezelctl.cli.session import Session, live_plan, observe_here, open_session
from gezelctl.errors import ExitCode, RefusedError, StalePlan, UsageFault
from gezelctl.plan.inputs import PlanOptions
from gezelctl.plan.types import Change, Plan
from gezelctl.plan.units import count

if TYPE_CHECKING:
    from gezelctl.execute.context import ApplyResult, ExecContext
    from gezelctl.execute.report import Reporter

_HINTED = 5
"""So many addresses are still a hint and not a list."""


def read_saved(path: Path) -> Plan:
    """A plan made with `plan --out`, seal checked. Raises UsageFault, StalePlan or RefusedError."""
    from gezelctl.plan.render_json import plan_from_json, verify

    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageFault(f"{path}: {error.strerror}", cure="Name a file made with plan --out.") from error
    if path.suffix in {".yaml", ".yml"}:
        raise UsageFault(f"{path} is no saved plan", cure=f"Write gezelctl apply -f {path} to apply a configuration.")
    plan = plan_from_json(text, name=str(path))
    verify(plan)
    if plan.against.kind != "live":
        raise RefusedError("this plan was made against a snapshot", cure="Plan and apply on the host itself.")
    return plan


@dataclass(frozen=True)
class Applying:
    """One run of apply or destroy. `saved` is the sealed plan that must come out again, or None."""

    output: Output
    files: tuple[str, ...]
    host: str | None
    options: PlanOptions
    saved: Plan | None
    allow_empty: bool
    expect_digest: str
    lock_timeout_s: float
    as_json: bool
    offline: bool = True
    wait: bool = True
    retry_drafters: bool = False

    def run(self) -> ExitCode:
        """Plan, show, ask, lock, plan again, carry out. Returns the exit code of the result."""
        session = open_session(self.files, self.host)
        if self.saved:
            _same_sources(self.saved, session)
        if self.retry_drafters:
            return self._with_drafters(session).run()
        observed = observe_here(session, offline=self.offline)
        for problem in observed.problems:
            self.output.warning(problem)
        plan = live_plan(session, self.options, observed, reviewed=self.saved)
        if self.saved:
            _still_fits(self.saved, plan)
        self._present(plan)
        if not self._changes(plan):
            return self._unchanged()
        if not self._agreed(plan):
            self.output.note("nothing was changed")
            return ExitCode.REFUSED
        return self._locked(session, plan)

    def _with_drafters(self, session: Session) -> Applying:
        """The same run after every draft model got another chance; servers that go without theirs are restarted."""
        from gezelctl.store.learned import clear_broken
        from gezelctl.store.lock import StackLock

        with StackLock(session.paths, "apply", timeout_s=self.lock_timeout_s, on_wait=self.output.note):
            servers = clear_broken(session.paths)
        wanted = [s.address for s in session.desired.servers if s.name in servers and self.options.selects(s.address)]
        options = msgspec.structs.replace(self.options, restart=(*self.options.restart, *wanted))
        return dataclasses.replace(self, options=options, retry_drafters=False)

    def _unchanged(self) -> ExitCode:
        """Nothing to do: the plan has said so, and who reads JSON is told as well."""
        from gezelctl.execute.context import ApplyResult

        if self.as_json:
            self._result(ApplyResult())
        return ExitCode.OK

    def _present(self, plan: Plan) -> None:
        """Show the plan and refuse what may not be carried out."""
        if self.as_json:
            self.output.diagnostics(plan.diagnostics)
        elif self.options.destroy and not self._changes(plan):
            self.output.data(f"Nothing to destroy: stack {plan.stack} has no server on {plan.host}.")
        else:
            show_plan(self.output, plan, "text")
        require_valid(plan)
        if not plan.applyable:
            self._hint_rest(plan)
            raise RefusedError(_why_not(plan), cure=_cure(plan) or "Correct models.yaml or the host, then plan again.")
        if self.expect_digest and plan.digest != self.expect_digest:
            raise RefusedError(
                f"the plan's digest is {plan.digest}, not the reviewed {self.expect_digest}",
                cure="Review this plan, or find out what changed since.",
            )
        _guard_prune(plan, allow_empty=self.allow_empty)

    def _hint_rest(self, plan: Plan) -> None:
        """How to carry out on purpose what is not blocked (decision 10)."""
        blocked = [c.address for c in plan.changes if c.action == "blocked" and c.address.startswith("server.")]
        if plan.summary.changes and 0 < len(blocked) <= _HINTED and not self.options.only:
            self.output.hint(f"the rest alone: add {' '.join(f'--except {a}' for a in blocked)}")

    def _changes(self, plan: Plan) -> bool:
        return plan.summary.changes > 0

    def _agreed(self, plan: Plan) -> bool:
        deletes = [c.address for c in plan.changes if c.action == "delete"]
        if self.options.destroy or deletes:
            expected = plan.stack
            return self.output.confirm(f"This deletes {count(len(deletes), 'server')} of stack {plan.stack}.", expected)
        return self.output.confirm("Apply this plan?")

    def _locked(self, session: Session, shown: Plan) -> ExitCode:
        from gezelctl.store.lock import StackLock

        operation = "destroy" if self.options.destroy else "apply"
        with StackLock(
            session.paths,
            operation,
            timeout_s=self.lock_timeout_s,
            on_wait=self.output.note,
            plan_digest=shown.digest,
        ):
            plan = live_plan(session, self.options, offline=self.offline, reviewed=self.saved or shown)
            if self.saved:
                _still_fits(self.saved, plan)
            elif plan.digest != shown.digest:
                self.output.note("the host changed since this plan was made; it is now:")
                self._present(plan)
                if not self._changes(plan):
                    return self._unchanged()
                if not self._agreed(plan):
                    return ExitCode.REFUSED
            if self.saved:
                from gezelctl.store.records import consume_plan

                consume_plan(session.paths, self.saved.checksum.removeprefix("sha256:"))
            return self._carry_out(session, plan)

    def _carry_out(self, session: Session, plan: Plan) -> ExitCode:
        from gezelctl.execute.apply import apply_plan

        with self.output.progress() as progress:
            result = apply_plan(
                plan,
                dataclasses.replace(exec_context(session, progress), wait=self.wait),
                replan=lambda: live_plan(session, self.options, offline=self.offline, reviewed=plan),
            )
        if self.as_json:
            self._result(result)
        for line in _summary(result, shown=progress.mode in {"plain", "tty"}):
            self.output.note(line) if result.exit_code == ExitCode.OK else self.output.problem(line)
        for failure in result.failed:
            kind, _, name = failure.address.partition(".")
            if kind == "server" and failure.proof:
                self.output.hint(f"the whole log: gezelctl logs {name} -f {' -f '.join(self.files)}")
        return result.exit_code

    def _result(self, result: ApplyResult) -> None:
        self.output.data(msgspec.json.format(msgspec.json.encode(result), indent=2).decode(), machine=True)


def _summary(result: ApplyResult, *, shown: bool) -> list[str]:
    """What was done, failed and skipped. Where the failure was `shown` while it happened, its first line suffices."""
    counts = f"done {len(result.done)}, failed {len(result.failed)}, skipped {len(result.skipped)}"
    lines = [f"{counts}, in {result.duration_s:.1f} s"]
    for failure in result.failed:
        message = failure.message.partition("\n")[0] if shown else failure.message
        lines.append(f"failed: {failure.address}: {message}")
        if failure.cure:
            lines.append(f"  cure: {failure.cure}")
    if result.skipped:
        lines.append(f"skipped: {', '.join(result.skipped)}")
    return lines


def exec_context(session: Session, reporter: Reporter) -> ExecContext:
    """What the executor may use; the hub's token is read here, once."""
    from gezelctl.config.secrets import resolve
    from gezelctl.execute.context import ExecContext
    from gezelctl.observe.hub import Hub

    hub = session.desired.sources.huggingface
    base_dir = Path(session.desired.base_dir)
    token = resolve(hub.token, base_dir, os.environ) if hub.token else None
    return ExecContext(
        paths=session.paths,
        reporter=reporter,
        env=os.environ,
        base_dir=base_dir,
        secret_names=_secret_names(session),
        hub=Hub(endpoint=hub.endpoint, token=token),
        archives={name: b.archive for name, b in session.desired.backends.items() if b.archive},
    )


def _secret_names(session: Session) -> frozenset[str]:
    """The environment variables that models.yaml takes secrets from, for any host and server."""
    model = session.loaded.model
    refs = [model.sources.huggingface.token, *(server.api_key for server in model.models)]
    return frozenset(ref.from_env for ref in refs if ref and ref.from_env)


def _same_sources(saved: Plan, session: Session) -> None:
    now = {f.path: f.sha256 for f in session.source}
    for file in saved.source:
        if now.get(file.path) != file.sha256:
            raise StalePlan(f"{file.path} changed since the plan was made", cure="Make a new plan with --out.")
    if saved.stack != session.desired.stack or saved.host != session.desired.host:
        raise StalePlan(
            f"the plan is for stack {saved.stack} on {saved.host}", cure="Apply it on that host, or make a new plan."
        )


def _still_fits(saved: Plan, plan: Plan) -> None:
    """The same host state must give the same actions; the message names the first thing that moved."""
    if saved.lineage != plan.lineage or saved.serial != plan.serial:
        raise StalePlan(
            f"the stack was changed since the plan was made (serial {saved.serial}, now {plan.serial})",
            cure="Make a new plan with --out.",
        )
    if saved.digest == plan.digest:
        return
    before = {c.address: _comparable(c) for c in saved.changes}
    after = {c.address: _comparable(c) for c in plan.changes}
    moved = next((a for a in sorted(before.keys() | after.keys()) if before.get(a) != after.get(a)), "the host")
    raise StalePlan(f"{moved} is no longer as the plan saw it", cure="Make a new plan with --out.")


def _comparable(change: Change) -> tuple[object, ...]:
    launch = change.launch
    return (change.action, change.reason, change.observed_fingerprint, launch.argv if launch else (), change.fields)


def _why_not(plan: Plan) -> str:
    from gezelctl.plan.words import blocked_by, capacity_text, misfits

    follows = blocked_by(plan)
    blocked = [f"{c.address}: {c.cause}" for c in plan.changes if c.action == "blocked" and c.address not in follows]
    full = [f"{c.resource.partition(':')[0]} {capacity_text(c, str)}" for c in misfits(plan.capacity)]
    return f"nothing was changed, since the plan is blocked: {'; '.join([*blocked, *full])}"


def _cure(plan: Plan) -> str:
    return next((c.cure for c in plan.changes if c.action == "blocked" and c.cure), "")


def _guard_prune(plan: Plan, *, allow_empty: bool) -> None:
    """Pruning everything, or more than half of what is ours, is more often a broken file than a wish."""
    deletes = sum(c.action == "delete" for c in plan.changes)
    owned = sum(c.address.startswith("server.") and c.action not in {"create", "blocked"} for c in plan.changes)
    if deletes and not allow_empty and deletes * 2 > owned:
        raise RefusedError(
            f"this would delete {deletes} of {owned} servers",
            cure="Check models.yaml; if it is meant, add --allow-empty.",
        )

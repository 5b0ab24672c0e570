"""The steps of one server: start and prove, restart, rewrite its record, stop and remove."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gezelctl.config.secrets import Secret
from gezelctl.engines.types import LaunchSpec
from gezelctl.errors import GezelctlError, UnhealthyError
from gezelctl.execute.context import ExecContext
from gezelctl.execute.learn import blame_drafter, blame_memory, measure
from gezelctl.execute.process import Child, Rejoined, rejoin, start, stop
from gezelctl.execute.prove import Prover, read_log
from gezelctl.plan.types import Change, Plan
from gezelctl.store.records import read_record, remove_record, write_record
from gezelctl.store.types import PlannedMemory, RunRecord

API_KEYS = ("LLAMA_API_KEY", "GEZELCTL_MLX_API_KEY")


class ServerSteps:
    """`secrets` collects every value that is read, so that the caller can mask them."""

    def __init__(self, plan: Plan, context: ExecContext, secrets: list[Secret]) -> None:
        self._plan = plan
        self._context = context
        self._secrets = secrets

    def step(self, change: Change, server: str) -> str:
        """Carry out a `server.*` change; returns what was done. Raises GezelctlError."""
        record = read_record(self._context.paths, server)
        if change.action == "delete":
            return self._delete(server, record)
        if change.launch is None:
            raise GezelctlError(f"no launch is planned for {server}", cure="make a new plan", code="STALE_PLAN")
        if change.action == "update":
            return self._update(change.launch, record, change.planned_memory)
        return self._start(change.launch, record, change.planned_memory)

    def release_ports(self, changes: Iterable[Change]) -> tuple[str, ...]:
        """Stop the servers that must leave a port to another one of this plan; returns their addresses.

        Two servers that swap ports, and a server that takes the port of one that is pruned, would else wait for each
        other. Each of them is started again, or removed, by its own step.
        """
        acting = [c for c in changes if c.address.startswith("server.")]
        wanted = {c.launch.port: c.address for c in acting if c.launch and c.action in {"create", "restart"}}
        released = []
        for change in acting:
            record = read_record(self._context.paths, change.address.removeprefix("server."))
            launch = _decode(record) if record and change.action in {"restart", "delete"} else None
            if record and launch and wanted.get(launch.port, change.address) != change.address:
                self._stop(record)
                released.append(change.address)
        return tuple(released)

    def _start(self, launch: LaunchSpec, record: RunRecord | None, planned: PlannedMemory | None) -> str:
        """Stop what runs under this name, also after a crash between spawn and record, then start and prove."""
        secrets = self._read_secrets(launch)
        if record is not None:
            self._stop(record)
        child = start(
            self._context.paths,
            launch,
            stack=self._plan.stack,
            secrets=secrets,
            parent_env={k: v for k, v in self._context.env.items() if k not in self._context.secret_names},
            now=self._context.now(),
            plan_digest=self._plan.digest,
        )
        if planned is not None:
            child.record = replace(child.record, planned_memory=planned)
            write_record(self._context.paths, child.record)
        if not self._context.wait:
            child.detach()
            return f"started on {launch.base_url}, pid {child.record.pid}; not waited for"
        try:
            return self._prove(child, launch, secrets)
        except UnhealthyError as error:
            code = child.exit_code()
            if code is None:
                raise
            lines = read_log(Path(child.record.log), child.record.log_offset)
            told = blame_drafter(self._context, launch, error, lines, code)
            raise (blame_memory(self._context, launch, error, lines, code) if told is error else told) from error
        finally:
            child.detach()

    def _read_secrets(self, launch: LaunchSpec) -> dict[str, Secret]:
        secrets = {ref.name: self._context.secret(ref) for ref in launch.secret_env}
        self._secrets.extend(secrets.values())
        return secrets

    def _prove(self, child: Child | Rejoined, launch: LaunchSpec, secrets: dict[str, Secret]) -> str:
        proof = Prover(child, launch, next((secrets[n] for n in API_KEYS if n in secrets), None)).prove()
        record = replace(child.record, proved=True)
        words = f"serving on {launch.base_url}, pid {record.pid}"
        if isinstance(child, Child):  # of a server that was found running, nobody knows how long it took
            record = replace(record, load_seconds=proof.load_seconds)
            words += f", ready after {proof.load_seconds:.1f} s"
        write_record(self._context.paths, record)
        but = (*proof.lost, *(f"warning: {text}" for text in measure(self._context, launch, record)))
        return f"{words}; but {'; '.join(but)}" if but else words

    def _update(self, launch: LaunchSpec, record: RunRecord | None, planned: PlannedMemory | None) -> str:
        """Fields with live effect change nothing in the process: the record follows, so that the next plan is empty.

        A server that an earlier run left unproven is proven now.
        """
        if record is None:
            raise GezelctlError(f"{launch.server} has no run record", cure="make a new plan", code="STALE_PLAN")
        encoded = msgspec.Raw(msgspec.json.encode(launch))
        record = replace(record, launch=encoded, plan_digest=self._plan.digest)
        record = replace(record, planned_memory=planned or record.planned_memory)
        write_record(self._context.paths, record)
        if record.proved:
            return "recorded"
        return self._prove(rejoin(self._context.paths, record), launch, self._read_secrets(launch))

    def _delete(self, server: str, record: RunRecord | None) -> str:
        outcome = self._stop(record) if record is not None else "not running"
        paths = self._context.paths
        paths.config(server).unlink(missing_ok=True)
        slots = paths.slots(server)
        if slots.is_dir():
            shutil.rmtree(slots)
        remove_record(paths, server)
        return outcome

    def _stop(self, record: RunRecord) -> str:
        outcome = stop(record, _decode(record), grace_s=self._context.grace_s)
        words = {"gone": "was not running", "stopped": "stopped"}
        return words.get(outcome, f"killed: it did not end within {self._context.grace_s:g} s")


def _decode(record: RunRecord) -> LaunchSpec | None:
    """The launch of a record; None when another version of gezelctl wrote it in another shape."""
    try:
        return msgspec.json.decode(record.launch, type=LaunchSpec)
    except msgspec.MsgspecError:
        return None

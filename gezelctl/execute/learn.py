"""What a start teaches: what took the engine down, and the memory that the server really took."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gezelctl.engines.llama_cpp.planner.moe import MoePlan, next_plan_down, planned_experts
from gezelctl.engines.loglines import bare, classify
from gezelctl.engines.types import LaunchSpec
from gezelctl.errors import UnhealthyError
from gezelctl.execute.context import ExecContext
from gezelctl.observe.memory import read_memory
from gezelctl.plan.measured import deviations, measured_sums
from gezelctl.store.events import timestamp
from gezelctl.store.learned import add_broken, add_measured, add_starved, pair_key
from gezelctl.store.types import BrokenDrafter, MeasuredMemory, RunRecord, Starved

LOADING: Final = "loading draft model"
REFUSED: Final = "failed to load draft model"
"""`common_speculative_init_result` of llama.cpp; the second line ends the server."""
_CRASHES: Final = frozenset({"DRAFT", "ABORTED", "CRASHED", "ASSERTION", "CPU_ISA"})
RETRY_CURE: Final = "remove spec or use another draft model; gezelctl apply --retry-drafters tries this one again"


class DrafterDiedError(UnhealthyError):
    """A start that died of its draft model. `forced` = models.yaml insists on it, so there is no start without."""

    def __init__(self, message: str, *, cure: str, reason: str, forced: bool) -> None:
        super().__init__(message, cure=cure, code="DRAFT")
        self.reason = reason
        self.forced = forced


class StarvedError(UnhealthyError):
    """A start that ran out of device memory, with a step of the offload ladder left below how it was `placed`."""

    def __init__(self, error: UnhealthyError, *, reason: str, placed: MoePlan) -> None:
        super().__init__(error.message, cure=error.cure, code=error.code)
        self.reason = reason
        self.placed = placed


def blame_memory(
    context: ExecContext, launch: LaunchSpec, error: UnhealthyError, lines: list[str], exit_code: int
) -> UnhealthyError:
    """What a start died of: `error` itself, or a StarvedError when less on the devices may help, which is remembered.

    It may when the planner placed the experts of the model. Host memory that ran out is not helped by using more of it.
    """
    placed = planned_experts(launch.values)
    weights = _digest(launch, launch.expect.model_path)
    if error.code != "OOM_DEVICE" or placed is None or next_plan_down(placed) is None or not weights:
        return error
    reason = _reason(lines, exit_code)
    starved = Starved(
        server=launch.server,
        reason=reason,
        when=timestamp(context.now()),
        n_gpu_layers=placed.n_gpu_layers,
        n_cpu_moe=placed.n_cpu_moe,
        cpu_moe=placed.cpu_moe,
    )
    add_starved(context.paths, pair_key(launch.engine_digest, weights), starved)
    return StarvedError(error, reason=reason, placed=placed)


def drafter_digest(launch: LaunchSpec) -> str:
    """sha256 of the draft model file of a launch, "" when it has none."""
    return _digest(launch, next((str(v.value) for v in launch.values if v.name == "spec.draftModel"), ""))


def _digest(launch: LaunchSpec, path: str) -> str:
    """sha256 of a payload file by its path, "" for a path that is none of the payload's."""
    return next((sha for name, sha in launch.payload.items() if name == path or path.endswith(f"/{name}")), "")


def blame_drafter(
    context: ExecContext, launch: LaunchSpec, error: UnhealthyError, lines: list[str], exit_code: int
) -> UnhealthyError:
    """What a start died of: `error` itself, or a DrafterDiedError when it died of its draft model, which is remembered.

    It did when the engine says so, or when it crashed with the draft model loaded.
    """
    sha256 = drafter_digest(launch)
    refused = any(REFUSED in line for line in lines)
    crashed = error.code in _CRASHES and any(LOADING in line for line in lines)
    if not sha256 or not (refused or crashed):
        return error
    reason = _reason(lines, exit_code)
    broken = BrokenDrafter(server=launch.server, reason=reason, when=timestamp(context.now()))
    add_broken(context.paths, pair_key(launch.engine_digest, sha256), broken)
    forced = any(v.name == "spec.type" and v.origin == "server" for v in launch.values)
    message = f"server {launch.server} died of its draft model: {reason}"
    return DrafterDiedError(message, cure=RETRY_CURE, reason=reason, forced=forced)


def _reason(lines: list[str], exit_code: int) -> str:
    failure = classify(lines, exit_code)
    return bare(failure.line) or failure.summary


def measure(context: ExecContext, launch: LaunchSpec, record: RunRecord) -> tuple[str, ...]:
    """Remember what a proven server took by its log; returns where that is not as planned, one phrase each."""
    planned = record.planned_memory
    reading = read_memory(Path(record.log), record.log_offset) if planned and record.log else None
    if planned is None or reading is None:
        return ()
    weights, tokens, compute = measured_sums(reading)
    found = MeasuredMemory(
        server=launch.server,
        planned=planned,
        weights_bytes=weights,
        context_bytes=tokens,
        compute_bytes=compute,
        when=timestamp(context.now()),
    )
    add_measured(context.paths, pair_key(launch.engine_digest, planned.architecture), found)
    return deviations(planned, reading)

"""Which experts stay in host memory, and what to try after an out-of-memory start (reference behaviour 8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gezelctl.engines.llama_cpp.planner.budget import GIB, MIB
from gezelctl.engines.types import Value
from gezelctl.store.types import Starved

MARGIN_BYTES = GIB
COMPUTE_BYTES = 512 * MIB
ALL_LAYERS = -1
_NAMES = ("nGpuLayers", "cpuMoe", "nCpuMoe")


class MoePlan(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Launch values; None = not given. `full_gpu_residency` says that everything fits on the devices."""

    n_gpu_layers: int | None = None
    cpu_moe: bool = False
    n_cpu_moe: int = 0
    full_gpu_residency: bool = False


class ExpertSplit(msgspec.Struct, frozen=True, rename="camel"):
    """Weights by where they can go, over all shards: experts of each layer in layer order, and all the rest."""

    other_bytes: int
    expert_bytes: tuple[int, ...]


def plan_moe(
    vram_bytes: int,
    *,
    resident_bytes: int,
    split: ExpertSplit | None = None,
    kv_bytes: int = 0,
    additional_bytes: int = 0,
    compute_bytes: int = COMPUTE_BYTES,
    margin_bytes: int = MARGIN_BYTES,
    moe: bool = True,
) -> MoePlan | None:
    """Where the experts go; None = no decision (no device, a dense model, or the engine can do it alone).

    `additional_bytes` is what else lies on the device (a drafter); it counts on the exact path only, because
    `resident_bytes` already holds it. Compute and margin are the reference's own; exact prices put theirs in `split`.
    """
    if vram_bytes <= 0 or not moe:
        return None
    if split is None:
        fits = resident_bytes + margin_bytes <= vram_bytes
        return None if fits else MoePlan(n_gpu_layers=ALL_LAYERS, cpu_moe=True)
    reserves = margin_bytes + max(0, kv_bytes) + compute_bytes + max(0, additional_bytes)
    if split.other_bytes + sum(split.expert_bytes) + reserves <= vram_bytes:
        return MoePlan(full_gpu_residency=True)
    left = vram_bytes - reserves - split.other_bytes
    if left < 0:
        return MoePlan(cpu_moe=True)
    kept = kept_layers(split.expert_bytes, left)
    if kept == 0:
        return MoePlan(n_gpu_layers=ALL_LAYERS, cpu_moe=True)
    return MoePlan(n_gpu_layers=ALL_LAYERS, n_cpu_moe=len(split.expert_bytes) - kept)


def kept_layers(expert_bytes: Sequence[int], left: int) -> int:
    """How many layers, counted from the last, keep their experts on the device; the first that does not fit ends it."""
    kept = 0
    for size in reversed(expert_bytes):
        if size > left:
            break
        left -= size
        kept += 1
    return kept


def planned_experts(values: Iterable[Value]) -> MoePlan | None:
    """Where the planner put the experts of a launch; None when it placed none, or somebody set a part of it."""
    found = {value.name: value for value in values if value.name in _NAMES}
    if any(value.origin != "planner" for value in found.values()):
        return None
    layers, split = (found[name].value if name in found else None for name in ("nGpuLayers", "nCpuMoe"))
    plan = MoePlan(
        n_gpu_layers=layers if isinstance(layers, int) else None,
        cpu_moe="cpuMoe" in found,
        n_cpu_moe=split if isinstance(split, int) else 0,
    )
    return plan if plan.cpu_moe or plan.n_cpu_moe else None


def launched_experts(starved: Starved) -> MoePlan:
    """Where the experts were in a launch that ran out of device memory."""
    return MoePlan(starved.n_gpu_layers, starved.cpu_moe, starved.n_cpu_moe)


def below(starved: Starved | None) -> MoePlan | None:
    """The step of the ladder that follows a launch which ran out of device memory; None when there is none."""
    return next_plan_down(launched_experts(starved)) if starved else None


def starved_notes(starved: Starved | None) -> tuple[str, ...]:
    """Why a launch keeps less on the devices than their memory would take."""
    if below(starved) is None or starved is None:
        return ()
    tried = "all experts in RAM" if starved.cpu_moe else f"the experts of {starved.n_cpu_moe} layers in RAM"
    return (f"with {tried}, this engine build ran out of device memory: {starved.reason}",)


def next_plan_down(plan: MoePlan, pinned: Sequence[str] = ()) -> MoePlan | None:
    """What to try after this plan ran out of device memory; None = give up.

    `pinned` names the values that somebody set: with nGpuLayers, cpuMoe and nCpuMoe all set there is nothing to try.
    """
    if set(_NAMES) <= set(pinned):
        return None
    if plan.n_cpu_moe:
        return MoePlan(n_gpu_layers=ALL_LAYERS, cpu_moe=True)
    if plan.cpu_moe and plan.n_gpu_layers is not None:
        return MoePlan(cpu_moe=True)
    return None

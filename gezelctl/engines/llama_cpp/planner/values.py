"""From a grant to launch values with reasons, and to the figures that are shown beside them."""

from __future__ import annotations

from gezelctl.engines.llama_cpp.planner.budget import MIB, HostMemory
from gezelctl.engines.llama_cpp.planner.one import Candidate, Chosen
from gezelctl.engines.llama_cpp.planner.settings import PLANNED_OFFLOAD
from gezelctl.engines.llama_cpp.planner.types import LaunchQuestion, Offload, ServerEstimate
from gezelctl.engines.types import Scalar, Value

_KEPT = "as it runs now; it still fits"
PROMPT_CACHE_MIB = 8192
"""`--cache-ram` default of llama-server."""
_PROMPT_CACHE_STEP_MIB = 256


def has_flag(question: LaunchQuestion, *names: str) -> bool:
    """Whether the probed build has one of these flags; a build that is not probed yet is taken to have them."""
    probe = question.probe
    if probe is None or probe.pending or not probe.flags:
        return True
    return any(name in probe.flags_by_name for name in names)


def prompt_cache_mib(spare_bytes: int, sharers: int) -> int:
    """Limit of one server's prompt cache in host memory, from what is spare after every server has its own.

    The limit is soft: one entry is copied before others go, so that half of the share is counted with.
    """
    share = max(0, spare_bytes) // max(sharers, 1) // 2 // MIB
    return min(PROMPT_CACHE_MIB, share // _PROMPT_CACHE_STEP_MIB * _PROMPT_CACHE_STEP_MIB)


def launch_values(
    candidate: Candidate, chosen: Chosen, names: tuple[str, ...], prompt_cache: int | None
) -> tuple[Value, ...]:
    """What the planner chose, in the order of the command line; nothing that somebody set."""
    ask, reasons = chosen.ask, chosen.reasons
    found: dict[str, tuple[Scalar, str]] = {}
    if candidate.mlx:
        if not candidate.settings.set_by_hand("slots"):
            found["decodeConcurrency"] = (ask.slots, reasons.get("slots", ""))
    else:
        found["context"] = (ask.context, reasons.get("context", ""))
        found["slots"] = (ask.slots, reasons.get("slots", ""))
        found["kvCache"] = (ask.kv, reasons.get("kvCache", ""))
        found |= _offload_values(candidate, chosen.placed.offload, names)
        if ask.swa_full:
            found["swaFull"] = (True, reasons.get("swaFull", ""))
        if prompt_cache is not None and prompt_cache < PROMPT_CACHE_MIB:
            found["cacheRamMib"] = (prompt_cache, "what is spare in RAM, shared by the servers of this host")
        found |= _spec_values(candidate, chosen)
    settings = candidate.settings
    for name, value in settings.kept.items():
        if name in found or name in PLANNED_OFFLOAD or name == "cacheRamMib":
            found[name] = (value, _KEPT)
    return tuple(
        Value(name, value, "planner", reason)
        for name, (value, reason) in found.items()
        if not settings.set_by_hand(name)
    )


def _spec_values(candidate: Candidate, chosen: Chosen) -> dict[str, tuple[Scalar, str]]:
    """`spec.type` where the planner leaves a drafter out that the catalog wants: the base algorithm, or none.

    A launch that takes this value uses no draft model beside it.
    """
    wanted, got = candidate.speculation.wanted, chosen.ask.spec
    if candidate.speculation.forced or (wanted.types, wanted.draft_model) == (got.types, got.draft_model):
        return {}
    why = next((note for note in (*chosen.notes, *candidate.speculation.notes) if "left out" in note), _KEPT)
    return {"spec.type": (",".join(got.types) or "none", why)}


def _offload_values(candidate: Candidate, offload: Offload, names: tuple[str, ...]) -> dict[str, tuple[Scalar, str]]:
    """All of the offload or none of it: a part would silently turn the engine's own fit off."""
    question = candidate.question
    found: dict[str, tuple[Scalar, str]] = {}
    if candidate.settings.sets_offload:
        if has_flag(question, "--fit", "-fit"):
            found["fit"] = ("off", "layers are placed by hand, which the engine's own fit does not work with")
        return found
    if not offload.decided or candidate.settings.keeps_offload:
        return found
    why = _offload_reason(offload)
    if names and len(names) > 1 and offload.cards:
        found["device"] = (",".join(names[card] for card in offload.cards), _cards_reason(offload, len(names)))
    found["nGpuLayers"] = (-1 if offload.n_gpu_layers is None else offload.n_gpu_layers, why)
    if offload.cpu_moe:
        found["cpuMoe"] = (True, why)
    elif offload.n_cpu_moe:
        found["nCpuMoe"] = (offload.n_cpu_moe, why)
    if offload.split and names:
        found["tensorSplit"] = (",".join(str(share) for share in offload.split), "in proportion to free memory")
    if has_flag(question, "--fit", "-fit"):
        found["fit"] = ("off", "gezelctl places the layers; the engine's own fit would move them again")
    return found


def _offload_reason(offload: Offload) -> str:
    if offload.cpu_moe:
        return "the experts do not fit on the GPU, everything else does"
    if offload.n_cpu_moe:
        return f"experts of the first {offload.n_cpu_moe} layers in RAM, the rest fits on the GPU"
    if offload.full:
        return "everything fits on the GPU"
    return f"{offload.n_gpu_layers} layers fit on the GPU, the rest is in RAM"


def _cards_reason(offload: Offload, count: int) -> str:
    if len(offload.cards) == 1:
        return "everything fits on this GPU"
    return f"{len(offload.cards)} of {count} GPUs together"


def server_estimate(candidate: Candidate, chosen: Chosen, host: HostMemory, prompt_cache: int) -> ServerEstimate:
    """The figures of a chosen launch."""
    demand = chosen.placed.demand
    cards = {card.id: size for card, size in zip(host.cards, demand.cards, strict=True) if size}
    return ServerEstimate(
        basis=candidate.price.basis,
        total_bytes=demand.total,
        ram_bytes=demand.ram,
        gpu_bytes=cards,
        figures=chosen.placed.figures,
        context=chosen.ask.context,
        slots=chosen.ask.slots,
        kv_cache=chosen.ask.kv,
        prompt_cache_bytes=prompt_cache * MIB,
    )

"""Prices without a header: the catalog's figures, or the size of the files alone (reference behaviour 7.1, 7.3)."""

from __future__ import annotations

import msgspec

from gezelctl.engines.llama_cpp.planner import moe
from gezelctl.engines.llama_cpp.planner.budget import GIB, KIB, MIB, HostMemory
from gezelctl.engines.llama_cpp.planner.kvchoice import scale_from_f16
from gezelctl.engines.llama_cpp.planner.ladder import ALLOWANCE, clamp, widest
from gezelctl.engines.llama_cpp.planner.placement import uses_device
from gezelctl.engines.llama_cpp.planner.settings import Settings
from gezelctl.engines.llama_cpp.planner.types import Ask, Basis, Demand, Figures, LaunchQuestion, Offload, Placed, Room
from gezelctl.gguf.types import GgufSummary

MLX_PROMPT_CACHE_MIB = 2048
"""What an MLX server keeps of finished prompts when nobody says."""
_UNKNOWN_WEIGHTS = 8 * GIB
_MOE_RESIDUE_PERCENT = 15
"""What of a mixture of experts must be on the device when its tensors are not known."""
_DRAFT_TOKEN_BYTES = {"draft-mtp": 0, "draft-eagle3": 4 * KIB, "draft-dflash": 24 * KIB, "draft-dspark": 24 * KIB}
"""KV bytes per token at f16 by how such drafters are built: no cache of their own, one layer, a handful of layers."""


def resident_bytes(weights: int, mmproj: int = 0, draft: int = 0) -> int:
    """Loaded footprint of a llama.cpp model without its KV cache.

    Projector and drafter count only when they are loaded, and once: `weights` is the GGUF or the sum of its shards.
    """
    size = weights + mmproj + draft
    return (size * 11 + 5) // 10 + 256 * MIB + (384 * MIB if mmproj else 0)


def resident_bytes_mlx(weights: int) -> int:
    """Loaded footprint of an MLX model without its KV cache."""
    return (weights * 102 + 50) // 100 + GIB


def heuristic_token_bytes(weights: int) -> float:
    """KV bytes per token at f16 when nothing but the size of the weights is known."""
    return min(max(weights * 5 / 1e6, 40 * KIB), 400 * KIB)


def draft_token_bytes(types: tuple[str, ...], weights: int) -> float:
    """KV bytes per token at f16 of a drafter whose header is not known."""
    known = [_DRAFT_TOKEN_BYTES[name] for name in types if name in _DRAFT_TOKEN_BYTES]
    return max(known) if known else heuristic_token_bytes(weights)


def is_moe(gguf: GgufSummary | None, tags: tuple[str, ...]) -> bool:
    """By header, else by the catalog's tags."""
    if gguf is not None:
        return gguf.integer("expert_count") > 1
    return any(tag == "moe" or "expert" in tag for tag in tags)


class CatalogPrice:
    """What asks cost by the catalog. Compute buffers are what `ALLOWANCE` leaves beside the caches."""

    def __init__(self, question: LaunchQuestion, host: HostMemory, settings: Settings) -> None:
        self._host = host
        self._question = question
        self._settings = settings
        files = question.files
        sizes = {role: sum(f.size_bytes for f in files if f.role == role) for role in ("mmproj", "draft")}
        listed = sum(f.size_bytes for f in files if f.role not in sizes)
        header = question.gguf.file_bytes if question.gguf else 0
        self._mlx = question.payload.engine == "mlx"
        self._weights = header or question.payload.approx_size_bytes or listed or _UNKNOWN_WEIGHTS
        self._mmproj = sizes["mmproj"] if question.server.vision else 0
        self._draft = question.draft_bytes or sizes["draft"]
        model = question.model
        self.basis: Basis = "catalog" if model.kv_bytes_per_token_f16 else "heuristic"
        self._token = model.kv_bytes_per_token_f16 or heuristic_token_bytes(self._weights)
        self._fixed = int(model.kv_fixed_bytes_f16)
        self._moe = is_moe(question.gguf, model.tags)
        self.device = uses_device(question, host)
        self._mlx_cache = (settings.integer("promptCacheMib") or MLX_PROMPT_CACHE_MIB) * MIB if self._mlx else 0

    def _loaded(self, ask: Ask) -> tuple[int, float]:
        """(resident bytes, KV bytes per token of one slot) of an ask."""
        draft = self._draft if ask.spec.draft_model else 0
        scale = 1.0 if self._mlx else scale_from_f16(ask.kv)
        token = self._token * scale + (draft_token_bytes(ask.spec.types, draft) if draft else 0)
        if self._mlx:
            resident = self._question.payload.resident_bytes or resident_bytes_mlx(self._weights)
            return resident + self._mlx_cache, token
        measured = self._question.payload.resident_bytes
        extra = resident_bytes(0, self._mmproj, draft) - 256 * MIB
        return (measured + extra if measured else resident_bytes(self._weights, self._mmproj, draft)), token

    def figures(self, ask: Ask) -> Figures:
        """Bytes by purpose; the fixed part is per slot and does not shrink with the cache type."""
        resident, token = self._loaded(ask)
        cache = int(token * ask.context * ask.slots) + self._fixed * ask.slots
        draft = self._draft if ask.spec.draft_model else 0
        return Figures(
            weights_bytes=resident - self._mmproj - draft,
            context_bytes=cache,
            compute_bytes=int(cache / ALLOWANCE) + 1 - cache,
            draft_bytes=draft,
            projector_bytes=self._mmproj,
        )

    def resident(self, ask: Ask) -> int:
        return self._loaded(ask)[0]

    def slot_bytes(self, ask: Ask) -> int:
        """Cache of one slot at the ask's window."""
        return int(self._loaded(ask)[1] * ask.context) + self._fixed

    def notes(self) -> tuple[str, ...]:
        """How far these prices can be trusted."""
        figures = "file sizes" if self.basis == "heuristic" else "the catalog's figures"
        exact = f"memory is estimated from {figures}; reading the header makes it exact"
        return (exact, *moe.starved_notes(self._question.starved))

    def full_swa_differs(self) -> bool:
        """Without a header the layout of windowed layers is not known, and nothing is decided about it."""
        return False

    def fit(self, ask: Ask, room: Room, *, fast: bool = False) -> Placed | None:
        """Where an ask would lie in what is free, None when it does not fit.

        On a discrete host the engine divides a model over cards and RAM itself. How is not known without a header, so
        only a server that has the cards to itself may spill (reference behaviour 7.12).
        """
        free, figures = room.free, self.figures(ask)
        total = sum(getattr(figures, name) for name in Figures.__struct_fields__)
        nowhere = tuple(0 for _ in free.cards)
        if not free.cards or not self.device:
            return Placed(Demand(nowhere, total), Offload(), figures) if total <= free.ram else None
        if self._moe and not self._settings.sets_offload:
            return self._fit_moe(ask, figures, total, room, fast=fast)
        return self._spilled(figures, total, room, fast=fast)

    def _spilled(self, figures: Figures, total: int, room: Room, *, fast: bool) -> Placed | None:
        """On the cards, and what they cannot hold in RAM where the engine's own fit puts it."""
        free = room.free
        spill = total - sum(free.cards)
        if spill <= 0:
            return Placed(Demand(_spread(total, free.cards), 0), self._offload(), figures)
        if not room.alone or fast or spill > free.ram:
            return None
        return Placed(Demand(free.cards, spill), self._offload(), figures)

    def _offload(self) -> Offload:
        """The engine's own, or what a running launch has and keeps."""
        if not self._settings.keeps_offload:
            return Offload()
        return Offload(
            decided=True,
            n_gpu_layers=self._settings.integer("nGpuLayers"),
            n_cpu_moe=self._settings.integer("nCpuMoe") or 0,
            cpu_moe=self._settings.flag("cpuMoe", default=False),
        )

    def _fit_moe(self, ask: Ask, figures: Figures, total: int, room: Room, *, fast: bool) -> Placed | None:
        """All experts in RAM, or what the engine's own fit makes of them where RAM does not hold them all.

        Where that ran out of device memory before, the engine's own fit is the step below it.
        """
        step = moe.below(self._question.starved)
        if step is not None and step.n_gpu_layers is None:
            return self._spilled(figures, total, room, fast=fast)
        resident, free = self.resident(ask), room.free
        vram = sum(free.cards)
        plan = moe.plan_moe(vram - (total - resident), resident_bytes=resident)
        if plan is None and total <= vram:
            return Placed(Demand(_spread(total, free.cards), 0), Offload(), figures)
        residue = resident * _MOE_RESIDUE_PERCENT // 100
        on_cards = total - resident + residue
        if fast or on_cards > vram or resident - residue > free.ram:
            return self._spilled(figures, total, room, fast=fast)
        offload = Offload(decided=True, n_gpu_layers=moe.ALL_LAYERS, cpu_moe=True)
        return Placed(Demand(_spread(on_cards, free.cards), resident - residue), offload, figures)

    def window(self, ask: Ask, low: int, high: int, room: Room, *, fast: bool = False) -> int:
        """The largest window from `low` to `high` that fits, 0 when none does (reference behaviour 7.7)."""
        resident, token = self._loaded(ask)
        free = room.free
        cards = sum(free.cards) if self.device else 0
        only_cards = bool(free.cards) and self.device and (fast or not (room.alone or self._moe))
        budget = cards if only_cards else cards + free.ram
        granted = clamp(
            high,
            ask.slots,
            token_bytes=token,
            resident_bytes=resident + int(self._fixed * ask.slots / ALLOWANCE),
            budget_bytes=budget,
            floor=min(low, high),
        )
        asked = msgspec.structs.replace

        def fits(window: int) -> bool:
            return self.fit(asked(ask, context=window), room, fast=fast) is not None

        return widest(min(low, granted), granted, fits)


def _spread(total: int, free: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes over cards in proportion to what is free there, the engine's own default."""
    room = sum(free)
    if room <= 0:
        return tuple(0 for _ in free)
    shares, left = [], total
    for size in free[:-1]:
        shares.append(min(left, -(-total * size // room)))
        left -= shares[-1]
    return (*shares, left)

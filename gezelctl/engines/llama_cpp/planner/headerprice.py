"""Exact prices from the file's header: the memory model of llama.cpp over the cards and RAM of a host."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gezelctl.engines.llama_cpp.context import CACHE_TYPES, MAX_SLOTS, ContextRequest
from gezelctl.engines.llama_cpp.context import Device as EngineDevice
from gezelctl.engines.llama_cpp.geometry import read_geometry
from gezelctl.engines.llama_cpp.memory import (
    CUDA_OVERHEAD_BYTES,
    Drafter,
    Extras,
    MemoryEstimate,
    Projector,
    estimate,
)
from gezelctl.engines.llama_cpp.planner import moe
from gezelctl.engines.llama_cpp.planner import speculation as spec
from gezelctl.engines.llama_cpp.planner.budget import HostMemory
from gezelctl.engines.llama_cpp.planner.catalogprice import draft_token_bytes, is_moe, resident_bytes
from gezelctl.engines.llama_cpp.planner.ladder import widest
from gezelctl.engines.llama_cpp.planner.placement import device_sets, split_shares, uses_device
from gezelctl.engines.llama_cpp.planner.settings import Settings
from gezelctl.engines.llama_cpp.planner.types import Ask, Basis, Demand, Figures, LaunchQuestion, Offload, Placed, Room

_DEFAULT_BATCH, _DEFAULT_UBATCH = 2048, 512
_ASYNC = frozenset({"cuda", "rocm"})
_STAGES = frozenset({"cuda", "rocm", "vulkan"})
_METAL = EngineDevice("MTL0")
Estimates = dict[tuple[int, int, int, int, ContextRequest], MemoryEstimate]
"""Estimates by header, drafter and its block, projector bytes and request. Headers are told apart by identity."""


class HeaderPrice:
    """What asks cost by the header. `names` are the engine's device names in the order of the host's cards.

    `seen` is shared by the servers of a planning, many of which may serve the same model.
    """

    basis: Basis = "header"

    def __init__(
        self, question: LaunchQuestion, host: HostMemory, settings: Settings, names: tuple[str, ...], seen: Estimates
    ) -> None:
        if question.gguf is None:
            raise ValueError(f"{question.name}: an exact price needs a header")
        self._gguf = question.gguf
        self._question = question
        self._settings = settings
        self._names = names
        self._accelerator = question.server.backend.accelerator
        self.device = uses_device(question, host)
        self._shared = host.shape != "discrete"
        self._moe = is_moe(question.gguf, ())
        self._seen = seen
        self._mmproj = self._projector_bytes() if question.server.vision else 0

    def _projector_bytes(self) -> int:
        header = self._question.mmproj_gguf
        listed = sum(f.size_bytes for f in self._question.files if f.role == "mmproj")
        return header.weights.total_bytes if header else listed

    def notes(self) -> tuple[str, ...]:
        """What is known to be inexact."""
        return (*read_geometry(self._gguf).notes, *moe.starved_notes(self._question.starved))

    def full_swa_differs(self) -> bool:
        """Whether the model has windowed layers, so that a full cache is a choice."""
        return read_geometry(self._gguf).window > 0

    def slot_bytes(self, ask: Ask) -> int:
        """Cache and state of one slot at the ask's window."""
        one = msgspec.structs.replace(ask, slots=1, spec=spec.PLAIN)
        return self._estimate(one, Offload()).context_bytes

    def resident(self, ask: Ask) -> int:
        """All but the cache, at the ask's window."""
        found = self._estimate(ask, Offload())
        return found.total_bytes - found.context_bytes

    def window(self, ask: Ask, low: int, high: int, room: Room, *, fast: bool = False) -> int:
        """The largest window from `low` to `high` that fits, 0 when none does."""

        def fits(window: int) -> bool:
            asked = msgspec.structs.replace(ask, context=window)
            return self.fit(asked, room, fast=fast) is not None

        return widest(low, high, fits)

    def fit(self, ask: Ask, room: Room, *, fast: bool = False) -> Placed | None:
        """Where an ask would lie in what is free, None when it does not fit.

        On cards: everything on one, else on all of them, else as many experts or layers as fit. `fast` allows no part
        of the model in RAM.
        """
        free = room.free
        if not free.cards or not self.device or self._shared:
            return self._fit_ram(ask, free)
        if self._settings.sets_offload or self._settings.keeps_offload:
            return self._fit_as_set(ask, free)
        step = moe.below(self._question.starved)
        if step is not None:
            return None if fast else self._fit_step(step, ask, free)
        sets = device_sets(free.cards, tight=room.tight) if self._names else [tuple(range(len(free.cards)))]
        for cards in sets:
            offload = self._on_cards(cards, free)
            placed = self._place(ask, offload, free)
            if placed is not None:
                return placed
        if fast:
            return None
        return self._fit_experts(ask, free) if self._moe else self._fit_layers(ask, free)

    def _on_cards(self, cards: tuple[int, ...], free: Demand) -> Offload:
        """Everything on these cards."""
        split = split_shares([free.cards[card] for card in cards]) if len(cards) > 1 else ()
        return Offload(decided=True, cards=cards, split=split, n_gpu_layers=moe.ALL_LAYERS)

    def _partial_sets(self, free: Demand) -> list[Offload]:
        """Where a model that does not fit on the cards goes: over all of them, else on the emptiest."""
        everything = tuple(range(len(free.cards)))
        emptiest = max(everything, key=lambda card: (free.cards[card], -card))
        sets = [everything, (emptiest,)] if self._names and len(everything) > 1 else [everything]
        return [self._on_cards(cards, free) for cards in sets]

    def _fit_experts(self, ask: Ask, free: Demand) -> Placed | None:
        """The experts of as few layers as possible in RAM; the first guess comes from the tensor sums."""
        for base in self._partial_sets(free):
            placed = self._fewest(ask, base, free)
            if placed is not None:
                return placed
        return self._fit_layers(ask, free)

    def _fit_step(self, step: moe.MoePlan, ask: Ask, free: Demand) -> Placed | None:
        """The step of the ladder below a launch that ran out of memory: all experts in RAM, then the engine's own fit.

        That one measures what is free when it starts; whether the host holds the model at all is told by layers.
        """
        if step.n_gpu_layers is not None:
            bases = (msgspec.structs.replace(base, cpu_moe=True) for base in self._partial_sets(free))
            placed = next((found for base in bases if (found := self._place(ask, base, free))), None)
            if placed is not None:
                return placed
        layers = self._fit_layers(ask, free)
        return msgspec.structs.replace(layers, offload=Offload()) if layers else None

    def _fewest(self, ask: Ask, base: Offload, free: Demand) -> Placed | None:
        count = self._gguf.block_count
        whole = self._place(ask, msgspec.structs.replace(base, cpu_moe=True), free)
        if whole is None:
            return None
        for n_cpu_moe in range(self._first_guess(ask, base, free), count):
            placed = self._place(ask, msgspec.structs.replace(base, n_cpu_moe=n_cpu_moe), free)
            if placed is not None:
                return placed
        return whole

    def _first_guess(self, ask: Ask, base: Offload, free: Demand) -> int:
        """Layers whose experts must leave the cards by tensor bytes alone; the exact price then says if more must."""
        rooms = tuple(free.cards[card] for card in base.cards)
        found = self._estimate(ask, base)
        experts = [layer.expert_bytes for layer in self._gguf.weights.layers]
        others = sum(device.total_bytes for device in found.devices[1:]) - sum(experts)
        split = moe.ExpertSplit(others, tuple(experts))
        plan = moe.plan_moe(sum(rooms), resident_bytes=0, split=split, compute_bytes=0, margin_bytes=0)
        if plan is None or plan.full_gpu_residency:
            return 1  # in sum it fits, so that only the division over the cards is in the way
        return len(experts) if plan.cpu_moe else plan.n_cpu_moe

    def _fit_layers(self, ask: Ask, free: Demand) -> Placed | None:
        """As many whole layers as fit on the cards, the rest in RAM; of a mixture of experts, layers without them."""
        for whole in self._partial_sets(free):
            base = msgspec.structs.replace(whole, cpu_moe=self._moe)
            low, high, best = 0, self._gguf.block_count + 1, None
            while low <= high:
                layers = (low + high) // 2
                placed = self._place(ask, msgspec.structs.replace(base, n_gpu_layers=layers), free)
                if placed is None:
                    high = layers - 1
                else:
                    best, low = placed, layers + 1
            if best is not None:
                return best
        return None

    def _fit_as_set(self, ask: Ask, free: Demand) -> Placed | None:
        return self._place(ask, self.as_set(free), free)

    def as_set(self, free: Demand) -> Offload:
        """The offload that somebody set, or that a running launch has."""
        settings = self._settings
        asked = [name for name in settings.text("device").split(",") if name]
        cards = tuple(self._names.index(name) for name in asked if name in self._names)
        if not cards:
            cards = tuple(range(len(free.cards)))
        split = tuple(int(float(part)) for part in settings.text("tensorSplit").replace("/", ",").split(",") if part)
        if settings.text("splitMode") == "none":
            cards, split = (cards[min(settings.integer("mainGpu") or 0, len(cards) - 1)],), ()
        return Offload(
            decided=not settings.sets_offload,
            cards=cards,
            split=split or (split_shares([free.cards[card] for card in cards]) if len(cards) > 1 else ()),
            n_gpu_layers=settings.integer("nGpuLayers"),
            n_cpu_moe=settings.integer("nCpuMoe") or 0,
            cpu_moe=settings.flag("cpuMoe", default=False),
        )

    def _fit_ram(self, ask: Ask, free: Demand) -> Placed | None:
        """One pool: unified memory, or a server that computes on the CPU."""
        found, unread = self._estimate(ask, Offload()), self._unread_drafter(ask)
        demand = Demand(tuple(0 for _ in free.cards), found.total_bytes + unread)
        return Placed(demand, Offload(), _figures(found, unread)) if free.covers(demand) else None

    def _place(self, ask: Ask, offload: Offload, free: Demand) -> Placed | None:
        found = self._estimate(ask, offload)
        on_cards = dict(zip(offload.cards, (device.total_bytes for device in found.devices[1:]), strict=True))
        unread = self._unread_drafter(ask)
        on_cards[offload.cards[0]] += unread
        demand = Demand(tuple(on_cards.get(card, 0) for card in range(len(free.cards))), found.devices[0].total_bytes)
        return Placed(demand, offload, _figures(found, unread)) if free.covers(demand) else None

    def _estimate(self, ask: Ask, offload: Offload) -> MemoryEstimate:
        extras = self._extras(ask)
        request = self._request(ask, offload)
        drafter = (id(extras.drafter.summary), extras.drafter.block_tokens) if extras.drafter else (0, 0)
        key = (id(self._gguf), *drafter, self._mmproj, request)
        if key not in self._seen:
            self._seen[key] = estimate(self._gguf, request, extras)
        return self._seen[key]

    def detail(self, ask: Ask, offload: Offload, change: Callable[[ContextRequest], ContextRequest]) -> MemoryEstimate:
        """Everything behind a price (for `engines.llama_cpp.fitting`), of a request that `change` may alter."""
        return estimate(self._gguf, change(self._request(ask, offload)), self._extras(ask))

    def _request(self, ask: Ask, offload: Offload) -> ContextRequest:
        settings = self._settings
        count = self._gguf.block_count
        return ContextRequest(
            slot_tokens=ask.context,
            slots=min(ask.slots, MAX_SLOTS),
            unified=settings.flag("kvUnified", default=False),
            n_batch=settings.integer("batchSize") or _DEFAULT_BATCH,
            n_ubatch=settings.integer("ubatchSize") or _DEFAULT_UBATCH,
            type_k=ask.kv if ask.kv in CACHE_TYPES else "f16",
            type_v=ask.kv if ask.kv in CACHE_TYPES else "f16",
            flash_attn=settings.text("flashAttn") != "off",
            swa_full=ask.swa_full,
            kv_offload=settings.flag("kvOffload", default=True),
            embedding=settings.flag("embeddings", default=False),
            snapshots=spec.snapshot_tokens(ask.spec),
            draft_tokens=spec.draft_tokens(ask.spec),
            n_gpu_layers=offload.n_gpu_layers,
            devices=self._devices(offload),
            tensor_split=tuple(float(share) for share in offload.split),
            cpu_moe_layers=count if offload.cpu_moe else offload.n_cpu_moe,
            load_mtp=spec.loads_mtp(ask.spec),
        )

    def _devices(self, offload: Offload) -> tuple[EngineDevice, ...]:
        """Without free memory: wherever it would decide, a split is given."""
        if self._shared:
            return (_METAL,) if self.device else ()
        return tuple(
            EngineDevice(
                name=self._names[card] if self._names else f"card {card}",
                overhead_bytes=CUDA_OVERHEAD_BYTES if self._accelerator in _ASYNC else 0,
                async_events=self._accelerator in _ASYNC,
                stages_weights=self._accelerator in _STAGES,
            )
            for card in offload.cards
        )

    def _extras(self, ask: Ask) -> Extras:
        header = self._question.draft_gguf if ask.spec.draft_model else None
        return Extras(
            projector=Projector(self._mmproj) if self._mmproj else None,
            drafter=Drafter(header, block_tokens=spec.block_tokens(ask.spec)) if header else None,
            prompt_cache_bytes=0,
        )

    def _unread_drafter(self, ask: Ask) -> int:
        """Weights and cache of a drafter whose header is not known; it lies on the first device."""
        question = self._question
        if not ask.spec.draft_model or question.draft_gguf is not None:
            return 0
        size = question.draft_bytes or sum(f.size_bytes for f in question.files if f.role == "draft")
        return resident_bytes(size) + int(draft_token_bytes(ask.spec.types, size) * ask.context * ask.slots)


def _figures(found: MemoryEstimate, unread: int) -> Figures:
    return Figures(
        weights_bytes=found.weights_bytes,
        context_bytes=found.context_bytes,
        compute_bytes=found.compute_bound_bytes + found.output_bytes,
        draft_bytes=found.draft_bytes + unread,
        projector_bytes=found.projector_bytes,
        other_bytes=found.overhead_bytes + found.prompt_cache_bytes,
    )

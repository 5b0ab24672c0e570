"""One model on one host: what it takes, what fits at which context and slots, and how it would be launched."""

from __future__ import annotations

from typing import Literal

import msgspec

from gezelctl.engines.llama_cpp.context import CACHE_TYPES, ContextRequest, plan_context
from gezelctl.engines.llama_cpp.memory import MemoryEstimate
from gezelctl.engines.llama_cpp.planner.budget import HostMemory
from gezelctl.engines.llama_cpp.planner.decide import decide
from gezelctl.engines.llama_cpp.planner.headerprice import HeaderPrice
from gezelctl.engines.llama_cpp.planner.kvchoice import FULL
from gezelctl.engines.llama_cpp.planner.moe import ALL_LAYERS
from gezelctl.engines.llama_cpp.planner.one import Candidate
from gezelctl.engines.llama_cpp.planner.placement import engine_names, split_shares
from gezelctl.engines.llama_cpp.planner.settings import Settings
from gezelctl.engines.llama_cpp.planner.speculation import PLAIN, speculation_of
from gezelctl.engines.llama_cpp.planner.types import Ask, Demand, LaunchAnswer, LaunchQuestion, Offload, Room
from gezelctl.errors import GgufError

TABLE_SLOTS = (1, 2, 4, 8)
_TABLE_FROM = 4096


class Asked(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What models.yaml has no word for: the engine's own total context, and types of K and V apart."""

    context_total: int = 0
    type_k: str = ""
    type_v: str = ""


class FitCell(msgspec.Struct, frozen=True, rename="camel"):
    """One context (tokens per slot) and slot count: bytes in total, and where they fit.

    "device" = all on the GPU (or in the one memory that there is), "offload" = a part in RAM beside the GPU.
    """

    context: int
    slots: int
    total_bytes: int
    fits: Literal["device", "offload", "no"]


class FitReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`estimate` is of what was asked for, completed by the launch; the table has its KV type and drafter.

    `kv_cache` is the type of both, or K/V. `question` is what the planner was asked.
    """

    question: LaunchQuestion
    estimate: MemoryEstimate
    answer: LaunchAnswer
    kv_cache: str
    table: tuple[FitCell, ...]
    notes: tuple[str, ...] = ()


def fit(question: LaunchQuestion, host: HostMemory, asked: Asked | None = None) -> FitReport:
    """Judge one model on a host that it has for itself.

    The header must be known and name its layers. With a total context, what is not said is llama-server's own default
    (four slots over one pool, an f16 cache, windowed layers in a window, no drafter); the launch is the planner's all
    the same.

    Raises:
        GgufError: for a header without a layer count.
        ValueError: for a request that llama.cpp would abort on.
    """
    if question.gguf is None or not question.gguf.block_count:
        cure = "Use a GGUF file of the whole model."
        raise GgufError("the header names no layer count (block_count)", cure=cure, code="MODEL_INCOMPATIBLE")
    asked = asked or Asked()
    question = _in_models_yaml_words(question, asked)
    devices = question.probe.devices if question.probe else ()
    settings = Settings(question)
    price = HeaderPrice(question, host, settings, engine_names(host.cards, devices), {})
    candidate = Candidate(question, host, settings, price)
    candidate.speculation = speculation_of(question)
    answer = decide([question], host).answers[0]
    room = Room(Demand(tuple(card.usable_bytes for card in host.cards), host.ram_bytes), alone=True)
    ask = _as_engine(candidate, asked) if asked.context_total else _as_launched(candidate, answer)
    offload = _offload(price, settings, answer, room.free)
    found = price.detail(ask, offload, lambda request: _engine_words(request, asked))
    return FitReport(
        question=question,
        estimate=found,
        answer=answer,
        kv_cache=ask.kv if asked.type_k == asked.type_v else f"{asked.type_k}/{asked.type_v}",
        table=_table(candidate, price, ask, room),
        notes=_notes(asked),
    )


def _in_models_yaml_words(question: LaunchQuestion, asked: Asked) -> LaunchQuestion:
    """The question with a total context said as slots and tokens per slot, and with the larger of two cache types."""
    server = question.server
    if asked.type_k and asked.type_v:
        wider = max((asked.type_k, asked.type_v), key=_type_size)
        server = msgspec.structs.replace(server, kv_cache=wider)
    if asked.context_total:
        unified = server.engine_options.get("kvUnified")
        request = ContextRequest(
            n_ctx=asked.context_total,
            slots=server.slots,
            unified=unified if isinstance(unified, bool) else None,
        )
        plan = plan_context(request, 0)
        options = {**server.engine_options, "kvUnified": plan.unified}
        server = msgspec.structs.replace(
            server, context=plan.n_ctx // plan.slots, slots=plan.slots, engine_options=options
        )
    return msgspec.structs.replace(question, server=server)


def _type_size(name: str) -> float:
    block, size = CACHE_TYPES[name]
    return size / block


def _as_engine(candidate: Candidate, asked: Asked) -> Ask:
    """What llama-server does with no more than what was asked for."""
    server = candidate.question.server
    spec = candidate.speculation.ways[0] if server.spec else PLAIN
    context, slots = server.context or asked.context_total, server.slots or 1
    return candidate.ask(slots, context, spec, kv=server.kv_cache or FULL)


def _as_launched(candidate: Candidate, answer: LaunchAnswer) -> Ask:
    """What was asked for, where nothing was said what is launched, and where nothing is launched the least."""
    server, granted = candidate.question.server, answer.estimate
    planned = {value.name: value.value for value in answer.values}
    return candidate.ask(
        server.slots or (granted.slots if granted else 1),
        server.context or (granted.context if granted else candidate.wish.requested),
        answer.spec,
        kv=granted.kv_cache if granted else candidate.kv,
        full=bool(planned.get("swaFull")),
    )


def _offload(price: HeaderPrice, settings: Settings, answer: LaunchAnswer, free: Demand) -> Offload:
    """Where the layers of the breakdown lie; a refused model is shown as if everything were on the cards."""
    if not price.device or not free.cards:
        return Offload()
    if answer.refusal is None:
        return answer.offload
    if settings.sets_offload:
        return price.as_set(free)
    cards = tuple(range(len(free.cards)))
    split = split_shares(free.cards) if len(cards) > 1 else ()
    return Offload(decided=True, cards=cards, split=split, n_gpu_layers=ALL_LAYERS)


def _engine_words(request: ContextRequest, asked: Asked) -> ContextRequest:
    """The planner's request with the total context and the cache types exactly as they were said."""
    if asked.type_k and asked.type_v:
        request = msgspec.structs.replace(request, type_k=asked.type_k, type_v=asked.type_v)
    if asked.context_total:
        request = msgspec.structs.replace(request, n_ctx=asked.context_total, slot_tokens=0)
    return request


def _table(candidate: Candidate, price: HeaderPrice, ask: Ask, room: Room) -> tuple[FitCell, ...]:
    return tuple(
        _cell(price, msgspec.structs.replace(ask, context=context, slots=slots), room)
        for context in _contexts(candidate.wish.native)
        for slots in TABLE_SLOTS
    )


def _contexts(native: int) -> list[int]:
    """Powers of two from 4,096 below the training context, and that itself."""
    found = []
    context = _TABLE_FROM
    while context < native:
        found.append(context)
        context *= 2
    return [*found, native]


def _cell(price: HeaderPrice, ask: Ask, room: Room) -> FitCell:
    placed = price.fit(ask, room)
    if placed is None:
        return FitCell(ask.context, ask.slots, price.resident(ask) + price.slot_bytes(ask) * ask.slots, "no")
    partly = price.device and bool(room.free.cards) and not placed.offload.full
    return FitCell(ask.context, ask.slots, placed.demand.total, "offload" if partly else "device")


def _notes(asked: Asked) -> tuple[str, ...]:
    if asked.type_k == asked.type_v:
        return ()
    return ("models.yaml has one KV cache type for both: the launch and the table have the larger one",)

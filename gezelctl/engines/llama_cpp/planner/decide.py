"""The launches of all servers of one host, planned together.

Everybody gets the least that they can live with before anybody gets more, smallest first, so that a host with more
memory never refuses what fitted on less. Then, by name: the promised window and slots, with speculation where it costs
nothing; then growth into what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gezelctl.engines.llama_cpp.planner import speculation as spec
from gezelctl.engines.llama_cpp.planner.budget import MIB, HostMemory
from gezelctl.engines.llama_cpp.planner.catalogprice import CatalogPrice
from gezelctl.engines.llama_cpp.planner.headerprice import Estimates, HeaderPrice
from gezelctl.engines.llama_cpp.planner.one import Candidate, Chosen, Price, best_way
from gezelctl.engines.llama_cpp.planner.placement import engine_names
from gezelctl.engines.llama_cpp.planner.refuse import refusal
from gezelctl.engines.llama_cpp.planner.settings import Settings
from gezelctl.engines.llama_cpp.planner.types import (
    Demand,
    HostPlan,
    LaunchAnswer,
    LaunchQuestion,
    PoolUse,
    Refusal,
    Room,
)
from gezelctl.engines.llama_cpp.planner.values import (
    PROMPT_CACHE_MIB,
    has_flag,
    launch_values,
    prompt_cache_mib,
    server_estimate,
)

RAM = "ram"
_NAMED = 5
"""Names of other servers in one note."""


def decide(questions: Sequence[LaunchQuestion], host: HostMemory) -> HostPlan:
    """Plan every server of a host. Equal for equal questions in any order; answers are sorted by name.

    Running servers keep their planned values while everything still fits; if something does not, all are planned anew
    where that lets more servers in.
    """
    ordered = sorted(questions, key=lambda question: question.name)
    if any(question.running for question in ordered):
        kept = _Planning(ordered, host, keep=True).run()
        if not _refusals(kept):
            return kept
        anew = _Planning(ordered, host, keep=False).run()
        return anew if _refusals(anew) < _refusals(kept) else kept
    return _Planning(ordered, host, keep=False).run()


def _refusals(plan: HostPlan) -> int:
    return sum(answer.refusal is not None for answer in plan.answers)


class _Planning:
    """One pass over the servers of a host."""

    def __init__(self, questions: Sequence[LaunchQuestion], host: HostMemory, *, keep: bool) -> None:
        self._host = host
        self._all = Demand(tuple(card.usable_bytes for card in host.cards), host.ram_bytes)
        self._names: dict[str, tuple[str, ...]] = {}
        self._seen: Estimates = {}
        self._candidates = {question.name: self._candidate(question, keep=keep) for question in questions}
        self._free = self._all
        self._held: dict[str, Demand] = {}
        self._on_cards = 0
        self._chosen: dict[str, Chosen] = {}
        self._refused: dict[str, Refusal] = {}
        self._pools: tuple[PoolUse, ...] = ()

    def _candidate(self, question: LaunchQuestion, *, keep: bool) -> Candidate:
        settings = Settings(question, keep=keep)
        devices = question.probe.devices if question.probe else ()
        names = engine_names(self._host.cards, devices)
        self._names[question.name] = names
        price: Price
        if question.gguf is not None and question.gguf.block_count and question.payload.engine == "llama-cpp":
            price = HeaderPrice(question, self._host, settings, names, self._seen)
        else:
            price = CatalogPrice(question, self._host, settings)
        candidate = Candidate(question, self._host, settings, price)
        if question.payload.engine == "llama-cpp":
            found = spec.speculation_of(question)
            candidate.speculation = _kept_ways(found, question) if keep else found
        return candidate

    def run(self) -> HostPlan:
        self._hold_floors()
        self._spread_out()
        for name in self._candidates:
            self._promise(name)
        # The least of everybody may lie less well than what they got; somebody may fit in now.
        for name in self._by_size([name for name in self._refused if not self._candidates[name].speculation.problems]):
            self._promise(name, again=True)
        for name, chosen in tuple(self._chosen.items()):
            grown = self._candidates[name].grown(chosen, self._room(name))
            self._take(name, grown)
        return self._result()

    def _promise(self, name: str, *, again: bool = False) -> None:
        """The promised window and slots of one server; a refused one stays refused unless it is asked `again`."""
        if name in self._refused and not again:
            return
        chosen = best_way(self._candidates[name], self._room(name))
        if chosen is not None:
            self._refused.pop(name, None)
            self._take(name, chosen)
        elif not again:
            self._refuse(name)

    def _take(self, name: str, chosen: Chosen) -> None:
        self._chosen[name] = chosen
        self._hold(name, chosen.placed.demand)

    def _hold(self, name: str, demand: Demand | None) -> None:
        """Replace what a server holds; None = nothing."""
        before = self._held.pop(name, None)
        if before is not None:
            self._free = self._free.plus(before)
            self._on_cards -= any(before.cards)
        if demand is not None:
            self._held[name] = demand
            self._free = self._free.minus(demand)
            self._on_cards += any(demand.cards)

    def _room(self, name: str) -> Room:
        """All that others do not hold; on the cards where it lies already, once others lie on cards as well."""
        own = self._held.get(name)
        if own is None:
            return Room(self._free, alone=not self._on_cards)
        free = self._free.plus(own)
        alone = self._on_cards == any(own.cards)
        if any(own.cards) and not alone:
            free = Demand(
                tuple(size if mine else 0 for size, mine in zip(free.cards, own.cards, strict=True)), free.ram
            )
        return Room(free, alone)

    def _hold_floors(self) -> None:
        """Reserve for each server the least that it can be started with, the smallest first; kept ones before them."""
        for name in self._by_size(list(self._candidates)):
            candidate = self._candidates[name]
            problems = candidate.speculation.problems
            if problems:
                first = problems[0]
                self._refused[name] = Refusal(first.code, first.summary, first.cure, first.field)
                continue
            room = msgspec.structs.replace(self._room(name), tight=True)
            placed = candidate.price.fit(candidate.smallest(), room)
            if placed is None:
                self._refuse(name)
            else:
                self._hold(name, placed.demand)

    def _spread_out(self) -> None:
        """Lay those who were let in over the cards evenly, the largest first; as before when that does not work."""
        before = dict(self._held)
        if len(self._host.cards) < 2:
            return
        for name in before:
            self._hold(name, None)
        for name in sorted(before, key=lambda name: (-before[name].total, name)):
            candidate = self._candidates[name]
            placed = candidate.price.fit(candidate.smallest(), self._room(name))
            if placed is None:
                break
            self._hold(name, placed.demand)
        else:
            return
        for name, demand in before.items():
            self._hold(name, demand)

    def _by_size(self, names: list[str]) -> list[str]:
        """Kept servers first, those with a place of their own before those that the engine spreads; then by size."""

        def size(name: str) -> tuple[bool, bool, int, str]:
            candidate = self._candidates[name]
            least = candidate.smallest()
            needed = candidate.price.resident(least) + candidate.price.slot_bytes(least) * least.slots
            keeps = candidate.settings.keeps
            return not keeps, keeps and candidate.price.basis != "header", needed, name

        return sorted(names, key=size)

    def _refuse(self, name: str) -> None:
        self._hold(name, None)
        residents = {other: demand.total for other, demand in self._held.items()}
        alone = Room(self._all, alone=True)
        self._refused[name] = refusal(self._candidates[name], alone, self._room(name), residents)

    def _result(self) -> HostPlan:
        caches = self._prompt_caches()
        self._pools = self._pool_use()
        answers = tuple(self._answer(name, caches) for name in self._candidates)
        return HostPlan(answers, self._pools)

    def _prompt_caches(self) -> dict[str, int]:
        """MiB of prompt cache for each llama.cpp server that does not say; set ones are taken off the spare first."""
        spare = self._all.ram - sum(demand.ram for demand in self._held.values())
        sharers = []
        for name in self._chosen:
            candidate = self._candidates[name]
            if candidate.mlx or not has_flag(candidate.question, "--cache-ram"):
                continue
            given = candidate.settings.integer("cacheRamMib")
            if given is None and candidate.settings.keeps:
                given = PROMPT_CACHE_MIB
            if given is None:
                sharers.append(name)
            else:
                spare -= max(0, given) * MIB
        return dict.fromkeys(sharers, prompt_cache_mib(spare, len(sharers)))

    def _answer(self, name: str, caches: dict[str, int]) -> LaunchAnswer:
        candidate = self._candidates[name]
        notes = (*candidate.price.notes(), *candidate.speculation.notes)
        if name in self._refused:
            return LaunchAnswer(server=name, refusal=self._refused[name], notes=notes)
        chosen = self._chosen[name]
        found = server_estimate(candidate, chosen, self._host, caches.get(name, 0))
        company = self._company(name)
        together = (f"resident with {company}",) if company else ()
        return LaunchAnswer(
            server=name,
            values=launch_values(candidate, chosen, self._names[name], caches.get(name)),
            estimate=found,
            spec=chosen.ask.spec,
            notes=(*notes, *chosen.notes, *together),
            offload=chosen.placed.offload,
        )

    def _company(self, name: str) -> str:
        """Servers that hold memory in a pool that this one holds memory in, by name and not too many."""
        mine = [pool.servers for pool in self._pools if name in pool.servers]
        named = sorted({other for servers in mine for other in servers[: _NAMED + 1]} - {name})[:_NAMED]
        more = " and more" if any(len(servers) > _NAMED + 1 for servers in mine) else ""
        return ", ".join(named) + more

    def _pool_use(self) -> tuple[PoolUse, ...]:
        held = sorted(self._held.items())
        cards = [
            PoolUse(
                card.id,
                sum(demand.cards[index] for _, demand in held),
                card.usable_bytes,
                tuple(name for name, demand in held if demand.cards[index]),
            )
            for index, card in enumerate(self._host.cards)
        ]
        ram = PoolUse(
            RAM,
            sum(demand.ram for _, demand in held),
            self._all.ram,
            tuple(name for name, demand in held if demand.ram),
        )
        return (*cards, ram)


def _kept_ways(found: spec.Speculation, question: LaunchQuestion) -> spec.Speculation:
    """A running server keeps its way to speculate while that is still possible."""
    if question.running is None or found.forced:
        return found
    kept = tuple(way for way in found.ways if way.types == question.running.spec_types)
    return msgspec.structs.replace(found, ways=(*kept, spec.PLAIN) if kept else found.ways)

"""What changes for a server with its engine build: flags that are gone, and defaults that are others now (E0315)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gezelctl.engines.llama_cpp.flags import LOAD_SWITCHES, FlagSet
from gezelctl.observe.types import EngineProbe, Flag

_FLAG = re.compile(r"--?[A-Za-z][\w-]*\Z")
_MACHINE = frozenset({"--help", "--version", "--cache-dir", "--threads", "--threads-batch"})
"""Flags whose default tells of the machine, or which start nothing."""


def engine_changes(
    before: Sequence[str], after: Sequence[str], probe: EngineProbe, former: Iterable[Flag]
) -> tuple[str, ...]:
    """One sentence for each flag of the command line `before` that the build of `probe` lacks, and for each default
    that differs from those of the `former` build and that the command line `after` leaves to the engine.
    """
    return (*_gone(before, probe), *_defaults(after, probe, former))


def _gone(before: Sequence[str], probe: EngineProbe) -> Iterator[str]:
    flags = FlagSet(probe)
    for name in dict.fromkeys(word for word in before if _FLAG.match(word)):
        if any(name in {*flag.names, *flag.negations} for flag in probe.flags):
            continue
        match = flags.find(name)
        switch = any(name == spelling.name for spelling in LOAD_SWITCHES)
        instead = match.spelling if match else "--load-mode" if switch and "--load-mode" in flags else ""
        told = probe.removed.get(name, "")
        words = f"; {instead} takes its place" if instead else f"; the engine says: {told}" if told else ""
        yield f"this build has no {name} any more{words}"


def _defaults(after: Sequence[str], probe: EngineProbe, former: Iterable[Flag]) -> Iterator[str]:
    given = set(after)
    old = {name: flag for flag in former for name in flag.names}
    for flag in probe.flags:
        was = next((old[name] for name in flag.names if name in old), None)
        if was is None or was.default == flag.default or not was.default or not flag.default:
            continue
        if given & {*flag.names, *flag.negations} or _MACHINE & {*flag.names}:
            continue
        name = next((n for n in flag.names if n.startswith("--")), flag.names[0])
        yield f"the default of {name} changes from {was.default} to {flag.default}"

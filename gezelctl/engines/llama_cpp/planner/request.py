"""Which window a server asks for, and the least it accepts (reference behaviour 7.5)."""

from __future__ import annotations

import msgspec

from gezelctl.engines.llama_cpp.planner.budget import KIB

FLOOR = 64 * KIB
CONSTRAINED_FLOOR = 32 * KIB
WANTED = 64 * KIB
"""Tokens per slot when nobody says more."""
STEP = KIB
"""Windows come in multiples of this."""


class Wish(msgspec.Struct, frozen=True, rename="camel"):
    """Tokens per slot. `target` is the window to grow to where memory allows it, 0 = none.

    `minimum` is the host's own floor. The reference refuses below it, so that a host just above the line between small
    and large refuses what the smaller one serves; here the floor of small hosts is tried before a refusal.
    """

    requested: int
    minimum: int
    native: int
    target: int = 0
    explicit: bool = False

    @property
    def minima(self) -> tuple[int, ...]:
        """The windows to insist on, one after the other."""
        return tuple(dict.fromkeys((self.minimum, self.shortest)))

    @property
    def shortest(self) -> int:
        """The least window that the planner may grant."""
        return self.requested if self.explicit else min(self.minimum, CONSTRAINED_FLOOR)


def host_floor(*, constrained: bool) -> int:
    return CONSTRAINED_FLOOR if constrained else FLOOR


def context_wish(native: int, floor: int, *, explicit: int = 0, authored: int = 0) -> Wish:
    """What to ask for. `native` is the training window (0 = unknown), `authored` the catalog's own window.

    An explicit window is taken as it is, below the floor too, and up to the training window. A model whose training
    window is unknown gets the floor, unless somebody says more: the reference caps even that at the floor.
    """
    if explicit:
        wanted = min(explicit, native) if native else explicit
        return Wish(wanted, wanted, native or wanted, explicit=True)
    if not native:
        wanted = authored or floor
        return Wish(wanted, min(wanted, floor), wanted)
    minimum = min(native, floor)
    requested = min(native, max(authored or WANTED, minimum))
    return Wish(requested, minimum, native, growth_target(native, requested, authored))


def growth_target(native: int, requested: int, authored: int = 0) -> int:
    """The window to grow to: the training window, or the catalog's own limit; 0 when that is not more."""
    target = min(native, authored or native) // STEP * STEP
    return target if target > requested else 0

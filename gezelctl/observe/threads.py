"""Waiting for many things at a time, without the import of concurrent.futures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
_LIMIT = 16


def each(items: Iterable[K], work: Callable[[K], V], limit: int = _LIMIT) -> dict[K, V]:
    """`work` of every item, at most `limit` at a time; in the order of `items`, which are hashable.

    A single item is worked on in the calling thread. `work` says in its value what went wrong; it does not raise.
    """
    wanted = list(items)
    found: dict[K, V] = {}
    queue = iter(wanted)
    lock = threading.Lock()

    def next_one() -> K | None:
        with lock:
            return next(queue, None)

    def loop() -> None:
        while (item := next_one()) is not None:
            found[item] = work(item)

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(min(limit, len(wanted)) - 1)]
    for thread in threads:
        thread.start()
    loop()
    for thread in threads:
        thread.join()
    return {item: found[item] for item in wanted}

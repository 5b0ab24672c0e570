"""Ratios measured in one run: alternate the candidates, compare minima, so that a noisy machine hurts both alike."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """Seconds over all rounds."""

    minimum: float
    median: float
    maximum: float


def measure(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Spread]:
    """Run every candidate once a round, in turn, after one unmeasured round."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(rounds + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            elapsed = time.perf_counter() - start
            if round_number:
                times[name].append(elapsed)
    return {name: Spread(min(t), statistics.median(t), max(t)) for name, t in times.items()}


def process(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Callable[[], None]:
    """A candidate that runs a whole process and fails the bench when the process fails.

    It may keep its bytecode, as an installed package does; only the unmeasured round compiles.
    """
    given = {name: value for name, value in (env or os.environ).items() if name != "PYTHONDONTWRITEBYTECODE"}

    def run() -> None:
        subprocess.run(argv, env=given, check=True, capture_output=True)

    return run


def report(title: str, spreads: Mapping[str, Spread], baselines: Sequence[str]) -> None:
    """Print a table: milliseconds (min / median / max), then the ratio of medians to each baseline."""
    print(f"\n{title}")
    for name, spread in spreads.items():
        ratios = "  ".join(f"{spread.median / spreads[b].median:6.2f} x {b}" for b in baselines if b != name)
        figures = " / ".join(f"{s * 1000:8.1f}" for s in spread)
        print(f"  {name:<44} {figures} ms   {ratios}")

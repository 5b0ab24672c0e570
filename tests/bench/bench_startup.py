"""Cold start: `--version`, and `plan` of 1, 100 and 1,000 running servers that stay as they are, against Python."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.bench.timing import measure, process, report

BARE = "python -c pass"
CLICK = "python -c 'import click'"
BASE = "python -c 'import click, yaml, msgspec'"


def main() -> None:
    python = sys.executable
    gezelctl = [python, "-m", "gezelctl"]
    candidates = {
        BARE: process([python, "-c", "pass"]),
        CLICK: process([python, "-c", "import click"]),
        BASE: process([python, "-c", "import click, yaml, msgspec"]),
        "gezelctl --version": process([*gezelctl, "--version"]),
    }
    with tempfile.TemporaryDirectory(prefix="gezelctl-bench-") as folder:
        for count in (1, 100, 1000):
            argv, env = planned_stack(Path(folder, str(count)), count)
            candidates[f"gezelctl plan, {count} servers"] = process([*gezelctl, *argv], env)
        report("Cold start (15 rounds)", measure(candidates, 15), (BARE, CLICK, BASE))


def planned_stack(folder: Path, count: int) -> tuple[list[str], dict[str, str]]:
    """A models.yaml of `count` servers and a snapshot of a host on which all of them run; the plan is empty."""
    from tests.bench.stack import write_stack

    models, snapshot = write_stack(folder, count)
    env = {**os.environ, "GEZELCTL_STATE_DIR": str(folder / "state"), "GEZELCTL_CACHE_DIR": str(folder / "cache")}
    return ["plan", "-f", str(models), "--host", "bench", "--against", f"snapshot={snapshot}"], env

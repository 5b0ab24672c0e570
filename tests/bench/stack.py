"""A stack of any size on which nothing changes: models.yaml and the snapshot of a host that runs all of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml
from msgspec.structs import replace

from gezelctl.observe.snapshot import to_snapshot
from gezelctl.observe.types import Observed
from gezelctl.plan.planner import make_plan
from tests.plancase import decoded, inputs, named, overlay, plain_host
from tests.simulate import converged


def write_stack(folder: Path, count: int) -> tuple[Path, Path]:
    """(models.yaml, snapshot) of `count` servers of one model each; `plan --host bench` of them is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    servers = [
        {"name": f"s{i:04}", "source": {"path": f"/data/m{i:04}.gguf"}, "port": 10_000 + i, "context": 4096}
        for i in range(count)
    ]
    models = {
        "apiVersion": "gezelctl/v1",
        "stack": "bench",
        "backends": {"cpu": {"engine": "llama-cpp", "binary": "/opt/llama.cpp/b11434/llama-server"}},
        # a budget that never binds; without one, no more than 96 GiB of any host are planned
        "defaults": {"backend": "cpu", "memoryMib": (64 + count) << 10},
        "models": servers,
    }
    observed = observed_host(count)
    given = inputs(folder, models, observed, {}, None)
    settled = converged(make_plan(given), observed)
    snapshot = replace(
        to_snapshot(settled, "bench", "gezelctl bench", "2026-01-12T14:02:00Z", base_dir=str(folder), home="/root"),
        host="bench",
    )
    path, seen = folder / "models.yaml", folder / "snapshot.json"
    path.write_text(yaml.safe_dump(models, sort_keys=False), encoding="utf-8")
    seen.write_bytes(msgspec.json.encode(snapshot))
    return path, seen


def observed_host(count: int) -> Observed:
    """A plain host with `count` local model files of the shape of the 135M model, and memory for all of them."""
    sources = {
        f"/data/m{i:04}.gguf": {
            "path": f"/data/m{i:04}.gguf",
            "kind": "file",
            "sizeBytes": 98_362_432,
            "sha256": f"{i:064x}",
            "fileSystem": 1,
            "gguf": {"header": "smollm2"},
        }
        for i in range(count)
    }
    memory = (64 + count) << 30
    facts = {"host": "bench", "memoryTotalBytes": memory, "memoryAvailableBytes": memory}
    return decoded(overlay(plain_host(), named({"facts": facts, "sources": sources})))

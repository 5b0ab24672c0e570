"""Memory read back from real log lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from gezelctl.observe.memory import device_of, log_tail, parse_memory, read_memory
from gezelctl.observe.types import MemoryReading

CASES = Path(__file__).resolve().parents[1] / "cases" / "observe"
MIB = 1024 * 1024


def _read(name: str) -> MemoryReading:
    reading = parse_memory((CASES / name).read_text().splitlines())
    assert reading is not None
    return reading


def test_a_draft_model_counts_beside_the_target() -> None:
    reading = _read("log-draft.txt")
    assert reading.weights_bytes == {"host": 2 * round(92.10 * MIB)}
    assert reading.context_bytes == {"host": 90 * MIB}
    assert reading.compute_bytes == {"host": 2 * round(16.64 * MIB)}


def test_both_caches_of_a_sliding_window_model_count() -> None:
    assert _read("log-iswa.txt").context_bytes == {"host": round(1.25 * MIB)}


def test_devices_are_apart_and_the_last_value_counts() -> None:
    reading = _read("log-cuda.txt")
    assert reading.weights_bytes == {"CUDA0": round(4403.49 * MIB), "host": round(315.30 * MIB)}
    assert reading.context_bytes == {"CUDA0": round(1024 * MIB) + round(149.62 * MIB)}
    assert reading.compute_bytes == {"CUDA0": 304 * MIB, "host": round(24.01 * MIB)}
    assert reading.output_bytes == {"host": round(0.58 * MIB)}


@pytest.mark.parametrize("log", ["log-draft.txt", "log-iswa.txt", "log-cuda.txt"])
def test_a_load_that_is_repeated_counts_once(log: str) -> None:
    lines = (CASES / log).read_text().splitlines()
    assert parse_memory([*lines, *lines]) == _read(log)


@pytest.mark.parametrize(
    ("buffer", "device"),
    [
        ("CPU", "host"),
        ("CPU_Mapped", "host"),
        ("CPU_REPACK", "host"),
        ("BLAS", "host"),
        ("CUDA_Host", "host"),
        ("Vulkan_Host", "host"),
        ("CUDA0", "CUDA0"),
        ("Vulkan1", "Vulkan1"),
        ("MTL0_Mapped", "MTL0"),
        ("MTL0_Private", "MTL0"),
        ("Metal_Mapped", "Metal"),
        ("RPC0", "RPC0"),
    ],
)
def test_devices_of_buffers(buffer: str, device: str) -> None:
    assert device_of(buffer) == device


def test_a_quiet_log_tells_nothing() -> None:
    assert parse_memory(["0.00.205.784 I srv  llama_server: listening on http://127.0.0.1:1"]) is None


def test_only_this_start_is_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    earlier = (CASES / "log-cuda.txt").read_bytes()
    log.write_bytes(earlier + (CASES / "log-draft.txt").read_bytes() + b"load_tensors: CPU model buffer size = 1 MiB\n")
    reading = read_memory(log, len(earlier), 77)
    assert reading is not None
    assert reading.resident_bytes == 77
    assert reading.weights_bytes == _read("log-draft.txt").weights_bytes
    assert read_memory(tmp_path / "none.log", 0) is None
    assert read_memory(log, 10**9) is None


def test_the_tail_is_of_this_start(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"old\n" + b"".join(b"line %d\n" % i for i in range(50)) + b"\xff no text\n")
    tail = log_tail(log, 4, count=3)
    assert tail == ("line 48", "line 49", "\N{REPLACEMENT CHARACTER} no text")
    assert log_tail(log, 10**6) == ()
    assert log_tail(tmp_path / "none.log", 0) == ()

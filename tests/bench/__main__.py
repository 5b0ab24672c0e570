"""`make bench`: ratios measured in one run. Nothing here is asserted."""

from __future__ import annotations

from tests.bench import bench_gguf, bench_ready, bench_startup

for bench in (bench_startup, bench_gguf, bench_ready):
    bench.main()

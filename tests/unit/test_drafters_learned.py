"""What starts teach: draft models to blame, memory that deviates, flags that an engine change breaks."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gezelctl.engines.llama_cpp.upgrade import engine_changes
from gezelctl.engines.types import LaunchSpec, Value
from gezelctl.errors import UnhealthyError
from gezelctl.execute.learn import DrafterDiedError, blame_drafter, drafter_digest
from gezelctl.observe.types import EngineProbe, Flag, MemoryReading
from gezelctl.plan.measured import deviations
from gezelctl.store.learned import add_broken, clear_broken, pair_key, read_broken, read_measured
from gezelctl.store.types import BrokenDrafter, PlannedMemory
from tests.executing import launch, make_context, make_paths

MIB = 1 << 20
LOADING = "0.00.212.136 I common_speculative_init_result: loading draft model '/d.gguf'"
REFUSED = "0.00.275.584 E common_speculative_init_result: failed to load draft model, '/d.gguf'"
MISSING = "0.00.275.568 E llama_model_load: error loading model: check_tensor_dims: tensor 'blk.3.x' not found"
NO_MEMORY = "0.00.275.568 E ggml_backend_cpu_buffer_type_alloc_buffer: unable to allocate CPU buffer of size 9"


def drafting(path: str = "/d.gguf", origin: str = "catalog", **payload: str) -> LaunchSpec:
    values = (
        Value("spec.type", "draft-simple", "server" if origin == "server" else "catalog"),
        Value("spec.draftModel", path, "catalog"),
    )
    spec = launch()
    return LaunchSpec(
        **{name: getattr(spec, name) for name in ("server", "engine", "backend", "program", "argv", "host", "port")},
        values=values,
        payload=payload or {path: "d" * 64},
        engine_digest="e" * 16,
    )


@pytest.mark.parametrize(
    ("lines", "code", "blamed"),
    [
        ([LOADING, MISSING, REFUSED], "MODEL_INCOMPATIBLE", True),
        ([LOADING], "CRASHED", True),
        ([LOADING, "GGML_ASSERT(x) failed"], "ASSERTION", True),
        ([MISSING], "MODEL_INCOMPATIBLE", False),
        ([], "CRASHED", False),
        ([LOADING, NO_MEMORY], "OOM_HOST", False),
        ([LOADING], "PORT", False),
    ],
)
def test_only_a_start_that_died_of_its_drafter_is_blamed_on_it(
    tmp_path: Path, lines: list[str], code: str, blamed: bool
) -> None:
    paths = make_paths(tmp_path)
    context, _ = make_context(paths, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    error = UnhealthyError("it ended", cure="look", code=code)
    found = blame_drafter(context, drafting(), error, lines, 1)
    assert isinstance(found, DrafterDiedError) == blamed
    assert set(read_broken(paths)) == ({pair_key("e" * 16, "d" * 64)} if blamed else set())
    if not blamed:
        assert found is error


def test_a_launch_without_drafter_is_never_blamed(tmp_path: Path) -> None:
    context, _ = make_context(make_paths(tmp_path))
    error = UnhealthyError("it ended", cure="look", code="CRASHED")
    assert blame_drafter(context, launch(), error, [LOADING, REFUSED], 1) is error


def test_the_digest_is_that_of_a_payload_file_or_of_a_path() -> None:
    assert drafter_digest(drafting("/store/m/sub/d.gguf", **{"m.gguf": "a" * 64, "sub/d.gguf": "b" * 64})) == "b" * 64
    assert drafter_digest(drafting("/else/d.gguf", **{"m.gguf": "a" * 64, "/else/d.gguf": "c" * 64})) == "c" * 64
    assert drafter_digest(launch()) == ""


def test_what_is_forced_is_never_started_without(tmp_path: Path) -> None:
    context, _ = make_context(make_paths(tmp_path))
    error = UnhealthyError("it ended", cure="look", code="CRASHED")
    for origin in ("server", "catalog"):
        found = blame_drafter(context, drafting(origin=origin), error, [LOADING], -11)
        assert isinstance(found, DrafterDiedError)
        assert found.forced == (origin == "server")
        assert "--retry-drafters" in found.cure


def test_a_damaged_memory_of_drafters_is_begun_anew_and_cleared(tmp_path: Path) -> None:
    paths = make_paths(tmp_path)
    paths.state.mkdir(parents=True)
    paths.broken_drafters.write_text("{")
    broken = BrokenDrafter(server="chat", reason="it crashed", when="2026-01-01T00:00:00Z")
    add_broken(paths, "a/b", broken)
    add_broken(paths, "a/c", broken)
    assert read_broken(paths) == {"a/b": broken, "a/c": broken}
    assert clear_broken(paths) == {"chat"}
    assert read_broken(paths) == {}
    assert clear_broken(paths) == frozenset()
    assert read_measured(paths) == {}


def reading(context: int, weights: int, compute: int) -> MemoryReading:
    return MemoryReading(
        weights_bytes={"host": weights},
        context_bytes={"host": context},
        compute_bytes={"host": compute},
        context_rounding_bytes=5243,
    )


PLANNED = PlannedMemory("llama", 100 * MIB, 40 * MIB, 20 * MIB, 160 * MIB)


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ((40 * MIB, 100 * MIB, 20 * MIB), ()),
        ((40 * MIB - 5243, 101 * MIB, 1), ()),
        ((41 * MIB, 100 * MIB, 20 * MIB), ("context took 41.0 MiB, planned were 40.0 MiB",)),
        ((40 * MIB + 5244, 100 * MIB, MIB), (f"context took {40 * MIB + 5244} bytes, planned were {40 * MIB}",)),
        ((40 * MIB, 102 * MIB, MIB), ("weights took 102.0 MiB, planned were 100.0 MiB",)),
        ((40 * MIB, 100 * MIB, 21 * MIB), ("compute took 21.0 MiB, planned were 20.0 MiB",)),
    ],
)
def test_a_deviation_names_both_numbers(measured: tuple[int, int, int], words: tuple[str, ...]) -> None:
    assert deviations(PLANNED, reading(*measured)) == words


@given(st.integers(0, 19 * MIB), st.integers(-MIB, MIB))
def test_less_compute_and_nearly_equal_weights_are_no_deviation(compute: int, weights: int) -> None:
    assert deviations(PLANNED, reading(40 * MIB, 100 * MIB + weights, compute)) == ()


def probe(*flags: Flag, removed: dict[str, str] | None = None) -> EngineProbe:
    return EngineProbe(backend="cpu", engine="llama-cpp", program="/x", flags=flags, removed=removed or {})


def test_an_engine_change_names_what_breaks_and_what_the_launch_leaves_to_a_new_default() -> None:
    former = (
        Flag(("-fa", "--flash-attn"), 1, default="off"),
        Flag(("--ctx-checkpoints",), 1, default="3"),
        Flag(("--draft-max",), 1, default="16"),
    )
    new = probe(
        Flag(("-fa", "--flash-attn"), 1, default="auto"),
        Flag(("--ctx-checkpoints",), 1, default="32"),
        Flag(("--spec-draft-n-max",), 1, default="3"),
        Flag(("--load-mode",), 1, default="auto"),
        removed={"--defrag-thold": "use nothing"},
    )
    before = ("--draft-max", "-1", "--mlock", "--gone", "--defrag-thold", "0.1", "--flash-attn", "on")
    assert engine_changes(before, ("--ctx-checkpoints", "8"), new, former) == (
        "this build has no --draft-max any more; --spec-draft-n-max takes its place",
        "this build has no --mlock any more; --load-mode takes its place",
        "this build has no --gone any more",
        "this build has no --defrag-thold any more; the engine says: use nothing",
        "the default of --flash-attn changes from off to auto",
    )
    assert engine_changes(("--flash-attn", "on"), ("-fa", "on", "--ctx-checkpoints", "8"), new, former) == ()

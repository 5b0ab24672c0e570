"""The offload ladder: what a launch that ran out of device memory is followed by, planned and for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gezelctl.engines.llama_cpp.planner.moe import planned_experts
from gezelctl.engines.types import LaunchSpec, Scalar, Value
from gezelctl.errors import UnhealthyError
from gezelctl.execute.apply import apply_plan
from gezelctl.execute.context import ApplyResult
from gezelctl.execute.learn import StarvedError, blame_memory
from gezelctl.observe.types import Observed, SourceFact
from gezelctl.plan.inputs import PlanInputs
from gezelctl.plan.planner import make_plan
from gezelctl.plan.types import Plan
from gezelctl.store.layout import Paths
from gezelctl.store.learned import add_starved, clear_broken, pair_key, read_starved
from gezelctl.store.types import Starved
from tests import plancase
from tests.executing import Recorder, launch, make_context, make_paths, server_change, sha
from tests.executing import make_plan as plan_of
from tests.plannermake import GIB, experts

MODEL = "/models/moe.gguf"
WEIGHTS = sha(b"moe")
MODELS = {
    "apiVersion": "gezelctl/v1",
    "stack": "lab",
    "backends": {"cuda": {"engine": "llama-cpp", "accelerator": "cuda", "binary": "/opt/llama-server"}},
    "models": [{"name": "chat", "source": {"path": MODEL, "sha256": WEIGHTS}, "backend": "cuda", "port": 8081}],
}
NO_MEMORY = "0.01.2 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: "
NO_MEMORY += "cudaMalloc failed: out of memory"


def host(ram: int = 64, card: int = 24) -> Observed:
    """A host with one card, the model's file, and a CUDA build."""
    cards = {"totalBytes": card * GIB, "freeBytes": card * GIB, "name": "NVIDIA RTX 9000"}
    observed = plancase.decoded(
        plancase.overlay(
            plancase.plain_host(),
            {
                "facts": {
                    "memoryTotalBytes": ram * GIB,
                    "memoryAvailableBytes": (ram - 4) * GIB,
                    "gpus": [{"id": "GPU-0", **cards}],
                },
                "engines": {
                    "cuda": {
                        **plancase.probe_data("llama-server"),
                        "backend": "cuda",
                        "devices": [{"id": "CUDA0", **cards}],
                    }
                },
            },
        )
    )
    header = experts()
    source = SourceFact(path=MODEL, kind="file", size_bytes=header.file_bytes, sha256=WEIGHTS, gguf=header)
    return replace(observed, sources={MODEL: source})


def launched(plan: Plan) -> LaunchSpec:
    found = next(change.launch for change in plan.changes if change.address == "server.chat")
    assert found is not None, plan
    return found


def offload(plan: Plan) -> dict[str, Scalar]:
    names = {"nGpuLayers", "nCpuMoe", "cpuMoe", "fit"}
    return {v.name: v.value for v in launched(plan).values if v.name in names and v.origin == "planner"}


def starve(given: PlanInputs, plan: Plan) -> PlanInputs:
    """The same question after the launch of `plan`, which was shown and agreed to, ran out of memory."""
    spec = launched(plan)
    placed = planned_experts(spec.values)
    assert placed is not None
    died = Starved("chat", "no memory", "2026-01-01T00:00:00Z", placed.n_gpu_layers, placed.n_cpu_moe, placed.cpu_moe)
    observed = replace(given.observed, starved={pair_key(spec.engine_digest, WEIGHTS): died})
    return replace(given, observed=observed, preferred={"chat": spec})


def test_each_step_down_is_planned_and_then_stays(tmp_path: Path) -> None:
    given = plancase.inputs(tmp_path, MODELS, host(), {}, None)
    first = make_plan(given)
    assert offload(first).keys() == {"nGpuLayers", "nCpuMoe", "fit"}
    given = starve(given, first)
    second = make_plan(given)
    assert offload(second) == {"nGpuLayers": -1, "cpuMoe": True, "fit": "off"}
    assert plancase.after(second, given).summary.changes == 0, "also without what was agreed to"
    given = starve(given, second)
    third = make_plan(given)
    assert offload(third) == {}, "the engine's own fit measures what is free"
    assert "--n-gpu-layers" not in launched(third).argv
    assert plancase.after(third, given).summary.changes == 0
    note = "with all experts in RAM, this engine build ran out of device memory: no memory"
    assert note in third.decisions[0].notes


def test_another_build_is_tried_in_full(tmp_path: Path) -> None:
    given = plancase.inputs(tmp_path, MODELS, host(), {}, None)
    first = make_plan(given)
    given = starve(given, first)
    newer = replace(given.observed.engines["cuda"], digest="f" * 16)
    observed = replace(given.observed, engines={**given.observed.engines, "cuda": newer})
    assert offload(make_plan(replace(given, observed=observed, preferred={}))) == offload(first)


def placed(**values: Scalar) -> LaunchSpec:
    return replace(
        launch("chat", "--fake-line", NO_MEMORY, "--fake-crash", "1", timeout_s=20),
        values=tuple(Value(name, value, "planner") for name, value in values.items()),
        payload={"chat.gguf": WEIGHTS},
        engine_digest="e" * 16,
    )


SPLIT = placed(nGpuLayers=-1, nCpuMoe=12)


@pytest.mark.parametrize(
    ("spec", "code", "blamed"),
    [
        (SPLIT, "OOM_DEVICE", True),
        (placed(nGpuLayers=-1, cpuMoe=True), "OOM_DEVICE", True),
        (SPLIT, "OOM_HOST", False),
        (SPLIT, "CRASHED", False),
        (placed(nGpuLayers=-1), "OOM_DEVICE", False),
        (placed(), "OOM_DEVICE", False),
        (replace(SPLIT, values=(*SPLIT.values, Value("nGpuLayers", 20, "server"))), "OOM_DEVICE", False),
    ],
)
def test_only_experts_that_the_planner_placed_are_blamed(
    tmp_path: Path, spec: LaunchSpec, code: str, blamed: bool
) -> None:
    paths = make_paths(tmp_path)
    context, _ = make_context(paths)
    error = UnhealthyError("it ended", cure="use less", code=code)
    found = blame_memory(context, spec, error, [NO_MEMORY], 1)
    assert isinstance(found, StarvedError) == blamed
    assert set(read_starved(paths)) == ({pair_key("e" * 16, WEIGHTS)} if blamed else set())


def run(tmp_path: Path, second: LaunchSpec) -> tuple[ApplyResult, Recorder, Paths]:
    paths = make_paths(tmp_path)
    context, recorder = make_context(paths)
    result = apply_plan(plan_of(server_change(SPLIT)), context, replan=lambda: plan_of(server_change(second)))
    return result, recorder, paths


def test_a_start_without_memory_is_tried_once_more_with_less(tmp_path: Path) -> None:
    second = replace(launch(), values=placed(nGpuLayers=-1, cpuMoe=True).values)
    result, recorder, paths = run(tmp_path, second)
    try:
        assert (result.done, result.exit_code) == (("server.chat",), 0)
        assert "starting it with less of it on the GPU" in recorder.notes()
        died = read_starved(paths)[pair_key("e" * 16, WEIGHTS)]
        assert (died.server, died.n_gpu_layers, died.n_cpu_moe, died.cpu_moe) == ("chat", -1, 12, False)
        assert "cudaMalloc failed" in died.reason
    finally:
        context, _ = make_context(paths)
        apply_plan(plan_of(server_change(second, "delete")), context)


def test_it_is_tried_only_once(tmp_path: Path) -> None:
    result, recorder, paths = run(tmp_path, placed(nGpuLayers=-1, cpuMoe=True))
    assert [f.code for f in result.failed] == ["OOM_DEVICE"]
    assert recorder.notes().count("starting it") == 1
    assert read_starved(paths)[pair_key("e" * 16, WEIGHTS)].cpu_moe, "the next apply goes on from here"


def test_the_same_launch_is_not_tried_again(tmp_path: Path) -> None:
    result, recorder, _ = run(tmp_path, SPLIT)
    assert [f.code for f in result.failed] == ["OOM_DEVICE"]
    assert "starting it" not in recorder.notes()


def test_a_second_chance_for_everything_names_the_servers(tmp_path: Path) -> None:
    paths = make_paths(tmp_path)
    add_starved(paths, "a/b", Starved("chat", "no memory", "2026-01-01T00:00:00Z", -1, 12))
    assert clear_broken(paths) == {"chat"}
    assert read_starved(paths) == {}

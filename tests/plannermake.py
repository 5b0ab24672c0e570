"""Questions, hosts and headers for the tests of the launch planner."""

from __future__ import annotations

from typing import Any

import msgspec

from gezelctl.catalog.types import Model, Origin, Payload, PayloadFile
from gezelctl.config.desired import DesiredServer
from gezelctl.config.model import Backend, Spec
from gezelctl.config.settings import EngineOptions
from gezelctl.engines.llama_cpp.planner import HostMemory, LaunchAnswer, LaunchQuestion, decide, host_memory
from gezelctl.engines.llama_cpp.planner.budget import Held
from gezelctl.gguf.types import GgufSummary, LayerWeights, WeightTable
from gezelctl.observe.types import Device, EngineProbe, Facts, Flag, Gpu

GIB = 1 << 30
MIB = 1 << 20


def facts(
    ram: float, *cards: float, available: float = 0, working_set: float = 0, free: tuple[float, ...] = ()
) -> Facts:
    """A Linux host, or a Mac where a working set is given; sizes in GiB. RAM is free but for a tenth unless said."""
    gpus = tuple(
        Gpu(f"GPU-{index}", "NVIDIA RTX 9000", int(size * GIB), int((free[index] if free else size) * GIB))
        for index, size in enumerate(cards)
    )
    return Facts(
        host="lab",
        os="darwin" if working_set else "linux",
        os_version="",
        arch="arm64" if working_set else "x86_64",
        cpus=8,
        memory_total_bytes=int(ram * GIB),
        memory_available_bytes=int((available or ram * 0.9) * GIB),
        gpus=gpus,
        recommended_working_set_bytes=int(working_set * GIB),
    )


def host(ram: float, *cards: float, held: Held | None = None, **more: Any) -> HostMemory:
    return host_memory(facts(ram, *cards, **more), held)


def probe(
    *cards: float, flags: tuple[str, ...] = ("--fit", "--cache-ram"), spec_types: tuple[str, ...] = ()
) -> EngineProbe:
    """A CUDA build that lists these cards (GiB) as the driver does."""
    devices = tuple(
        Device(f"CUDA{index}", "NVIDIA RTX 9000", int(size * GIB), int(size * GIB)) for index, size in enumerate(cards)
    )
    known = [Flag((name,), 1) for name in flags]
    if spec_types:
        known.append(Flag(("--spec-type",), 1, values=spec_types))
    return EngineProbe(
        backend="b", engine="llama-cpp", program="/opt/llama-server", digest="e1", flags=tuple(known), devices=devices
    )


def dense(layers: int = 32, layer: int = 200 * MIB, context: int = 131_072, **keys: Any) -> GgufSummary:
    """A header of llama's shape with `layer` bytes a layer."""
    table = tuple(LayerWeights(layer) for _ in range(layers))
    return header("llama", layers, table, context, **keys)


def experts(layers: int = 48, dense_bytes: int = 30 * MIB, expert_bytes: int = 512 * MIB, **keys: Any) -> GgufSummary:
    """A header of a mixture of experts."""
    table = tuple(LayerWeights(dense_bytes, expert_bytes, 0, expert_bytes // 3) for _ in range(layers))
    more = {"expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768} | keys
    return header("qwen3moe", layers, table, 262_144, **more)


def header(architecture: str, layers: int, table: tuple[LayerWeights, ...], context: int, **keys: Any) -> GgufSummary:
    named: dict[str, Any] = {
        "context_length": context,
        "block_count": layers,
        "embedding_length": 4096,
        "feed_forward_length": 14_336,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "attention.key_length": 128,
        "attention.value_length": 128,
    } | {key.replace("__", "."): value for key, value in keys.items()}
    edge = 250 * MIB
    inside = sum(part.dense_bytes + part.expert_bytes for part in table)
    return GgufSummary(
        version=3,
        architecture=architecture,
        file_bytes=inside + 2 * edge,
        shards=1,
        values={f"{architecture}.{key}": value for key, value in named.items() if not isinstance(value, list | tuple)},
        arrays={f"{architecture}.{key}": tuple(value) for key, value in named.items() if isinstance(value, list)},
        weights=WeightTable(inside + 2 * edge, 0, 300, edge, edge, edge, tied=False, layers=table),
        vocab_size=128_256,
    )


def question(
    name: str = "chat",
    *,
    size: float = 8,
    gguf: GgufSummary | None = None,
    accelerator: str = "cuda",
    engine: str = "llama-cpp",
    options: dict[str, Any] | None = None,
    spec: Spec | None = None,
    draft: float = 0,
    model: dict[str, Any] | None = None,
    server: dict[str, Any] | None = None,
    **more: Any,
) -> LaunchQuestion:
    """A server `name` of a model of `size` GiB, with a drafter file of `draft` GiB beside it."""
    files = [PayloadFile("m.gguf", "weights", Origin("path", "/m.gguf"), "", int(size * GIB))]
    if draft:
        files.append(PayloadFile("d.gguf", "draft", Origin("path", "/d.gguf"), "", int(draft * GIB)))
    payload = Payload(
        engine=engine,  # type: ignore[arg-type] # a literal
        model_id="m",
        repo="",
        files=tuple(files),
        approx_size_bytes=int(size * GIB),
    )
    backend = msgspec.convert({"engine": engine, "accelerator": accelerator}, Backend)
    described: dict[str, Any] = {"id": "m", "name": "M", "version": "1", "context_window": 131_072} | (model or {})
    given = msgspec.convert(options or {}, EngineOptions)
    return LaunchQuestion(
        server=DesiredServer(
            name=name,
            port=8081,
            host="127.0.0.1",
            backend_name="b",
            backend=backend,
            start_timeout_s=60,
            model="m",
            engine_options={key: getattr(given, key) for key in options or {}},
            spec=spec,
            **(server or {}),
        ),
        model=Model(payloads={engine: payload}, **described),
        payload=payload,
        files=tuple(files),
        gguf=gguf,
        **more,
    )


def answer(asked: LaunchQuestion, on: HostMemory) -> LaunchAnswer:
    """The plan of one server alone on a host."""
    return decide([asked], on).answers[0]


def values(found: LaunchAnswer) -> dict[str, Any]:
    return {value.name: value.value for value in found.values}

"""Measurements of llama.cpp's memory as data, and how they compare with gezelctl's figures."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gezelctl.engines.llama_cpp.context import ContextRequest, Device
from gezelctl.engines.llama_cpp.layout import lay_out
from gezelctl.engines.llama_cpp.memory import Extras, estimate, mtp_context
from gezelctl.gguf.types import GgufSummary
from tests.bench.libllama import Setting, Usage

HOST = "host"


class Run(msgspec.Struct, frozen=True):
    """One setting of one shape and the engine's bytes by device ("host", "RPC0", "RPC1")."""

    shape: str
    setting: Setting
    usage: dict[str, Usage]


class Measurements(msgspec.Struct, frozen=True):
    """The contents of measured.json."""

    build: str
    summaries: dict[str, GgufSummary]
    runs: list[Run]


class Comparison(msgspec.Struct, frozen=True):
    """One device of one run: gezelctl's figures beside the engine's."""

    shape: str
    setting: Setting
    device: str
    context: tuple[int, int]
    weights: tuple[int, int]
    compute: tuple[int, int]
    whole_model: bool
    """The device holds all that is not input: one device or the host alone."""


def request_of(setting: Setting) -> ContextRequest:
    """The request that renders to this setting."""
    per_slot = setting.outputs // setting.slots
    return ContextRequest(
        n_ctx=setting.n_ctx,
        slots=setting.slots,
        unified=setting.unified,
        n_batch=setting.n_batch,
        n_ubatch=setting.n_ubatch,
        type_k=setting.type_k,
        type_v=setting.type_v,
        flash_attn=setting.flash_attn == "on",
        swa_full=setting.swa_full,
        kv_offload=setting.kv_offload,
        op_offload=setting.op_offload,
        embedding=setting.outputs == 0,
        snapshots=setting.rs_seq,
        draft_tokens=max(per_slot - 1, 0),
        n_gpu_layers=setting.ngl,
        devices=tuple(Device(f"RPC{index}", async_events=True) for index in range(setting.devices)),
        tensor_split=setting.split,
        cpu_moe_layers=setting.cpu_moe,
        load_mtp=setting.load_mtp,
    )


def compare(run: Run, summary: GgufSummary) -> Iterator[Comparison]:
    """The devices of one run; a run of the MTP context has the model's weights and its own cache and compute."""
    setting = run.setting
    extras = Extras(prompt_cache_bytes=0, mtp_type_k=setting.type_k, mtp_type_v=setting.type_v)
    layout = lay_out(summary, request_of(setting))
    mtp = mtp_context(layout, extras) if setting.mtp_context else {}
    for index, device in enumerate(estimate(summary, layout.request, extras).devices, start=-1):
        measured = run.usage.get(device.device, Usage(0, 0, 0))
        context, compute = device.context_bytes, device.compute_bound_bytes
        if mtp:
            context, compute = mtp[index]["context_bytes"], mtp[index]["compute_bound_bytes"]
        yield Comparison(
            shape=run.shape,
            setting=setting,
            device=device.device,
            context=(context, measured.context),
            weights=(device.weights_bytes, measured.model),
            compute=(compute, measured.compute),
            whole_model=setting.devices == 0 or (setting.devices == 1 and layout.placement.full),
        )

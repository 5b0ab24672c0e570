"""Where llama.cpp puts weights and layers: llama_model::load_tensors and the tensor classes of src/llama-arch.cpp."""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import accumulate

import msgspec

from gezelctl.engines.llama_cpp import architectures as arch
from gezelctl.engines.llama_cpp.context import ContextRequest
from gezelctl.engines.llama_cpp.geometry import Geometry
from gezelctl.gguf.types import GgufSummary, WeightTable

HOST = -1
"""Index of host memory where others are device indices."""


class Placement(msgspec.Struct, frozen=True, rename="camel"):
    """Device index of every layer (MTP layers included) and of the output head; HOST = host memory."""

    layers: tuple[int, ...]
    output: int

    @property
    def full(self) -> bool:
        """Every layer and the output head are on devices."""
        return HOST not in self.layers and self.output != HOST


def place_layers(request: ContextRequest, block_count: int) -> Placement:
    """Assign layers to devices.

    The output head counts as layer `block_count` and is offloaded first, then layers from the back. Several devices
    share the offloaded ones in order, by the cumulative split; the comparison is in single precision, as in C++.
    """
    everything = block_count + 1
    if not request.devices:
        return Placement((HOST,) * block_count, HOST)
    asked = request.n_gpu_layers
    offloaded = everything if asked is None or asked < 0 else min(asked, everything)
    start = everything - offloaded
    shares = _cumulative_shares(request)
    devices = []
    for layer in range(everything):
        if layer < start:
            devices.append(HOST)
            continue
        position = _single((layer - start) / offloaded)
        devices.append(min(bisect_right(shares, position), len(request.devices) - 1))
    return Placement(tuple(devices[:-1]), devices[-1])


def _cumulative_shares(request: ContextRequest) -> list[float]:
    """Normalised cumulative split; without `-ts` in proportion to free memory, evenly when that is unknown."""
    count = len(request.devices)
    given = [*request.tensor_split[:count], *[0.0] * (count - len(request.tensor_split))]
    if not any(given):
        given = [float(device.free_bytes) for device in request.devices]
    if not any(given):
        given = [1.0] * count
    sums = list(accumulate(given, lambda total, share: _single(total + _single(share))))
    return [_single(value / sums[-1]) for value in sums]


def _single(value: float) -> float:
    """Round to an IEEE single, the type of llama.cpp's splits."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def weights_by_device(
    weights: WeightTable,
    geometry: Geometry,
    request: ContextRequest,
    placement: Placement,
    *,
    doubled_embedding: bool = False,
) -> dict[int, int]:
    """Weight bytes per device index, HOST included.

    Input embeddings stay on the host whatever is offloaded; a tied embedding is loaded a second time where the output
    head is. Tensors outside layers that are neither input nor output (rope_freqs, per_layer_model_proj) count as
    layer 0. Routed experts of the first `cpu_moe_layers` layers stay on the host. MTP layers and tensors are loaded
    only with `load_mtp`.
    """
    found = dict.fromkeys((HOST, *range(len(request.devices))), 0)
    found[HOST] += weights.input_bytes
    found[placement.layers[0] if placement.layers else HOST] += weights.other_bytes
    found[placement.output] += weights.output_bytes
    headless = geometry.architecture in arch.HEADLESS
    if weights.tied and not headless and (placement.output != HOST or doubled_embedding):
        found[placement.output] += weights.token_embd_bytes
    for index, (layer, shape) in enumerate(zip(weights.layers, geometry.layers, strict=False)):
        if shape.nextn and not request.load_mtp:
            continue
        device = placement.layers[index]
        found[device] += layer.dense_bytes
        found[HOST if index < request.cpu_moe_layers else device] += layer.expert_bytes
        found[device] += layer.nextn_bytes if request.load_mtp else 0
    return found


def embedding_is_doubled(summary: GgufSummary) -> bool:
    """Whether a tied embedding is in host memory twice when the output head is on the host too.

    The CPU backend repacks the output head on x86-64 for Q4_0, Q4_K and IQ4_NL, all of 18 bytes per 32 values, and for
    MXFP4 (17 bytes), and keeps the embedding as it is. Gemma 3n and 4 create the head before the embedding, when
    nothing is there yet to share.
    """
    if summary.architecture in {"gemma3n", "gemma4"}:
        return True
    values = summary.vocab_size * summary.integer("embedding_length")
    size = summary.weights.token_embd_bytes * 32
    mxfp4 = "MXFP4" in summary.weights.by_type and "IQ4_XS" not in summary.weights.by_type
    return size == values * 18 or (mxfp4 and size == values * 17)


def staged_bytes(weights: WeightTable, request: ContextRequest, placement: Placement) -> int:
    """Largest host-resident weight that a device copies into its compute buffer to work on a large batch.

    The output head when it is on the host, or the largest expert tensor of a layer whose experts are.
    """
    if not request.op_offload:
        return 0
    biggest = 0
    if placement.output == HOST:
        biggest = weights.token_embd_bytes
    for index, layer in enumerate(weights.layers):
        if index < request.cpu_moe_layers or placement.layers[index] == HOST:
            biggest = max(biggest, layer.largest_expert_bytes)
    return biggest

"""Graphics processors: from NVIDIA's driver where its library is, else as an engine build lists them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Protocol

from gezelctl.observe.types import Device, EngineProbe, Gpu

Kind = Literal["discrete", "integrated", "unified"]

_LIBRARY = "libnvidia-ml.so.1"
_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
)
_UNIFIED_NVIDIA = re.compile(r"GB10|DGX Spark")
"""These share the host's memory, and NVML cannot tell their own."""
_NO_DEVICE = re.compile(r"(CPU|BLAS|RPC)\d*(\[|$)")
_INTEGRATED = re.compile(r"Adreno|Qualcomm|Vega|Radeon Graphics|Radeon \d+[MS]\b|Radeon\(TM\) Graphics", re.IGNORECASE)
_DISCRETE = re.compile(
    r"Radeon (RX|VII|Pro W\d|AI Pro)|Instinct|FirePro|NVIDIA|GeForce|Quadro|Tesla|\bArc\b.*\b[AB]\d{3}", re.IGNORECASE
)
_UNIFIED_SHARE = 0.75
"""A device that reports this much of the host's memory as its own is the host's memory."""


class Nvml(Protocol):
    """The functions of pynvml that are used."""

    @property
    def NVMLError(self) -> type[Exception]: ...  # noqa: N802 - NVML's names
    def nvmlInit(self) -> None: ...  # noqa: N802 - NVML's names
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlSystemGetDriverVersion(self) -> str: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: object) -> str: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: object) -> str: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: object) -> object: ...  # noqa: N802


def has_nvidia_driver(folders: Iterable[str] = _FOLDERS) -> bool:
    """Whether NVML's library is where drivers, containers and LD_LIBRARY_PATH put it; looks at file names only."""
    searched = (*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *folders)
    return any(Path(folder, _LIBRARY).exists() for folder in searched if folder)


def load_nvml() -> Nvml | None:
    """pynvml on a host that has the driver's library; None elsewhere, without importing anything."""
    if not has_nvidia_driver():
        return None
    import pynvml

    library: Nvml = pynvml
    return library


def nvidia_gpus(nvml: Nvml) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Every NVIDIA GPU by UUID, and what NVML refused, in words. A lost GPU does not hide the others."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return (), (f"NVIDIA GPUs cannot be read: {error}; check that the driver and its library are of one version",)
    gpus: list[Gpu] = []
    problems: list[str] = []
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                gpus.append(_nvidia_gpu(nvml, index, driver))
            except nvml.NVMLError as error:
                problems.append(f"NVIDIA GPU {index} cannot be read: {error}")
    except nvml.NVMLError as error:
        problems.append(f"NVIDIA GPUs cannot be read: {error}")
    finally:
        nvml.nvmlShutdown()
    return tuple(sorted(gpus, key=lambda gpu: gpu.id)), tuple(problems)


def _nvidia_gpu(nvml: Nvml, index: int, driver: str) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = nvml.nvmlDeviceGetName(handle)
    unified = _UNIFIED_NVIDIA.search(name) is not None
    memory = None if unified else nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        id=nvml.nvmlDeviceGetUUID(handle),
        name=name,
        total_bytes=int(getattr(memory, "total", 0)),
        free_bytes=int(getattr(memory, "free", 0)),
        kind="unified" if unified else "discrete",
        driver=driver,
    )


def device_kind(name: str, total_bytes: int, host_bytes: int) -> Kind:
    """Kind of a device by its name; one of an unknown name with most of the host's memory is unified."""
    if _UNIFIED_NVIDIA.search(name) or name.startswith("Apple"):
        return "unified"
    if _DISCRETE.search(name):
        return "discrete"
    if _INTEGRATED.search(name) or "Intel" in name:
        return "integrated"
    return "unified" if total_bytes >= _UNIFIED_SHARE * host_bytes else "discrete"


def listed_gpus(probes: Iterable[EngineProbe], host_bytes: int) -> tuple[Gpu, ...]:
    """The GPUs of the first build that lists any. Two builds name one card differently, so they are not merged."""
    for probe in probes:
        devices = tuple(device for device in probe.devices if is_gpu(device))
        if devices:
            return tuple(
                Gpu(
                    id=device.id,
                    name=device.name,
                    total_bytes=device.total_bytes,
                    free_bytes=device.free_bytes,
                    kind=device_kind(device.name, device.total_bytes, host_bytes),
                )
                for device in devices
            )
    return ()


def is_gpu(device: Device) -> bool:
    """Not a CPU, BLAS or RPC device."""
    return not _NO_DEVICE.match(device.id)

"""Facts of a host: this one, and others from what their tools print."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gezelctl.observe.facts import (
    Memory,
    cgroup_folders,
    host_name,
    parse_meminfo,
    parse_vm_stat,
    read_facts,
    read_memory,
    within_cgroups,
)
from gezelctl.observe.gpus import device_kind, has_nvidia_driver, listed_gpus, load_nvml, nvidia_gpus
from gezelctl.observe.helptext import parse_devices
from gezelctl.observe.mounts import Mounts, nearest_existing
from gezelctl.observe.types import EngineProbe, Gpu

CASES = Path(__file__).resolve().parents[1] / "cases" / "observe"
GIB = 1024**3


class NvmlError(Exception):
    """Stands for pynvml.NVMLError."""


class Memories:
    def __init__(self, total: int, free: int) -> None:
        self.total = total
        self.free = free


class FakeNvml:
    """NVIDIA's library as pynvml shows it, failing where it is told to."""

    NVMLError = NvmlError

    def __init__(self, *names: str, broken_init: str = "", lost: tuple[int, ...] = ()) -> None:
        self._names = names
        self._broken_init = broken_init
        self._lost = lost
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self._broken_init:
            raise NvmlError(self._broken_init)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65.06"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:  # noqa: N802
        if index in self._lost:
            raise NvmlError("GPU is lost")
        return index

    def nvmlDeviceGetName(self, handle: object) -> str:  # noqa: N802
        assert isinstance(handle, int)
        return self._names[handle]

    def nvmlDeviceGetUUID(self, handle: object) -> str:  # noqa: N802
        return f"GPU-{9 - int(str(handle))}"

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> object:  # noqa: N802
        if "GB10" in self.nvmlDeviceGetName(handle):
            raise NvmlError("Not Supported")
        return Memories(24 * GIB, 20 * GIB)


def test_this_host(tmp_path: Path) -> None:
    store = tmp_path / "store" / "not" / "there"
    facts, problems = read_facts(Mounts(), (store, tmp_path))
    assert facts.host == socket.gethostname().split(".")[0] == host_name()
    assert facts.os == os.uname().sysname.lower()
    assert facts.cpus == len(psutil.Process().cpu_affinity() or [])
    assert facts.memory_total_bytes <= psutil.virtual_memory().total
    assert 0 < facts.memory_available_bytes <= facts.memory_total_bytes
    assert [disk.path for disk in facts.disks] == [str(store), str(tmp_path)]
    free = os.statvfs(tmp_path)
    assert abs(facts.disks[0].free_bytes - free.f_bavail * free.f_frsize) < 256 * 1024 * 1024
    assert facts.disks[0].file_system == facts.disks[1].file_system
    if not has_nvidia_driver():
        assert problems == ()


def test_without_the_drivers_library_nothing_is_imported(tmp_path: Path) -> None:
    assert not has_nvidia_driver([str(tmp_path)])
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert has_nvidia_driver([str(tmp_path)])
    if has_nvidia_driver():
        pytest.skip("needs a host without the NVIDIA driver")
    assert load_nvml() is None


def test_nvidia_gpus_are_known_by_uuid() -> None:
    nvml = FakeNvml("NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090")
    gpus, problems = nvidia_gpus(nvml)
    assert [(g.id, g.name) for g in gpus] == [
        ("GPU-8", "NVIDIA GeForce RTX 4090"),
        ("GPU-9", "NVIDIA GeForce RTX 3090"),
    ]
    assert (gpus[0].total_bytes, gpus[0].free_bytes, gpus[0].kind, gpus[0].driver) == (
        24 * GIB,
        20 * GIB,
        "discrete",
        "580.65.06",
    )
    assert problems == ()
    assert nvml.open == 0


def test_a_lost_gpu_does_not_hide_the_other() -> None:
    nvml = FakeNvml("A", "B", lost=(0,))
    gpus, problems = nvidia_gpus(nvml)
    assert [g.name for g in gpus] == ["B"]
    assert problems == ("NVIDIA GPU 0 cannot be read: GPU is lost",)
    assert nvml.open == 0


@pytest.mark.parametrize("reason", ["NVML Shared Library Not Found", "Driver/library version mismatch"])
def test_a_driver_that_does_not_start_is_a_problem_not_a_failure(reason: str, tmp_path: Path) -> None:
    facts, problems = read_facts(Mounts(), (tmp_path,), nvml=FakeNvml("A", broken_init=reason))
    assert facts.gpus == ()
    assert len(problems) == 1
    assert reason in problems[0]


def test_a_unified_gpu_has_the_hosts_memory(tmp_path: Path) -> None:
    facts, _ = read_facts(Mounts(), (tmp_path,), nvml=FakeNvml("NVIDIA GB10"))
    (gpu,) = facts.gpus
    assert (gpu.kind, gpu.total_bytes) == ("unified", facts.memory_total_bytes)
    assert gpu.free_bytes == facts.memory_available_bytes


def test_gpus_as_an_engine_lists_them() -> None:
    def probe(case: str) -> EngineProbe:
        devices = parse_devices((CASES / case).read_text())
        return EngineProbe(backend="x", engine="llama-cpp", program="/x", devices=devices)

    assert listed_gpus([probe("devices-rpc.txt")], 16 * GIB) == ()
    gpus = listed_gpus([probe("devices-rpc.txt"), probe("devices-cuda.txt")], 16 * GIB)
    assert [(g.id, g.kind) for g in gpus] == [("CUDA0", "discrete"), ("CUDA1", "unified")]
    (apple,) = listed_gpus([probe("devices-metal.txt")], 16 * GIB)
    mib = 1024 * 1024
    assert apple == Gpu(id="MTL0", name="Apple M2 Pro", total_bytes=10922 * mib, free_bytes=10922 * mib, kind="unified")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA GeForce RTX 3090", "discrete"),
        ("NVIDIA DGX Spark", "unified"),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "discrete"),
        ("AMD Radeon Pro W7900", "discrete"),
        ("AMD Radeon Graphics (RADV RAPHAEL_MENDOCINO)", "integrated"),
        ("AMD Radeon 780M Graphics", "integrated"),
        ("Radeon Vega 8", "integrated"),
        ("Intel(R) Arc(tm) A770 Graphics", "discrete"),
        ("Intel(R) Arc(tm) Graphics (MTL)", "integrated"),
        ("Intel(R) UHD Graphics 770", "integrated"),
        ("Qualcomm Adreno X1-85", "integrated"),
        ("Some New Card", "discrete"),
    ],
)
def test_kinds_by_name(name: str, kind: str) -> None:
    assert device_kind(name, 8 * GIB, 32 * GIB) == kind


def test_an_unknown_device_with_most_of_the_memory_is_unified() -> None:
    assert device_kind("Some New Chip", 24 * GIB, 32 * GIB) == "unified"


def test_meminfo() -> None:
    text = (
        "MemTotal:       65536000 kB\nMemFree:         1000 kB\nMemAvailable:   60000000 kB\nHugePages_Total:       0\n"
    )
    assert parse_meminfo(text) == Memory(65536000 * 1024, int(65536000 * 1024 * 0.9))
    old = "MemTotal: 1000 kB\nMemFree: 300 kB\n"
    assert parse_meminfo(old) == Memory(1000 * 1024, 300 * 1024)


@given(st.integers(1, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_available_memory_is_never_below_what_is_free(total: int, available: int, free: int) -> None:
    free = min(free, total)
    memory = parse_meminfo(f"MemTotal: {total} kB\nMemAvailable: {available} kB\nMemFree: {free} kB\n")
    assert free * 1024 <= memory.available_bytes <= max(int(0.9 * total * 1024), free * 1024)


def test_vm_stat() -> None:
    memory = parse_vm_stat((CASES / "vm_stat.txt").read_text(), 16 * GIB)
    assert memory == Memory(16 * GIB, (21517 + 390261 + 12211 + 1543 + 201334) * 16384)


def _group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)
    return folder


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    _group(root / "a", max=f"{8 * GIB}\n", current=f"{3 * GIB}\n", stat=f"anon 5\ninactive_file {GIB}\n")
    _group(root / "a" / "b", max="max\n", current="5\n")
    own = tmp_path / "own"
    own.write_text("1:memory:/old\n0::/a/b\n")
    folders = cgroup_folders(root, own)
    assert folders == [root / "a" / "b", root / "a", root]
    assert within_cgroups(Memory(64 * GIB, 50 * GIB), folders) == Memory(8 * GIB, 6 * GIB)
    assert within_cgroups(Memory(4 * GIB, GIB), folders) == Memory(4 * GIB, GIB)
    assert cgroup_folders(root, tmp_path / "none") == []


def test_this_hosts_memory_is_what_the_system_says() -> None:
    if read_memory().total_bytes < psutil.virtual_memory().total:
        pytest.skip("needs a host without a memory limit")
    assert read_memory().total_bytes == psutil.virtual_memory().total


TABLE = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 8:1 /data {data} rw,relatime shared:1 - ext4 /dev/sda1 rw
31 22 8:17 / {usb} rw - exfat /dev/sdb1 rw
32 31 0:50 / {usb}/with\\040space rw - fuse.gcsfuse gcs rw
33 22 8:33 / {usb} rw - ext4 /dev/sdc1 rw
"""


def test_bind_mounts_of_one_disk_are_two_file_systems(tmp_path: Path) -> None:
    data, usb = tmp_path / "data", tmp_path / "usb"
    spaced = usb / "with space"
    data.mkdir()
    spaced.mkdir(parents=True)
    table = tmp_path / "mountinfo"
    table.write_text(TABLE.format(data=data, usb=usb))
    mounts = Mounts(table)
    assert mounts.file_system(data) != mounts.file_system(tmp_path)
    assert mounts.file_system(data) == mounts.file_system(data / ".." / "data")
    assert mounts.file_system(tmp_path / "none") == 0
    assert mounts.hard_links(usb)  # the later mount hides the exFAT below it
    assert not mounts.hard_links(spaced)
    table.write_text("\n".join(TABLE.format(data=data, usb=usb).splitlines()[:3]))
    assert not Mounts(table).disk(usb / "models" / "x").hard_links


def test_two_real_file_systems_differ(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs /dev/shm as a file system of its own")
    mounts = Mounts()
    assert mounts.file_system(shm) != mounts.file_system(tmp_path)
    assert mounts.disk(shm).hard_links


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_a_link_across_a_real_bind_mount_is_foreseen(tmp_path: Path) -> None:
    source, bound = tmp_path / "source", tmp_path / "bound"
    source.mkdir()
    bound.mkdir()
    (source / "file").write_text("x")
    if subprocess.run(["mount", "--bind", source, bound], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to bind-mount")
    try:
        mounts = Mounts()
        assert source.stat().st_dev == bound.stat().st_dev
        assert mounts.file_system(source) != mounts.file_system(bound)
        with pytest.raises(OSError, match="cross-device"):
            (bound / "link").hardlink_to(source / "file")
    finally:
        subprocess.run(["umount", bound], check=True)


def test_nearest_existing(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path
    assert nearest_existing(tmp_path) == tmp_path

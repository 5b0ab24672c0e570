"""What a host can do: name, system, memory, graphics processors, disks. Cheap reads; no workload runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from gezelctl.observe.gpus import Nvml, listed_gpus, load_nvml, nvidia_gpus
from gezelctl.observe.mounts import Mounts
from gezelctl.observe.types import EngineProbe, Facts, Gpu

_AVAILABLE_SHARE = 0.9
"""Of total memory: a kernel that calls more than this available counts on caches that a loading model needs too."""
_MIB = 1024 * 1024
_VM_STAT_PAGE = re.compile(r"page size of (\d+) bytes")
_VM_STAT_LINE = re.compile(r'^"?([\w -]+?)"?: +(\d+)\.$', re.MULTILINE)
_VM_STAT_FREE = ("Pages free", "Pages inactive", "Pages speculative", "Pages purgeable", "File-backed pages")
_PRETTY_NAME = re.compile(r'^PRETTY_NAME="?([^"\n]*)', re.MULTILINE)


class Memory(NamedTuple):
    """Bytes that this process and its children may use, and those of them that are free now."""

    total_bytes: int
    available_bytes: int


def host_name() -> str:
    """This host's name without a domain; what --host defaults to."""
    return os.uname().nodename.partition(".")[0]


def read_facts(
    mounts: Mounts, disks: Iterable[Path], probes: Iterable[EngineProbe] = (), nvml: Nvml | None = None
) -> tuple[Facts, tuple[str, ...]]:
    """The facts of this host, with the disks under the given paths, and what could not be read, in words.

    GPUs are those of NVML (`nvml` stands in for pynvml), else those that the engine builds list.
    """
    memory = read_memory()
    library = nvml or load_nvml()
    gpus, problems = nvidia_gpus(library) if library else ((), ())
    probes = tuple(probes)
    if not gpus:
        gpus = listed_gpus(probes, memory.total_bytes)
    system = os.uname()
    facts = Facts(
        host=host_name(),
        os=system.sysname.lower(),
        os_version=_os_version(system),
        arch=system.machine,
        cpus=_cpus(),
        memory_total_bytes=memory.total_bytes,
        memory_available_bytes=memory.available_bytes,
        gpus=tuple(_with_host_memory(gpu, memory) for gpu in gpus),
        disks=tuple(mounts.disk(path) for path in dict.fromkeys(disks)),
        python=sys.version.partition(" ")[0],
        recommended_working_set_bytes=_working_set(system.sysname, probes),
    )
    return facts, problems


def read_memory() -> Memory:
    """Total and available memory, inside the limits of the control group that started servers will inherit."""
    if Path("/proc/meminfo").exists():
        memory = parse_meminfo(Path("/proc/meminfo").read_text(encoding="ascii"))
        return within_cgroups(memory, cgroup_folders())
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return parse_vm_stat(_output("vm_stat"), total)


def parse_meminfo(text: str) -> Memory:
    """proc_meminfo(5), in kB. MemAvailable, at most 90 % of the total and at least what is plainly free."""
    values = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines() if ":" in line}
    return _bounded(values["MemTotal"], values.get("MemAvailable", 0), values.get("MemFree", 0))


def parse_vm_stat(text: str, total_bytes: int) -> Memory:
    """macOS vm_stat: free, inactive, speculative, purgeable and file-backed pages can all be had by a loading model."""
    page = _VM_STAT_PAGE.search(text)
    pages = {name: int(count) for name, count in _VM_STAT_LINE.findall(text)}
    size = int(page[1]) if page else os.sysconf("SC_PAGE_SIZE")
    available = sum(pages.get(name, 0) for name in _VM_STAT_FREE) * size
    return _bounded(total_bytes, available, pages.get("Pages free", 0) * size)


def _bounded(total: int, available: int, free: int) -> Memory:
    return Memory(total, max(min(available, int(total * _AVAILABLE_SHARE)), free))


def cgroup_folders(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """This process's cgroup v2 folder and its parents (cgroups(7): the line that begins with 0::)."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    folder = root / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))] if path else []


def within_cgroups(memory: Memory, folders: Iterable[Path]) -> Memory:
    """The tightest of the memory limits; page cache that the group could drop (inactive_file) counts as available."""
    total, available = memory
    for folder in folders:
        limit = _number(folder / "memory.max")
        if limit is None:
            continue
        used = _number(folder / "memory.current") or 0
        droppable = _statistics(folder / "memory.stat").get("inactive_file", 0)
        total = min(total, limit)
        available = min(available, max(0, limit - used + min(droppable, used)))
    return Memory(total, available)


def _number(path: Path) -> int | None:
    """The number in a cgroup file; None when there is none or it says max."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _statistics(path: Path) -> Mapping[str, int]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdecimal()}


def _with_host_memory(gpu: Gpu, memory: Memory) -> Gpu:
    """A unified GPU that tells no memory of its own has the host's."""
    if gpu.kind != "unified" or gpu.total_bytes:
        return gpu
    return replace(gpu, total_bytes=memory.total_bytes, free_bytes=memory.available_bytes)


def _working_set(system: str, probes: Iterable[EngineProbe]) -> int:
    """Metal's budget: the limit that the person set, else what a Metal build reports as its device's total."""
    if system != "Darwin":
        return 0
    wired = _output("sysctl", "-n", "iogpu.wired_limit_mb").strip()
    if wired.isdecimal() and int(wired):
        return int(wired) * _MIB
    metal = (
        device.total_bytes for p in probes for device in p.devices if device.id.startswith(("metal", "Metal", "MTL"))
    )
    return max(metal, default=0)


def _cpus() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _os_version(system: os.uname_result) -> str:
    if system.sysname == "Darwin":
        return _output("sw_vers", "-productVersion").strip()
    try:
        name = _PRETTY_NAME.search(Path("/etc/os-release").read_text(encoding="utf-8"))
    except OSError:
        name = None
    return name[1] if name else system.release


def _output(*command: str) -> str:
    """What a system tool prints, "" when it is not there."""
    import subprocess

    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""

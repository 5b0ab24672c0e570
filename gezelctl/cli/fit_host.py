"""The host and the engine build that `gezelctl fit` judges a model on: this host, or one whose facts are in a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gezelctl.cli.subject import Place, Subject
from gezelctl.config.model import Accelerator, Backend
from gezelctl.errors import UsageFault
from gezelctl.observe.types import Device, EngineProbe, Facts, Gpu, Observed

_DEVICE_NAMES = {"cuda": "CUDA", "vulkan": "Vulkan", "rocm": "ROCm"}
_NVIDIA = ("nvidia", "geforce", "quadro", "tesla", "rtx", "gtx")


class _FactsFile(msgspec.Struct, rename="camel"):
    """`gezelctl facts -o json`, or a snapshot: either key is there."""

    facts: Facts | None = None
    engines: dict[str, EngineProbe] = {}
    observed: Observed | None = None


def read_facts_file(path: Path) -> tuple[Facts, dict[str, EngineProbe]]:
    """Facts and engine builds of a host. Raises UsageFault for a file that holds none."""
    cure = "Name a file of `gezelctl facts -o json` or `gezelctl snapshot`."
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_FactsFile)
    except OSError as error:
        raise UsageFault(f"{path} cannot be read: {(error.strerror or str(error)).lower()}", cure=cure) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageFault(f"{path} holds no facts: {error}", cure=cure) from error
    if document.observed is not None:
        return document.observed.facts, document.observed.engines
    if document.facts is None:
        raise UsageFault(f"{path} holds no facts", cure=cure)
    return document.facts, document.engines


def choose_backend(
    subject: Subject, place: Place, backend: str | None, accelerator: Accelerator | None
) -> tuple[str, Backend | None]:
    """The server's own backend, the named one, or the only or default one of models.yaml; None = to be assumed."""
    if accelerator and backend:
        raise UsageFault("--accelerator and --backend exclude each other", cure="A backend has its accelerator.")
    if accelerator:
        return accelerator, None
    if subject.resolved is not None and backend is None:
        return subject.resolved.server.backend_name, subject.resolved.server.backend
    known = place.session.desired.backends if place.session else {}
    if backend is not None and backend not in known:
        raise UsageFault(f"--backend {backend}: models.yaml has none", cure=_choose(known))
    name = backend or next((n for n, b in known.items() if b.engine == "llama-cpp"), "")
    return (name, known[name]) if name else ("llama-server", None)


def _choose(known: Iterable[str]) -> str:
    names = ", ".join(sorted(known))
    return f"Choose one of {names}." if names else "Name models.yaml with -f."


def look_at_host(
    given: tuple[Facts, dict[str, EngineProbe]] | None,
    place: Place,
    name: str,
    backend: Backend | None,
    wanted: str | None,
) -> tuple[Facts, EngineProbe | None]:
    """Facts of the host, and what is known of the engine build there."""
    if given is not None:
        facts, engines = given
        probe = engines.get(name)
        return facts, probe if probe and not probe.error and not probe.pending else None
    from gezelctl.cli.session import this_host

    if wanted and wanted != this_host():
        raise UsageFault(
            f"--host {wanted} is not this host, and its facts are not here",
            cure="Add --facts FILE with the output of `gezelctl facts -o json` or `gezelctl snapshot` there.",
        )
    from gezelctl.observe.facts import read_facts
    from gezelctl.observe.mounts import Mounts

    found = None
    if backend is not None:
        from gezelctl.observe.probe import probe_backend

        found = probe_backend(name, backend, place.paths)
    usable = found if found and not found.error and not found.pending else None
    facts, _ = read_facts(Mounts(), (), (usable,) if usable else ())
    return facts, usable


def likely_accelerator(facts: Facts) -> Accelerator:
    """What an engine on this host most likely computes on."""
    if facts.os == "darwin" and facts.arch in {"arm64", "aarch64"}:
        return "metal"
    if not facts.gpus:
        return "cpu"
    return "cuda" if any(_is_nvidia(gpu) for gpu in facts.gpus) else "vulkan"


def _is_nvidia(gpu: Gpu) -> bool:
    return any(word in gpu.name.lower() for word in _NVIDIA)


def assumed_probe(name: str, backend: Backend, facts: Facts) -> EngineProbe:
    """A build that nobody has looked at: every flag by its newest name, the GPUs in the driver's order."""
    prefix = _DEVICE_NAMES.get(backend.accelerator)
    gpus = facts.gpus if prefix else ()
    devices = tuple(Device(f"{prefix}{i}", g.name, g.total_bytes, g.free_bytes) for i, g in enumerate(gpus))
    return EngineProbe(backend=name, engine="llama-cpp", program="llama-server", devices=devices, pending=True)

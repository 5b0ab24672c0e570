"""From the words of `gezelctl fit` to the question that the planner answers: model, backend, host."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gezelctl.catalog.payload import applicable_files
from gezelctl.catalog.types import Payload, PayloadFile
from gezelctl.cli.fit_host import assumed_probe, choose_backend, likely_accelerator, look_at_host, read_facts_file
from gezelctl.cli.subject import Place, Subject, find_subject, open_place, read_header
from gezelctl.config.desired import DesiredServer
from gezelctl.config.model import Accelerator, Backend, Spec
from gezelctl.engines.launch import LaunchRequest, Rendered, render
from gezelctl.engines.llama_cpp.fitting import Asked, FitReport, fit
from gezelctl.engines.llama_cpp.planner import HostMemory, LaunchQuestion, host_memory
from gezelctl.engines.types import Scalar
from gezelctl.errors import UsageFault
from gezelctl.gguf.types import GgufSummary
from gezelctl.observe.types import EngineProbe, Facts

_PORT = 8080
_START_TIMEOUT_S = 300


class FitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line, by their names there; None = not given."""

    files: tuple[str, ...] = ()
    host: str | None = None
    catalogs: tuple[str, ...] = ()
    context: int | None = None
    context_total: int | None = None
    slots: int | None = None
    kv_unified: bool | None = None
    kv_cache: tuple[str, str] | None = None
    batch: int | None = None
    ubatch: int | None = None
    flash_attn: str | None = None
    swa_full: bool | None = None
    n_gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    tensor_split: str | None = None
    no_kv_offload: bool | None = None
    embeddings: bool | None = None
    spec_type: str | None = None
    draft: str | None = None
    mmproj: str | None = None
    facts_file: Path | None = None
    backend: str | None = None
    accelerator: Accelerator | None = None


@dataclass(frozen=True)
class Outcome:
    """The answer with what it is about. `launch` is the command line, where one would be started."""

    subject: Subject
    header: GgufSummary
    facts: Facts
    memory: HostMemory
    report: FitReport
    launch: Rendered | None


def run_fit(named: str, options: FitOptions) -> Outcome:
    """Find the model, read its header, look at the host and ask the planner."""
    given = read_facts_file(options.facts_file) if options.facts_file else None
    place = open_place(options.files, options.host or (given[0].host if given else None), options.catalogs)
    subject = find_subject(named, place)
    if subject.payload.engine != "llama-cpp":
        raise UsageFault(f"{named} is an MLX model; fit reads GGUF headers", cure="See `gezelctl inspect` for it.")
    header = read_header(subject, place)
    if header is None:
        raise UsageFault(f"{named} has no weights", cure="Name a model with a GGUF file.")
    backend_name, backend = choose_backend(subject, place, options.backend, options.accelerator)
    facts, probe = look_at_host(given, place, backend_name, backend, options.host)
    if backend is None:
        backend = Backend(engine="llama-cpp", accelerator=options.accelerator or likely_accelerator(facts))
    probe = probe or assumed_probe(backend_name, backend, facts)
    server = _server(subject, options, backend_name, backend)
    question = _question(subject, place, options, header, server=server, probe=probe)
    budget = place.session.desired.memory_budget_bytes if place.session else 0
    memory = host_memory(facts, explicit_bytes=budget)
    try:
        report = fit(question, memory, _asked(options))
    except ValueError as error:
        raise UsageFault(f"{named}: {error}", cure="Change the context, slots or batch.") from error
    return Outcome(subject, header, facts, memory, report, _launch(report, subject, place, probe))


def _asked(options: FitOptions) -> Asked:
    type_k, type_v = options.kv_cache or ("", "")
    return Asked(context_total=options.context_total or 0, type_k=type_k, type_v=type_v)


def _question(
    subject: Subject,
    place: Place,
    options: FitOptions,
    header: GgufSummary,
    *,
    server: DesiredServer,
    probe: EngineProbe,
) -> LaunchQuestion:
    companions = {role: _companion(subject, place, role, named) for role, named in _named_companions(options)}
    payload = _with_companions(subject.payload, companions)
    drafter = server.spec is None or server.spec.type != "none"
    files = applicable_files(payload, accelerator=server.backend.accelerator, vision=server.vision, drafter=drafter)
    headers = {role: found.header for role, found in companions.items() if found}
    return LaunchQuestion(
        server=server,
        model=subject.model,
        payload=payload,
        files=files,
        probe=probe,
        gguf=header,
        draft_gguf=headers.get("draft"),
        mmproj_gguf=headers.get("mmproj"),
    )


@dataclass(frozen=True)
class _Companion:
    file: PayloadFile
    header: GgufSummary


def _named_companions(options: FitOptions) -> tuple[tuple[str, str | None], ...]:
    return (("mmproj", options.mmproj), ("draft", options.draft))


def _companion(subject: Subject, place: Place, role: str, named: str | None) -> _Companion | None:
    """A projector or drafter that was named, else the model's own."""
    if named is not None:
        other = find_subject(named, place)
        header = read_header(other, place)
        if header is None:
            raise UsageFault(f"{named} is no GGUF model", cure="Name a .gguf file.")
        return _Companion(msgspec.structs.replace(other.payload.files[0], role=role), header)
    own = subject.group(role)
    header = read_header(subject, place, role)
    return _Companion(own[0], header) if header is not None else None


def _with_companions(payload: Payload, companions: dict[str, _Companion | None]) -> Payload:
    added = tuple(c.file for c in companions.values() if c and c.file not in payload.files)
    roles = {file.role for file in added}
    kept = tuple(file for file in payload.files if file.role not in roles)
    return msgspec.structs.replace(payload, files=(*kept, *added))


def _server(subject: Subject, options: FitOptions, backend_name: str, backend: Backend) -> DesiredServer:
    """The server of models.yaml, or one of nothing but this model, with what the command line says over it."""
    base = subject.resolved.server if subject.resolved else None
    if base is None:
        base = DesiredServer(
            name=subject.model.id,
            port=_PORT,
            host="127.0.0.1",
            backend_name=backend_name,
            backend=backend,
            start_timeout_s=_START_TIMEOUT_S,
            model=subject.model.id,
        )
    changed: dict[str, object] = {"backend_name": backend_name, "backend": backend}
    changed |= {name: value for name, value in _direct(options).items() if value is not None}
    changed["engine_options"] = {**base.engine_options, **_engine_options(options)}
    return msgspec.structs.replace(base, **changed)


def _direct(options: FitOptions) -> dict[str, object | None]:
    kinds = options.kv_cache
    spec = Spec(type=options.spec_type, draft_model=None) if options.spec_type else None
    return {
        "context": options.context,
        "slots": options.slots,
        "kv_cache": kinds[0] if kinds else None,
        "vision": True if options.mmproj else None,
        "spec": spec,
    }


def _engine_options(options: FitOptions) -> dict[str, Scalar]:
    values: dict[str, Scalar | None] = {
        "kvUnified": options.kv_unified,
        "batchSize": options.batch,
        "ubatchSize": options.ubatch,
        "flashAttn": options.flash_attn,
        "swaFull": options.swa_full,
        "nGpuLayers": options.n_gpu_layers,
        "nCpuMoe": options.n_cpu_moe,
        "tensorSplit": options.tensor_split,
        "kvOffload": False if options.no_kv_offload else None,
        "embeddings": options.embeddings,
    }
    return {name: value for name, value in values.items() if value is not None}


def _launch(report: FitReport, subject: Subject, place: Place, probe: EngineProbe) -> Rendered | None:
    """The command line of the chosen launch; None for a model that does not fit."""
    if report.answer.refusal is not None:
        return None
    question = report.question
    path = subject.payload.files[0].origin.path
    folder = os.path.dirname(path) if path else f"{place.paths.models}/llama-cpp/{subject.payload.model_id}"  # noqa: PTH120
    return render(
        LaunchRequest(
            server=question.server,
            model=question.model,
            payload=question.payload,
            files=question.files,
            payload_dir=folder,
            probe=probe,
            slots_dir=f"{place.paths.state}/slots/{question.server.name}",
            config_path="",
            gguf=question.gguf,
            draft_gguf=question.draft_gguf,
            planned=report.answer.values,
        )
    )

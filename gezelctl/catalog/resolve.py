"""Looking a model up in the catalogs of a stack, in their order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gezelctl.catalog.findings import Path as ValuePath
from gezelctl.catalog.findings import dotted, fault
from gezelctl.catalog.inline import source_payloads
from gezelctl.catalog.names import CONTROL, near_names
from gezelctl.catalog.payload import applicable_files
from gezelctl.catalog.servers import NamedDrafter, Resolved
from gezelctl.catalog.types import Model, Origin, Payload, PayloadFile
from gezelctl.catalog.versions import ModelRef, parse_ref
from gezelctl.config.desired import DesiredServer, HostDesired
from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, Place

if TYPE_CHECKING:
    from gezelctl.catalog.gilde import GildeCatalog
    from gezelctl.catalog.onefile import OneFileCatalog

Found = tuple[Model, tuple[Diagnostic, ...]]


class Catalogs:
    """The catalogs of a stack. Each answer is kept, so many servers of one model read it once."""

    def __init__(self, paths: Iterable[str], base_dir: str = "") -> None:
        """`paths` are folders in the Gilde layout or YAML/JSON files; relative ones start at `base_dir`."""
        self._catalogs = [_open(path, base_dir) for path in paths]
        self._found: dict[ModelRef, Found] = {}

    def find(self, model_ref: str, *, place: Place | None = None) -> Model:
        """The model named `id` or `id@version`; `place` is where it is asked for.

        The first catalog that has the id decides; one whose versions are all yanked, or that lacks the pinned
        version, leaves it to the next. Raises InvalidConfig: E0201 to E0214.
        """
        return self.look_up(model_ref, place=place)[0]

    def look_up(self, model_ref: str, *, place: Place | None = None) -> Found:
        """`find` together with the warnings about the model's manifests."""
        ref = parse_ref(model_ref, place)
        if ref not in self._found:
            self._found[ref] = self._search(ref, place)
        return self._found[ref]

    def _search(self, ref: ModelRef, place: Place | None) -> Found:
        passed: InvalidConfig | None = None
        for catalog in self._catalogs:
            try:
                found = catalog.find(ref)
            except InvalidConfig as error:
                if not _leaves_to_next(error):
                    raise
                passed = passed or error
                continue
            if found is not None:
                return found
        raise passed or self._missing(ref, place)

    def _missing(self, ref: ModelRef, place: Place | None) -> InvalidConfig:
        """E0210 with near matches; the only case in which whole catalogs are listed."""
        if not self._catalogs:
            cure = "add a catalog under catalogs, or give the server a source"
            return fault("E0210", f"model {ref.id!r} needs a catalog, and there is none", cure=cure, place=place)
        ids = {listed.id: None for catalog in self._catalogs for listed in catalog.listing()}
        near = near_names(ref.id, ids)
        searched = ", ".join(catalog.describe() for catalog in self._catalogs)
        cure = f"did you mean {' or '.join(near)}?" if near else "check the id, or add the catalog that has it"
        summary = f"model {ref.id!r} is in no catalog; searched {searched}"
        return fault("E0210", summary, cure=cure, place=place)


def _leaves_to_next(error: InvalidConfig) -> bool:
    return all(found.code in {"E0211", "E0212"} for found in error.diagnostics if found.severity == "error")


def _open(path: str, base_dir: str) -> GildeCatalog | OneFileCatalog:
    """A file is a one-file catalog, a folder a Gilde one; the suffix decides about what is not there."""
    if CONTROL.search(path):
        summary = f"the path of catalog {path!r} has a control character"
        raise fault("E0201", summary, cure="correct the path under catalogs")
    full = Path(base_dir) / os.path.expanduser(path)  # noqa: PTH111 - leaves the `~` of an unknown user alone
    is_file, is_folder = os.path.isfile(full), os.path.isdir(full)  # noqa: PTH112, PTH113 - no error of the disk escapes
    from gezelctl.catalog.gilde import GildeCatalog
    from gezelctl.catalog.onefile import SUFFIXES, OneFileCatalog

    one_file = is_file or (full.suffix.lower() in SUFFIXES and not is_folder)
    return OneFileCatalog(full, path) if one_file else GildeCatalog(full, path)


def resolve_servers(desired: HostDesired) -> tuple[Resolved, ...]:
    """Every server of a host with its payload and the files that it needs, in the order of `desired.servers`."""
    catalogs = Catalogs(desired.catalogs, desired.base_dir)
    inline = {server.name: server for server in desired.servers if server.source}
    return tuple(resolve_server(server, catalogs, Path(desired.base_dir), inline) for server in desired.servers)


def resolve_server(
    server: DesiredServer, catalogs: Catalogs, base_dir: Path, inline: Mapping[str, DesiredServer] | None = None
) -> Resolved:
    """One server. What is wrong is in `diagnostics`, never raised, so that one run reports all servers.

    `inline` are the servers with a model of their own, by name, which another one may draft with.
    """
    try:
        model, warnings = _model(server, catalogs, base_dir)
        payload = _payload(server, model)
        named = _drafter(server, catalogs, base_dir, inline or {})
    except InvalidConfig as error:
        found = error.diagnostics
        return Resolved(server, diagnostics=tuple(_addressed(diagnostic, server) for diagnostic in found))
    # a drafter is a few GB that speculation of type none never reads
    drafter = server.spec is None or server.spec.type != "none"
    accelerator = server.backend.accelerator
    files = applicable_files(payload, accelerator=accelerator, vision=server.vision, drafter=drafter)
    found = tuple(_addressed(warning, server) for warning in warnings)
    return Resolved(server, model, payload, files, found, named)


def _model(server: DesiredServer, catalogs: Catalogs, base_dir: Path) -> Found:
    if server.source is not None:

        def locate(path: ValuePath) -> Place | None:
            return server.place(dotted(("source", *path)))

        return source_payloads(server.name, server.source, base_dir, locate), ()
    return catalogs.look_up(server.model or "", place=server.place("model"))


def _payload(server: DesiredServer, model: Model) -> Payload:
    """The model's payload for the server's engine. Raises E0216 to E0219 at the place that asks for it."""
    engine, accelerator = server.backend.engine, server.backend.accelerator
    payload = model.payloads.get(engine)
    if payload is None:
        others = " and ".join(model.payloads) or "none that gezelctl serves"
        cure = f"use a backend with engine {others}" if model.payloads else "choose another model"
        summary = f"{model.id} has no files for {engine}; it has {others}"
        raise fault("E0216", summary, cure=cure, place=server.place("backend"))
    if payload.disabled_reason:
        summary = f"the {engine} build of {model.id} is known not to load: {payload.disabled_reason}"
        raise fault("E0217", summary, cure="use another engine or model", place=server.place("model"))
    if accelerator in payload.excluded_backends:
        summary = f"the {engine} build of {model.id} is known not to work on {accelerator}"
        raise fault("E0218", summary, cure="use another backend or model", place=server.place("backend"))
    if server.vision and engine == "llama-cpp" and all(file.role != "mmproj" for file in payload.files):
        summary = f"{model.id} has no projector, so it cannot see"
        raise fault("E0219", summary, cure="remove vision, or add mmproj", place=server.place("vision"))
    return payload


def _drafter(
    server: DesiredServer, catalogs: Catalogs, base_dir: Path, inline: Mapping[str, DesiredServer]
) -> NamedDrafter | None:
    """What `spec.draftModel` names. None also for an id that no catalog has: it may be installed nevertheless.

    Raises InvalidConfig for a catalog model that cannot be used.
    """
    name = server.spec.draft_model if server.spec and server.spec.type != "none" else None
    if not name or server.backend.engine != "llama-cpp":
        return None
    place = server.place("spec.draftModel")
    if "/" in name or name.endswith(".gguf"):
        file = PayloadFile(name=os.path.basename(name), role="draft", origin=Origin(kind="path", path=name))  # noqa: PTH119 - no disk
        return NamedDrafter(name, (file,))
    try:
        model = (
            _model(inline[name], catalogs, base_dir)[0] if name in inline else catalogs.look_up(name, place=place)[0]
        )
    except InvalidConfig as error:
        if any(found.code != "E0210" for found in error.diagnostics):
            raise
        return None
    payload = model.payloads.get("llama-cpp")
    if payload is None:
        summary = f"{name} has no files for llama-cpp, so it cannot draft"
        raise fault("E0216", summary, cure="choose another draft model", place=place)
    files = tuple(file for file in payload.files if file.role in {"weights", "shard"})
    return NamedDrafter(name, files, payload)


def _addressed(diagnostic: Diagnostic, server: DesiredServer) -> Diagnostic:
    return msgspec.structs.replace(diagnostic, address=server.address)

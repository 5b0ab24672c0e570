"""The source blocks `llamaCpp` and `mlx`, from plain data to checked payloads; the same in every catalog format."""

from __future__ import annotations

from typing import Any

from gezelctl.catalog.blocks import DraftEntry, FileEntry, LlamaCppBlock, MlxBlock, SourceBlock, decode
from gezelctl.catalog.findings import Findings, Path
from gezelctl.catalog.names import name_fault
from gezelctl.catalog.payload import basename, build
from gezelctl.catalog.types import Engine, Origin, Payload, PayloadFile, Role


def payloads(llama_cpp: object, mlx: object, model_id: str, version: str, findings: Findings) -> dict[str, Payload]:
    """The payloads of the source blocks that are there, by engine. A block with errors gives none."""
    found = {
        "llama-cpp": _llama_cpp(llama_cpp, model_id, version, findings.under("llamaCpp")),
        "mlx": _mlx(mlx, model_id, version, findings.under("mlx")),
    }
    return {engine: payload for engine, payload in found.items() if payload is not None}


def _llama_cpp(value: object, model_id: str, version: str, findings: Findings) -> Payload | None:
    """The `llamaCpp` block: weights or shards, then drafter, then projector. None when it has errors."""
    if value is None:
        return None
    block = decode(value, LlamaCppBlock, findings)
    if block is None:
        return None
    files = _Files(block, findings)
    if block.shards is not None and (block.filename is not None or block.sha256 is not None):
        findings.add("E0207", "has both `filename`/`sha256` and `shards`", cure="keep one of the two forms")
    elif block.shards is not None:
        _add_shards(block.shards, files, findings)
    elif block.filename is None or block.sha256 is None:
        findings.add(
            "E0207",
            "has neither `filename` with `sha256` nor `shards`",
            cure="name one GGUF with its sha256, or list two or more shards",
        )
    else:
        weights = FileEntry(filename=block.filename, sha256=block.sha256, size_bytes=block.approx_size_bytes)
        files.add(weights, "weights", ("filename",))
    files.add_companion(block.draft_model, DraftEntry, "draft", "draftModel")
    files.add_companion(block.mmproj, FileEntry, "mmproj", "mmproj")
    return files.payload("llama-cpp", model_id, version)


def _add_shards(shards: list[Any], files: _Files, findings: Findings) -> None:
    if len(shards) < 2:
        findings.add("E0207", "needs two shards or more", ("shards",), cure="use `filename` for a single file")
    files.add_list(shards, "shard", "shards")


def _mlx(value: object, model_id: str, version: str, findings: Findings) -> Payload | None:
    """The `mlx` block: every file under its relative name. None when it has errors."""
    if value is None:
        return None
    block = decode(value, MlxBlock, findings)
    if block is None:
        return None
    prefix = ""
    if block.subdir is not None:
        if problem := name_fault(block.subdir):
            findings.add("E0208", f"{block.subdir!r} {problem}", ("subdir",), cure="give a relative folder")
        prefix = f"{block.subdir}/"
    files = _Files(block, findings, prefix=prefix)
    if not block.files:
        findings.add("E0207", "lists no file", ("files",), cure="list each file with its sha256")
    files.add_list(block.files, "file", "files")
    return files.payload("mlx", model_id, version)


class _Files:
    """Gathers the files of one source block with the paths of their names."""

    def __init__(self, block: SourceBlock, findings: Findings, *, prefix: str = "") -> None:
        self._block = block
        self._findings = findings
        self._prefix = prefix
        self._files: list[PayloadFile] = []
        self._where: list[Path] = []
        self._complete = True

    def add(self, entry: FileEntry, role: Role, where: Path) -> None:
        """Add a decoded entry. Names of llama.cpp files lose their folders, names of MLX files keep them."""
        name = entry.filename or entry.name
        draft = entry if isinstance(entry, DraftEntry) else None
        own_repo = draft.huggingface_repo if draft else None
        revision = draft.revision if draft else None
        # a revision of one repo says nothing about another one
        inherited = "main" if own_repo not in (None, self._block.huggingface_repo) else self._block.revision
        if problem := name_fault(name):
            self._findings.add("E0208", f"{name!r} {problem}", where, cure="give a relative path inside the repo")
            self._complete = False
            return
        self._where.append(where)
        self._files.append(
            PayloadFile(
                name=name if role == "file" else basename(name),
                role=role,
                origin=Origin(
                    kind="huggingface",
                    repo=own_repo or self._block.huggingface_repo,
                    revision=revision or inherited,
                    filename=f"{self._prefix}{name}",
                ),
                sha256=entry.sha256,
                size_bytes=entry.size_bytes,
                optional=role == "mmproj",
                backends=draft.backends if draft else (),
            )
        )

    def add_list(self, entries: list[Any], role: Role, key: str) -> None:
        for index, value in enumerate(entries):
            self._decode_and_add(value, FileEntry, role, (key, index), "name")

    def add_companion(self, value: object, kind: type[FileEntry], role: Role, key: str) -> None:
        if value is not None:
            self._decode_and_add(value, kind, role, (key,), "filename")

    def _decode_and_add(self, value: object, kind: type[FileEntry], role: Role, path: Path, name_key: str) -> None:
        view = self._findings.under(*path)
        entry = decode(value, kind, view)
        if entry is not None and not getattr(entry, name_key):
            view.add("E0203", f"`{name_key}` is missing", cure="name the file by its path inside the repo")
            entry = None
        if entry is None:
            self._complete = False
            return
        self.add(entry, role, (*path, name_key))

    def payload(self, engine: Engine, model_id: str, version: str) -> Payload | None:
        block = self._block
        payload = Payload(
            engine=engine,
            model_id=model_id,
            repo=block.huggingface_repo,
            files=tuple(self._files),
            version=version,
            quantization=block.quantization,
            chat_template=block.chat_template if isinstance(block, MlxBlock) else "",
            disabled_reason=block.disabled_reason if isinstance(block, MlxBlock) else "",
            approx_size_bytes=block.approx_size_bytes,
            resident_bytes=block.resident_bytes or 0,
            excluded_backends=block.excluded_backends,
        )
        built = build(payload, self._findings, self._where)
        return built if self._complete and self._files else None

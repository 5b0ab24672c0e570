"""An inline `source:` of models.yaml as a Model of one payload. Nothing here touches a disk or the network.

    path: weights.gguf                       one local GGUF; a name of a shard set stands for the whole set
    path: folder                             an MLX folder, or with `files` the named and pinned files of it
    url: https://host/weights.gguf           one GGUF with `sha256`
    huggingface: owner/name                  `filename` + `sha256`, or `shards`, or `files` (MLX)

`mmproj` and `draftModel` stand beside the GGUF: in its folder, under its URL, in its repo. The model id is the name of
the server. An MLX folder without `files` is one PayloadFile with an empty `name`, whose origin path is the folder: "all
of it"; the observer lists it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urljoin, urlsplit

from gezelctl.catalog.findings import Findings, Locate
from gezelctl.catalog.findings import Path as ValuePath
from gezelctl.catalog.names import CONTROL, HUB_REPO, REVISION, STORE_ID, is_device, name_fault
from gezelctl.catalog.payload import basename, build, shard_names, shard_position
from gezelctl.catalog.types import Engine, Model, Origin, Payload, PayloadFile, Role
from gezelctl.config.model import FileRef, Source

WHOLE_FOLDER = ""
"""The name of the one file of an MLX folder that lists none."""

Placed = tuple[PayloadFile, ValuePath]


def source_payloads(server_name: str, source: Source, base_dir: Path, locate: Locate = lambda _: None) -> Model:
    """The Model of a server's inline source; relative paths start at `base_dir`, `~` is the user's home.

    `locate` gives the place of a field of the source, for findings. Raises InvalidConfig with E0208 and E0215.
    """
    findings = Findings(locate, address=f"server.{server_name}")
    if not STORE_ID.match(server_name) or is_device(server_name):
        cure = "use a-z 0-9 . _ -, and no device name of Windows"
        findings.add("E0213", f"{server_name!r} cannot be the id of a model", cure=cure)
    kinds = [name for name in ("path", "url", "huggingface") if getattr(source, name) is not None]
    if len(kinds) != 1:
        what = "names none of path, url and huggingface" if not kinds else f"names {' and '.join(kinds)}"
        findings.add("E0215", f"the source {what}", (), cure="keep exactly one of path, url and huggingface")
        findings.check()
    _check_shape(source, findings)
    _check_names(source, findings)
    findings.check()
    if source.path is not None:
        files = _from_path(source, _absolute(source.path, base_dir), findings)
    elif source.url is not None:
        files = _from_url(source, source.url, findings)
    else:
        files = _from_hub(source, source.huggingface or "", findings)
    placed = list(files)
    findings.check()
    payload = _payload(server_name, source, placed, findings)
    findings.check()
    return Model(id=server_name, name=server_name, version="", payloads={payload.engine: payload})


def _absolute(path: str, base_dir: Path) -> str:
    # pathlib would read the disk for `resolve`, and fail for the `~` of an unknown user
    return os.path.abspath(base_dir / os.path.expanduser(path))  # noqa: PTH100, PTH111


def _payload(server_name: str, source: Source, placed: list[Placed], findings: Findings) -> Payload:
    files = tuple(file for file, _ in placed)
    engine: Engine = "mlx" if files[0].role == "file" else "llama-cpp"
    payload = Payload(
        engine=engine,
        model_id=server_name,
        repo=source.huggingface or "",
        files=files,
        approx_size_bytes=sum(file.size_bytes for file in files if file.role in {"weights", "shard", "file"}),
    )
    if files[0].name == WHOLE_FOLDER:
        return payload
    return build(payload, findings, [where for _, where in placed])


def _check_shape(source: Source, findings: Findings) -> None:
    """Which fields may stand together, whatever the kind."""
    if source.revision != "main" and source.huggingface is None:
        findings.add("E0215", "belongs to a huggingface source", ("revision",), cure="remove it")
    if source.shards and source.files:
        findings.add("E0215", "stands beside shards", ("files",), cure="keep shards for llama.cpp, or files for MLX")
    for name in ("mmproj", "draftModel"):
        if source.files and (source.mmproj if name == "mmproj" else source.draft_model):
            findings.add("E0215", "is a file of llama.cpp, but `files` are an MLX model", (name,), cure="remove it")

    if source.size_bytes is not None and (source.shards or source.files):
        findings.add("E0215", "stands beside a list of files", ("sizeBytes",), cure="give the size of each file")


def _check_names(source: Source, findings: Findings) -> None:
    """Every file name is relative to the source's own place and stays inside it."""
    named: list[tuple[ValuePath, str]] = [
        *((("shards", index, "filename"), ref.filename) for index, ref in enumerate(source.shards)),
        *((("files", index, "filename"), ref.filename) for index, ref in enumerate(source.files)),
    ]
    if source.filename is not None:
        named.append((("filename",), source.filename))
    if source.draft_model is not None:
        named.append((("draftModel", "filename"), source.draft_model.filename))
    if source.mmproj is not None:
        named.append((("mmproj", "filename"), source.mmproj.filename))
    for where, name in named:
        if problem := name_fault(name):
            findings.add("E0208", f"{name!r} {problem}", where, cure="give a relative path without `..` or backslashes")
    if source.path is not None and (not source.path or CONTROL.search(source.path)):
        findings.add("E0208", "is empty or has a control character", ("path",), cure="give the path of the model")


def _from_path(source: Source, path: str, findings: Findings) -> Iterator[Placed]:
    """A GGUF when the name or a field of single files says so, else an MLX folder."""
    if source.filename is not None:
        findings.add("E0215", "stands beside path", ("filename",), cure="name the file in path itself")
    folder, name = os.path.split(path)
    pinned = source.sha256 is not None or source.size_bytes is not None
    companions = source.mmproj is not None or source.draft_model is not None
    if not (name.lower().endswith(".gguf") or pinned or companions or source.shards):
        yield from _folder_files(source.files, path)
        return
    if source.files:
        findings.add("E0215", "stands beside a single file", ("files",), cure="let path name the MLX folder")
    refs = _shard_refs(source, name, findings)

    def origin(filename: str) -> Origin:
        return Origin("path", path=f"{folder}{os.sep}{filename}")

    yield from _weights(refs, origin, ("path",))
    yield from _companions(source, origin)


def _folder_files(files: tuple[FileRef, ...], folder: str) -> Iterator[Placed]:
    if not files:
        yield PayloadFile(WHOLE_FOLDER, "file", Origin("path", path=folder)), ("path",)
    for index, ref in enumerate(files):
        origin = Origin("path", path=f"{folder}{os.sep}{ref.filename}")
        yield _file(ref, "file", origin), ("files", index, "filename")


def _shard_refs(source: Source, name: str, findings: Findings) -> list[FileRef | str]:
    """The weights in order; a bare name has no pin."""
    number, count = shard_position(name)
    if not 1 <= number <= count:
        findings.add("E0215", f"{name!r} is shard {number} of {count}", ("path",), cure="correct the name")
        return [name]
    names = shard_names(name)
    if number != 1:
        findings.add("E0215", f"{name!r} is not the first shard", ("path",), cure=f"name {names[0]!r}")
    if source.shards:
        if tuple(ref.filename for ref in source.shards) != names:
            findings.add("E0215", f"is not the set of {name!r}", ("shards",), cure=f"list {count} shards in order")
        return list(source.shards)
    if count > 1 and source.sha256 is not None:
        findings.add("E0215", "pins one file, but path names a set", ("sha256",), cure="pin each file under shards")
    if count == 1 and source.sha256 is not None:
        return [FileRef(filename=name, sha256=source.sha256, size_bytes=source.size_bytes)]
    return list(names)


def _from_url(source: Source, url: str, findings: Findings) -> Iterator[Placed]:
    """One GGUF. The URL itself is not repeated in a finding: its query may hold a token."""
    for name in ("shards", "files"):
        if getattr(source, name):
            findings.add("E0215", "stands beside url", (name,), cure="use a huggingface source for several files")
    if source.sha256 is None:
        findings.add("E0215", "has no sha256", ("url",), cure="add the sha256 of the file")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        findings.add("E0215", "is not a URL", ("url",), cure="write https://host/path/file.gguf")
        return
    if parts.scheme not in {"http", "https"} or not host:
        findings.add("E0215", "is not an http or https URL", ("url",), cure="write https://host/path/file.gguf")
    if parts.username is not None or parts.password is not None:
        findings.add("E0215", "carries credentials", ("url",), cure="remove them; models.yaml is no place for secrets")
    name = source.filename or basename(unquote(parts.path))
    if not name:
        findings.add("E0215", "does not end in a file name", ("url",), cure="add filename")
    if findings.failed:
        return
    where: ValuePath = ("filename",) if source.filename else ("url",)
    ref = FileRef(filename=name, sha256=source.sha256 or "", size_bytes=source.size_bytes)
    yield _file(ref, "weights", Origin("url", url=url)), where
    folder = parts._replace(query="", fragment="").geturl()
    yield from _companions(source, lambda filename: Origin("url", url=urljoin(folder, quote(filename))))


def _from_hub(source: Source, repo: str, findings: Findings) -> Iterator[Placed]:
    if not HUB_REPO.match(repo):
        findings.add("E0215", f"{repo!r} is not a repo", ("huggingface",), cure="write it as owner/name")
    if not REVISION.match(source.revision):
        findings.add("E0215", "is not a revision", ("revision",), cure="give a commit, tag or branch")
    single = [name for name in ("filename", "sha256") if getattr(source, name) is not None]
    if (source.shards or source.files) and single:
        other = "shards" if source.shards else "files"
        findings.add("E0215", f"stands beside {other}", (single[0],), cure=f"keep {other}, or filename with sha256")
    elif not (source.shards or source.files) and len(single) != 2:
        problem = f"has {single[0]} alone" if single else "names no file"
        findings.add("E0215", problem, ("huggingface",), cure="add filename with sha256, or shards, or files for MLX")
    if len(source.shards) == 1:
        findings.add("E0215", "has one shard only", ("shards",), cure="use filename and sha256 for a single file")
    if findings.failed:
        return

    def origin(filename: str) -> Origin:
        return Origin("huggingface", repo=repo, revision=source.revision, filename=filename)

    if source.filename is not None and source.sha256 is not None:
        ref = FileRef(filename=source.filename, sha256=source.sha256, size_bytes=source.size_bytes)
        yield _file(ref, "weights", origin(ref.filename)), ("filename",)
    yield from _weights(list(source.shards), origin, ())
    for index, ref in enumerate(source.files):
        yield _file(ref, "file", origin(ref.filename)), ("files", index, "filename")
    yield from _companions(source, origin)


def _weights(refs: Sequence[FileRef | str], origin: Callable[[str], Origin], where: ValuePath) -> Iterator[Placed]:
    """One GGUF, or the shards of one."""
    role: Role = "shard" if len(refs) > 1 else "weights"
    for index, ref in enumerate(refs):
        if isinstance(ref, str):
            yield PayloadFile(ref, role, origin(ref)), where
        else:
            yield _file(ref, role, origin(ref.filename)), where if len(refs) == 1 else ("shards", index, "filename")


def _companions(source: Source, origin: Callable[[str], Origin]) -> Iterator[Placed]:
    """Drafter, then projector: the order of a payload."""
    if source.draft_model is not None:
        yield _file(source.draft_model, "draft", origin(source.draft_model.filename)), ("draftModel", "filename")
    if source.mmproj is not None:
        yield _file(source.mmproj, "mmproj", origin(source.mmproj.filename)), ("mmproj", "filename")


def _file(ref: FileRef, role: Role, origin: Origin) -> PayloadFile:
    """The name is the one in the payload: flat for llama.cpp, as it stands for MLX."""
    return PayloadFile(
        name=ref.filename if role == "file" else basename(ref.filename),
        role=role,
        origin=origin,
        sha256=ref.sha256,
        size_bytes=ref.size_bytes or 0,
        optional=role == "mmproj",
    )

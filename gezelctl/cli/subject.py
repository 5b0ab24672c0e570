"""What FILE|MODEL|URL names: a GGUF file here, on a server or in a catalog, or an MLX folder; and where its header is.

model.gguf, model-00001-of-00003.gguf        a local file, or the first shard of a set
folder                                       an MLX model
https://host/model.gguf                      any server
hf:owner/name/model.gguf[@revision]          a Hugging Face hub or mirror
qwen3-8b-q4[@1.2.0], server.chat             a catalog model, or a server of models.yaml
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from gezelctl.catalog.names import HUB_REPO, REVISION, name_fault
from gezelctl.catalog.payload import basename, shard_names, shard_position
from gezelctl.catalog.types import Model, Origin, Payload, PayloadFile
from gezelctl.config.redact import public_url
from gezelctl.config.secrets import Secret, resolve
from gezelctl.errors import UsageFault
from gezelctl.gguf.types import GgufSummary
from gezelctl.observe.hub import DEFAULT_ENDPOINT, Hub, require_address, site
from gezelctl.store.layout import Paths, default_paths
from gezelctl.store.types import InstalledPayload

if TYPE_CHECKING:
    from gezelctl.catalog.servers import Resolved
    from gezelctl.cli.session import Session

_HUB_FORM = "hf:owner/name/file.gguf[@revision]"
_HUB_PATH = re.compile(r"/([^/]+/[^/]+)/(?:resolve|blob)/([^/]+)/(.+)")
DEFAULT_FILE = "models.yaml"


@dataclass(frozen=True)
class Place:
    """Where things are looked for: the configuration (if any), further catalogs, hub and cache."""

    session: Session | None
    catalogs: tuple[str, ...]
    hub: Hub
    paths: Paths


@dataclass(frozen=True)
class Subject:
    """What was named. `shown` is how to call it in output; `resolved` is set when it is a server of models.yaml."""

    shown: str
    model: Model
    payload: Payload
    resolved: Resolved | None = None
    folder: Path | None = None
    """An MLX folder here."""

    def group(self, role: str) -> tuple[PayloadFile, ...]:
        """The files of one GGUF model: "weights" with all its shards, "mmproj" or "draft"."""
        roles = {"weights", "shard"} if role == "weights" else {role}
        return tuple(file for file in self.payload.files if file.role in roles)


def open_place(files: Sequence[str], host: str | None, catalogs: Sequence[str]) -> Place:
    """Read models.yaml where one is named or stands here; else hub and token are those of HF_ENDPOINT and HF_TOKEN."""
    from gezelctl.cli.session import open_session

    catalogs = tuple(os.path.abspath(os.path.expanduser(path)) for path in catalogs)  # noqa: PTH100, PTH111 - as text
    chosen = files or ((DEFAULT_FILE,) if not catalogs and Path(DEFAULT_FILE).is_file() else ())
    if not chosen:
        token = os.environ.get("HF_TOKEN", "").strip()
        hub = Hub(os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT, Secret(token) if token else None)
        return Place(None, catalogs, hub, default_paths("inspect", None, os.environ))
    session = open_session(chosen, host)
    config = session.desired.sources.huggingface
    secret = resolve(config.token, Path(session.desired.base_dir), os.environ) if config.token else None
    every = (*catalogs, *session.desired.catalogs)
    return Place(session, every, Hub(config.endpoint, secret), session.paths)


def find_subject(named: str, place: Place) -> Subject:
    """What `named` is. Raises UsageFault and FetchError for a wrong form, InvalidConfig for an unknown model."""
    if named.startswith("hf:"):
        return _remote(named, _hub_origin(named))
    if named.startswith(("http://", "https://")):
        require_address(named, "the model")
        return _remote(public_url(named), _url_origin(named, place.hub))
    if named.lower().endswith(".gguf") or named.startswith((".", "~")) or os.sep in named or Path(named).exists():
        return _local(Path(named).expanduser().absolute(), named)
    return _model(named, place)


def read_header(subject: Subject, place: Place, role: str = "weights") -> GgufSummary | None:
    """The header of a subject's weights, projector or drafter; None when it has none of that role.

    Read where the file is: here, in the store, or on its server. Raises GgufError and FetchError.
    """
    group = subject.group(role)
    if not group:
        return None
    from gezelctl.gguf.cache import cached_summary

    path = group[0].origin.path or _stored(group[0].sha256, place)
    if path:
        return cached_summary(Path(path), place.paths.cache / "gguf")
    from gezelctl.observe.hub import Connection
    from gezelctl.observe.remote import remote_summary

    with Connection(place.hub) as connection:
        return remote_summary(group, place.hub, place.paths.cache / "gguf", connection)


def _stored(sha256: str, place: Place) -> str:
    """Absolute path of an installed file with this digest, "" when there is none."""
    return next(
        (
            f"{payload.path}/{file.name}"
            for payload in _installed(place)
            for file in payload.manifest.files
            if sha256 and file.sha256 == sha256 and file.name not in payload.damaged
        ),
        "",
    )


def _installed(place: Place) -> tuple[InstalledPayload, ...]:
    if place.session is None:
        return ()
    from gezelctl.store.manifests import scan

    return scan(place.paths).payloads


def _hub_origin(named: str) -> Origin:
    path, _, revision = named.removeprefix("hf:").partition("@")
    parts = path.split("/", 2)
    repo = "/".join(parts[:2])
    if len(parts) < 3 or not HUB_REPO.match(repo) or name_fault(parts[2]):
        raise UsageFault(f"{named} is not {_HUB_FORM}", cure="Name owner, repository and file.")
    if revision and not REVISION.match(revision):
        raise UsageFault(f"{named}: {revision!r} is no revision", cure="Give a commit, tag or branch after the @.")
    return Origin("huggingface", repo=repo, revision=revision or "main", filename=parts[2])


def _url_origin(url: str, hub: Hub) -> Origin:
    """An address on the hub itself is a file of the hub, also when it is the page of the file."""
    parts = urlsplit(url)
    page = _HUB_PATH.fullmatch(unquote(parts.path))
    if page and site(url) == site(hub.endpoint):
        return Origin("huggingface", repo=page[1], revision=page[2], filename=page[3])
    return Origin("url", url=url)


def _remote(shown: str, first: Origin) -> Subject:
    name = basename(first.filename or unquote(urlsplit(first.url).path)) or "model.gguf"
    _require_first(shown, name)
    names = shard_names(name)
    files = tuple(
        PayloadFile(other, "weights" if len(names) == 1 else "shard", _sibling(first, name, other)) for other in names
    )
    return _subject(shown, name, first.repo, files)


def _sibling(first: Origin, name: str, other: str) -> Origin:
    """The origin of another shard in the same folder."""
    if first.kind == "huggingface":
        filename = first.filename.removesuffix(name) + other
        return Origin("huggingface", repo=first.repo, revision=first.revision, filename=filename)
    parts = urlsplit(first.url)
    path = f"{parts.path.rpartition('/')[0]}/{other}" if other != name else parts.path
    return Origin("url", url=urlunsplit(parts._replace(path=path)))


def _require_first(shown: str, name: str) -> None:
    number, count = shard_position(name)
    if number != 1:
        first = shard_names(name)[0]
        raise UsageFault(f"{shown} is shard {number} of {count}", cure=f"Name the first shard, {first}.")


def _local(path: Path, shown: str) -> Subject:
    if path.is_dir():
        model = Model(id=path.name, name=path.name, version="", payloads={})
        return Subject(shown, model, Payload("mlx", path.name, "", ()), folder=path)
    return _subject(shown, path.name, "", (PayloadFile(path.name, "weights", Origin("path", path=str(path))),))


def _subject(shown: str, name: str, repo: str, files: tuple[PayloadFile, ...]) -> Subject:
    stem = re.sub(r"(-0*1-of-\d+)?\.gguf$", "", name, flags=re.IGNORECASE)
    payload = Payload("llama-cpp", stem, repo, files)
    return Subject(shown, Model(id=stem, name=stem, version="", payloads={"llama-cpp": payload}), payload)


def _model(named: str, place: Place) -> Subject:
    from gezelctl.catalog.resolve import Catalogs

    server = _server(named, place)
    if server is not None:
        return server
    if not place.catalogs:
        address = f"server.{named}"
        servers = place.session.resolved if place.session else ()
        raise UsageFault(
            f"{named}: there is no such file, and no catalog to look a model up in",
            cure=f"Did you mean {address}?"
            if any(item.server.address == address for item in servers)
            else "Name a .gguf file, an address, or a catalog with --catalog or in models.yaml.",
        )
    base_dir = place.session.desired.base_dir if place.session else ""
    model = Catalogs(place.catalogs, base_dir).find(named)
    payload = model.payloads.get("llama-cpp")
    if payload is None:
        raise UsageFault(f"{named} has no GGUF files", cure="Name a model with a llama.cpp payload.")
    return Subject(model.id + (f"@{model.version}" if model.version else ""), model, payload)


def _server(named: str, place: Place) -> Subject | None:
    """A server of models.yaml by its address. Raises UsageFault for one that is not there or has no model."""
    if not named.startswith("server."):
        return None
    servers = place.session.resolved if place.session else ()
    found = next((item for item in servers if item.server.address == named), None)
    if found is None or found.model is None or found.payload is None:
        raise UsageFault(f"{named}: there is no such server, or its model is not known", cure="Check models.yaml.")
    folder = found.payload.files[0].origin.path if found.payload.engine == "mlx" else ""
    return Subject(named, found.model, found.payload, found, Path(folder) if folder else None)

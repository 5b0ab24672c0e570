"""The typed form of models.yaml (design 4). One struct a mapping; camelCase outside, snake_case inside."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gezelctl.config.settings import EngineOptions

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="1 to 63 of a-z 0-9 . _ -")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$", description="64 lower-case hexadecimal digits")]
Port = Annotated[int, Meta(ge=1, le=65535, description="TCP port")]
Positive = Annotated[int, Meta(gt=0)]
ExtraArgs = dict[str, bool | int | float | str]


class Strict(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of every mapping of models.yaml: unknown keys are refused."""


class SecretRef(Strict, frozen=True):
    """A reference to a secret; exactly one key. The value itself never stands in models.yaml."""

    from_env: str | None = None
    from_file: str | None = None


class CatalogRef(Strict, frozen=True):
    """A catalog folder (Gilde layout) or one YAML/JSON catalog file; relative to models.yaml."""

    path: str


class StoreConfig(Strict, frozen=True):
    """Where payloads live, which folders may be linked from by sha256, and how."""

    path: str | None = None
    adopt_from: tuple[str, ...] = ()
    link: Literal["hard", "copy"] = "hard"


class HuggingFaceConfig(Strict, frozen=True):
    """A Hugging Face hub or mirror."""

    endpoint: str = "https://huggingface.co"
    token: SecretRef | None = None


class Sources(Strict, frozen=True):
    """Settings of the places that files are fetched from."""

    huggingface: HuggingFaceConfig = HuggingFaceConfig()


class Archive(Strict, frozen=True):
    """An engine build to fetch and unpack: tar.gz or zip, verified by sha256."""

    url: str
    sha256: Sha256
    binary: str = "llama-server"


class Backend(Strict, frozen=True):
    """A named engine build. llama-cpp takes exactly one of binary, archive, embedded; mlx takes python."""

    engine: Literal["llama-cpp", "mlx"]
    accelerator: Literal["cpu", "cuda", "vulkan", "metal", "rocm"] = "cpu"
    binary: str | None = None
    archive: Archive | None = None
    embedded: bool = False
    python: str | None = None
    env: dict[str, str] = {}
    engine_options: EngineOptions | None = None
    extra_args: ExtraArgs = {}


class BackendOverride(Strict, frozen=True):
    """Fields of a backend that differ on one host; a given program form replaces the other forms."""

    engine: Literal["llama-cpp", "mlx"] | None = None
    accelerator: Literal["cpu", "cuda", "vulkan", "metal", "rocm"] | None = None
    binary: str | None = None
    archive: Archive | None = None
    embedded: bool | None = None
    python: str | None = None
    env: dict[str, str] | None = None
    engine_options: EngineOptions | None = None
    extra_args: ExtraArgs | None = None


class FileRef(Strict, frozen=True):
    """One file of an inline source, relative to the source's own place."""

    filename: str
    sha256: Sha256
    size_bytes: Positive | None = None


class Source(Strict, frozen=True):
    """Where an inline model comes from; exactly one of path, url, huggingface.

    path: a GGUF file (or the first shard of a set), or an MLX model folder; sha256 is optional there.
    url: one GGUF file. huggingface: owner/name with `filename`+`sha256`, or `shards`, or `files` for MLX.
    """

    path: str | None = None
    url: str | None = None
    huggingface: str | None = None
    revision: str = "main"
    filename: str | None = None
    sha256: Sha256 | None = None
    size_bytes: Positive | None = None
    shards: tuple[FileRef, ...] = ()
    files: tuple[FileRef, ...] = ()
    mmproj: FileRef | None = None
    draft_model: FileRef | None = None


SpecType = Annotated[str, Meta(description="none, draft-simple, draft-mtp, draft-eagle3, ngram-mod, … or a comma list")]


class Spec(Strict, frozen=True):
    """The speculative-decoding override of a server, laid over the catalog's."""

    type: SpecType
    n_max: Positive | None = None
    n_min: Annotated[int, Meta(ge=0)] | None = None
    draft_model: str | None = None
    """A catalog id, or the path of a GGUF file (contains a slash or ends in .gguf)."""


class Defaults(Strict, frozen=True):
    """What a server has when it says nothing."""

    backend: Name | None = None
    host: str = "127.0.0.1"
    start_timeout_s: Positive = 300


class Server(Strict, frozen=True):
    """One process to keep running. Its address is `server.<name>`."""

    name: Name
    port: Port
    model: str | None = None
    """Catalog id, optionally `@version`."""
    source: Source | None = None
    backend: Name | None = None
    host: str | None = None
    alias: str | None = None
    context: Positive | None = None
    """Tokens per slot."""
    slots: Annotated[int, Meta(ge=1, le=256)] | None = None
    kv_cache: Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"] | None = None
    vision: bool = False
    spec: Spec | None = None
    engine_options: EngineOptions | None = None
    extra_args: ExtraArgs = {}
    env: dict[str, str] = {}
    api_key: SecretRef | None = None
    allow_unauthenticated: bool = False
    start_timeout_s: Positive | None = None


class HostConfig(Strict, frozen=True):
    """One host: which servers it runs (all when absent) and what differs there."""

    models: tuple[Name, ...] | None = None
    backends: dict[Name, BackendOverride] = {}
    store: StoreConfig | None = None
    defaults: Defaults | None = None


class ModelsFile(Strict, frozen=True):
    """models.yaml: the desired state of one stack on one or many hosts."""

    api_version: Literal["gezelctl/v1"]
    stack: Name
    models: tuple[Server, ...]
    catalogs: tuple[CatalogRef, ...] = ()
    store: StoreConfig = StoreConfig()
    sources: Sources = Sources()
    backends: dict[Name, Backend] = {}
    defaults: Defaults = Defaults()
    hosts: dict[str, HostConfig] = {}
    prune: bool = False

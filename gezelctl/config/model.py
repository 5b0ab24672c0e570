"""The typed form of models.yaml (design 4). One struct a mapping; camelCase outside, snake_case inside."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gezelctl.config.settings import EngineOptions

# Patterns end in `$(?!\n)`: a bare `$` also matches before a final line break in Python, and editors know no `\Z`.
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$(?!\n)"
SHA256_PATTERN = r"^[0-9a-f]{64}$(?!\n)"
Name = Annotated[
    str,
    Meta(
        pattern=NAME_PATTERN,
        description="1 to 63 of a-z 0-9 . _ - and the first is a letter or digit",
    ),
]
Sha256 = Annotated[str, Meta(pattern=SHA256_PATTERN, description="64 lower-case hexadecimal digits")]
Port = Annotated[int, Meta(ge=1, le=65535, description="TCP port")]
Positive = Annotated[int, Meta(gt=0)]
SizeBytes = Annotated[int, Meta(gt=0, description="size of the file; lets a plan say how much is downloaded")]
Text = Annotated[str, Meta(min_length=1)]
ExtraArgs = Annotated[
    dict[str, bool | int | float | str],
    Meta(description="engine flags by their long name without dashes; true is the bare flag, false leaves it out"),
]
Env = Annotated[dict[str, str], Meta(description="environment variables of the engine process")]
Engine = Annotated[Literal["llama-cpp", "mlx"], Meta(description="the program that serves")]
Accelerator = Annotated[
    Literal["cpu", "cuda", "vulkan", "metal", "rocm"], Meta(description="what the engine build computes on")
]
Binary = Annotated[Text, Meta(description="a llama-server on this host: a path, or a bare name to be found on PATH")]
Python = Annotated[
    Text, Meta(description="the Python that has mlx-lm: a path, or a bare name; absent = gezelctl's own")
]


class Strict(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of every mapping of models.yaml: unknown keys are refused."""


class SecretRef(Strict, frozen=True):
    """A reference to a secret; exactly one key. The value itself never stands in models.yaml."""

    from_env: Annotated[Text | None, Meta(description="name of the environment variable that holds it")] = None
    from_file: Annotated[Text | None, Meta(description="path of the file that holds it; relative to models.yaml")] = (
        None
    )


class CatalogRef(Strict, frozen=True):
    """A catalog folder (Gilde layout) or one YAML/JSON catalog file; relative to models.yaml."""

    path: Annotated[Text, Meta(description="the folder or file")]


class StoreConfig(Strict, frozen=True):
    """Where payloads live, which folders may be linked from by sha256, and how."""

    path: Annotated[Text | None, Meta(description="store folder; absent = the platform data folder")] = None
    adopt_from: Annotated[
        tuple[Text, ...], Meta(description="folders searched by sha256 before anything is downloaded")
    ] = ()
    link: Annotated[
        Literal["hard", "copy"], Meta(description="hard links cost no space; copy where the file system has none")
    ] = "hard"


class HuggingFaceConfig(Strict, frozen=True):
    """A Hugging Face hub or mirror."""

    endpoint: Annotated[Text, Meta(description="address of the hub or mirror")] = "https://huggingface.co"
    token: Annotated[SecretRef | None, Meta(description="token for gated and private repositories")] = None


class Sources(Strict, frozen=True):
    """Settings of the places that files are fetched from."""

    huggingface: HuggingFaceConfig = HuggingFaceConfig()


class Archive(Strict, frozen=True):
    """An engine build to fetch and unpack: tar.gz or zip, verified by sha256."""

    url: Annotated[Text, Meta(description="http(s) address of the archive")]
    sha256: Sha256
    binary: Annotated[Text, Meta(description="path of the program inside the archive")] = "llama-server"


class Backend(Strict, frozen=True):
    """A named engine build. llama-cpp takes exactly one of binary, archive, embedded; mlx takes python."""

    engine: Engine
    accelerator: Accelerator = "cpu"
    binary: Binary | None = None
    archive: Archive | None = None
    embedded: Annotated[bool, Meta(description="the llama.cpp server inside gezelctl[embedded]")] = False
    python: Python | None = None
    env: Env = {}
    engine_options: EngineOptions | None = None
    extra_args: ExtraArgs = {}


class BackendOverride(Strict, frozen=True):
    """Fields of a backend that differ on one host; a given program form replaces the other forms."""

    engine: Engine | None = None
    accelerator: Accelerator | None = None
    binary: Binary | None = None
    archive: Archive | None = None
    embedded: bool | None = None
    python: Python | None = None
    env: Env | None = None
    engine_options: EngineOptions | None = None
    extra_args: ExtraArgs | None = None


class FileRef(Strict, frozen=True):
    """One file of an inline source, relative to the source's own place."""

    filename: Annotated[Text, Meta(description="name of the file in the source's place")]
    sha256: Sha256
    size_bytes: SizeBytes | None = None


class Source(Strict, frozen=True):
    """Where an inline model comes from; exactly one of path, url, huggingface.

    path: a GGUF file (or the first shard of a set), or an MLX model folder; sha256 is optional there.
    url: one GGUF file. huggingface: owner/name with `filename`+`sha256`, or `shards`, or `files` for MLX.
    """

    path: Annotated[
        Text | None, Meta(description="a GGUF file, its first shard, or an MLX model folder; relative to models.yaml")
    ] = None
    url: Annotated[Text | None, Meta(description="http(s) address of one GGUF file; needs sha256")] = None
    huggingface: Annotated[Text | None, Meta(description="repository as owner/name")] = None
    revision: Annotated[Text, Meta(description="branch, tag or commit of the repository")] = "main"
    filename: Annotated[Text | None, Meta(description="the GGUF file in the repository; needs sha256")] = None
    sha256: Sha256 | None = None
    size_bytes: SizeBytes | None = None
    shards: Annotated[tuple[FileRef, ...], Meta(description="all shards of a split GGUF, the first one first")] = ()
    files: Annotated[tuple[FileRef, ...], Meta(description="all files of an MLX model")] = ()
    mmproj: Annotated[FileRef | None, Meta(description="vision projector (GGUF)")] = None
    draft_model: Annotated[FileRef | None, Meta(description="draft model (GGUF)")] = None


SpecType = Annotated[str, Meta(description="none, draft-simple, draft-mtp, draft-eagle3, ngram-mod, … or a comma list")]


class Spec(Strict, frozen=True):
    """The speculative-decoding override of a server, laid over the catalog's."""

    type: SpecType
    n_max: Annotated[Positive | None, Meta(description="most draft tokens a step")] = None
    n_min: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="fewest draft tokens a step")] = None
    draft_model: Annotated[
        Text | None, Meta(description="a catalog id, or the path of a GGUF file (has a slash or ends in .gguf)")
    ] = None


class Defaults(Strict, frozen=True):
    """What a server has when it says nothing."""

    backend: Name | None = None
    host: Annotated[Text, Meta(description="address to listen on")] = "127.0.0.1"
    start_timeout_s: Annotated[Positive, Meta(description="seconds until a server must serve")] = 300
    memory_mib: Annotated[
        Positive | None,
        Meta(description="MiB that servers may use on a host, not a share of what it has; below 1024 = no limit"),
    ] = None


class Server(Strict, frozen=True):
    """One process to keep running. Its address is `server.<name>`."""

    name: Name
    port: Port
    model: Annotated[Text | None, Meta(description="catalog id, optionally @version")] = None
    source: Annotated[Source | None, Meta(description="an inline model, instead of a catalog one")] = None
    backend: Annotated[Name | None, Meta(description="name of a backend; absent = defaults.backend")] = None
    host: Annotated[Text | None, Meta(description="address to listen on; absent = defaults.host")] = None
    alias: Annotated[Text | None, Meta(description="model name that the API reports")] = None
    context: Annotated[Positive | None, Meta(description="tokens per slot; absent = adaptive")] = None
    slots: Annotated[Annotated[int, Meta(ge=1, le=256)] | None, Meta(description="requests served at once")] = None
    kv_cache: Annotated[
        Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"] | None,
        Meta(description="type of the KV cache, keys and values alike"),
    ] = None
    vision: Annotated[bool, Meta(description="load the vision projector (mmproj)")] = False
    spec: Spec | None = None
    engine_options: EngineOptions | None = None
    extra_args: ExtraArgs = {}
    env: Env = {}
    api_key: Annotated[SecretRef | None, Meta(description="key that clients must send")] = None
    allow_unauthenticated: Annotated[bool, Meta(description="serve beyond loopback without an API key")] = False
    start_timeout_s: Annotated[Positive | None, Meta(description="seconds until it must serve")] = None


class HostConfig(Strict, frozen=True):
    """One host: which servers it runs (all when absent) and what differs there."""

    models: Annotated[tuple[Name, ...] | None, Meta(description="names of the servers that run here; absent = all")] = (
        None
    )
    backends: dict[Name, BackendOverride] = {}
    store: StoreConfig | None = None
    defaults: Defaults | None = None


class ModelsFile(Strict, frozen=True):
    """models.yaml: the desired state of one stack on one or many hosts."""

    api_version: Annotated[Literal["gezelctl/v1"], Meta(description="version of this format")]
    stack: Annotated[Name, Meta(description="name of what belongs together: its own state, lock and servers")]
    models: Annotated[tuple[Server, ...], Meta(description="the servers to keep running; [] for none")]
    catalogs: Annotated[tuple[CatalogRef, ...], Meta(description="searched in order")] = ()
    store: StoreConfig = StoreConfig()
    sources: Sources = Sources()
    backends: dict[Name, Backend] = {}
    defaults: Defaults = Defaults()
    hosts: Annotated[
        dict[str, HostConfig], Meta(description="by host name; absent = every server is for every host")
    ] = {}
    prune: Annotated[bool, Meta(description="stop servers of this stack that are no longer listed")] = False

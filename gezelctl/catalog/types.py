"""The resolved catalog: one model version with its payloads, whatever file layout it came from."""

from __future__ import annotations

from typing import Literal

import msgspec

Engine = Literal["llama-cpp", "mlx"]
Role = Literal["weights", "shard", "mmproj", "draft", "template", "file"]


class Origin(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where a file comes from. `path` is absolute; `filename` is the path inside the Hugging Face repo."""

    kind: Literal["path", "url", "huggingface"]
    path: str = ""
    url: str = ""
    repo: str = ""
    revision: str = "main"
    filename: str = ""


class PayloadFile(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One file of a payload.

    `name` is the contained POSIX relative path in the payload folder. `sha256` is 64 lower-case hex digits, "" only
    for a `path` origin that pins none. `size_bytes` is 0 when the catalog does not say. `optional` files (projector)
    belong to the fingerprint but are fetched only when asked for. `backends` limits a drafter to accelerators.
    """

    name: str
    role: Role
    origin: Origin
    sha256: str = ""
    size_bytes: int = 0
    optional: bool = False
    backends: tuple[str, ...] = ()


class Payload(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The files of one model for one engine. `files[0]` is what llama.cpp gets as `--model` (first shard)."""

    engine: Engine
    model_id: str
    repo: str
    files: tuple[PayloadFile, ...]
    version: str = ""
    fingerprint: str = ""
    """sha256 by reference-behaviour 5.2; "" when a file pins no sha256."""
    quantization: str = ""
    chat_template: str = ""
    disabled_reason: str = ""
    approx_size_bytes: int = 0
    resident_bytes: int = 0
    excluded_backends: tuple[str, ...] = ()


class Model(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One catalog model at one version.

    `engine_options` is `tuning.engine.llamaCpp` as written (camelCase names of the settings table), `spec` its
    speculative block (`byBackend` included). `thinking_budget` follows reference-behaviour 1.6.
    """

    id: str
    name: str
    version: str
    payloads: dict[str, Payload]
    available_versions: tuple[str, ...] = ()
    context_window: int = 0
    kv_bytes_per_token_f16: float = 0
    kv_fixed_bytes_f16: float = 0
    parameter_size: str = ""
    tags: tuple[str, ...] = ()
    license: str = ""
    engine_options: dict[str, bool | int | float | str] = {}
    spec: dict[str, object] = {}
    thinking_budget: int = 0

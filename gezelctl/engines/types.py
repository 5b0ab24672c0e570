"""What a launch is: the values it was decided from, and the exact process that follows from them."""

from __future__ import annotations

from typing import Literal

import msgspec

from gezelctl.config.diagnostics import Place

Scalar = bool | int | float | str
OriginKind = Literal["server", "backend", "defaults", "catalog", "planner", "engine", "managed"]


class Value(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One launch value with its origin. `name` is the models.yaml name ("context", "flashAttn", "spec.type", …).

    `reason` is one line, given for planner and engine values. `place` is set for server, backend and defaults.
    """

    name: str
    value: Scalar
    origin: OriginKind
    reason: str = ""
    place: Place | None = None
    effect: Literal["live", "restart"] = "restart"


class ConfigFile(msgspec.Struct, frozen=True, rename="camel"):
    """A file that must stand beside the process before it starts (MLX sidecar). `content` ends with a newline."""

    path: str
    content: str


class SecretEnv(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An environment variable whose value is read at start. Exactly one of `from_env`, `from_file`."""

    name: str
    from_env: str = ""
    from_file: str = ""


class Expectation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a started server must report about itself. 0, "" and None mean: not checked."""

    model_id: str = ""
    """id in /v1/models (the alias, or the model folder for MLX)."""
    model_path: str = ""
    context_tokens: int = 0
    """Per slot, after the engine's own padding."""
    slots: int = 0
    speculation: bool | None = None
    prompt: str = "Say hello."
    chat: bool = True
    """False for embedding servers: prove with /v1/embeddings instead of a generation."""


class LaunchSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Everything that makes one server process; compared field by field and recorded.

    `program` is absolute; `argv` excludes it. `payload` maps file names of the payload folder to sha256.
    `engine_digest` names the engine build (see `observe.types.EngineProbe.digest`).
    """

    server: str
    engine: str
    backend: str
    program: str
    argv: tuple[str, ...]
    host: str
    port: int
    env: dict[str, str] = {}
    secret_env: tuple[SecretEnv, ...] = ()
    config_files: tuple[ConfigFile, ...] = ()
    directories: tuple[str, ...] = ()
    """Absolute paths of folders that must exist before the start (slot caches)."""
    payload: dict[str, str] = {}
    payload_id: str = ""
    engine_digest: str = ""
    values: tuple[Value, ...] = ()
    expect: Expectation = Expectation()
    start_timeout_s: int = 300

    @property
    def base_url(self) -> str:
        """Where the server answers; a wildcard bind is asked on loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - mapping, not binding
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

"""The desired state of one host: what models.yaml says after host selection, with every path absolute.

Equal for equal meaning: servers are sorted by name and only `places` depends on where things stand in the file.
"""

from __future__ import annotations

import msgspec

from gezelctl.config.diagnostics import Place
from gezelctl.config.model import Backend, ExtraArgs, SecretRef, Source, Sources, Spec, StoreConfig
from gezelctl.config.settings import option_values


class DesiredServer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One server on this host. `context` is tokens per slot; `model` and `source` exclude each other.

    `engine_options` are the server's own, `backend.engine_options` the backend's; nothing is merged yet, so that the
    launch can say where each value came from. `places` maps dotted field names ("context", "engineOptions.flashAttn",
    "spec.nMax", "extraArgs.temp", "backend.engineOptions.threads") to where they stand; "" is the server itself.
    """

    name: str
    port: int
    host: str
    backend_name: str
    backend: Backend
    start_timeout_s: int
    model: str | None = None
    source: Source | None = None
    alias: str | None = None
    context: int | None = None
    slots: int | None = None
    kv_cache: str | None = None
    vision: bool = False
    spec: Spec | None = None
    engine_options: dict[str, bool | int | float | str] = {}
    extra_args: ExtraArgs = {}
    env: dict[str, str] = {}
    api_key: SecretRef | None = None
    allow_unauthenticated: bool = False
    places: dict[str, Place] = {}

    @property
    def address(self) -> str:
        return f"server.{self.name}"

    @property
    def backend_options(self) -> dict[str, bool | int | float | str]:
        """The backend's engine options that are set, in table order."""
        return option_values(self.backend.engine_options)

    def place(self, field: str) -> Place | None:
        """Where `field` stands, else where its nearest parent does, else the server."""
        while field and field not in self.places:
            field = field.rpartition(".")[0]
        return self.places.get(field)


class HostDesired(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Everything models.yaml wants of one host. `backends` are those that a server of this host uses."""

    stack: str
    host: str
    servers: tuple[DesiredServer, ...]
    backends: dict[str, Backend]
    store: StoreConfig
    sources: Sources
    catalogs: tuple[str, ...] = ()
    """Absolute paths, in search order."""
    base_dir: str = ""
    """The folder that relative secret files are read against."""
    prune: bool = False
    memory_budget_bytes: int = 0
    """What may be planned with on this host, instead of the automatic share; 0 = automatic."""

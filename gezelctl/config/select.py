"""From models.yaml to what one host is to run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from gezelctl.config.desired import DesiredServer, HostDesired
from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, Place
from gezelctl.config.hints import did_you_mean, show
from gezelctl.config.loader import LoadedConfig
from gezelctl.config.model import Backend, Defaults, Server, Sources, StoreConfig
from gezelctl.config.overlay import mapping, overlay, overlay_backend
from gezelctl.config.settings import option_values
from gezelctl.config.yaml12 import Node

_SORTED = ("engineOptions", "extraArgs", "env")
_BACKEND_PATHS = ("binary", "python")

Steps = tuple[str | int, ...]


def for_host(loaded: LoadedConfig, host: str, *, home: str | None = None, base_dir: Path | None = None) -> HostDesired:
    """What `host` is to run, every path absolute, servers and backends sorted by name.

    `home` and `base_dir` stand for `~` and the folder of models.yaml on a host that is planned from elsewhere. A bare
    program name (`binary: llama-server`) stays as it is: it is looked up on the PATH of that host. Raises
    InvalidConfig (E0130) when the file lists hosts and not this one.
    """
    return _Selection(loaded, _host_key(loaded, host), host, home, base_dir).desired()


def _host_key(loaded: LoadedConfig, host: str) -> str | None:
    """The key of `hosts` that means this host: its full name, else its first label; None in a file without hosts."""
    hosts = loaded.model.hosts
    if not hosts:
        return None
    for name in (host, host.partition(".")[0]):
        if name in hosts:
            return name
    place = loaded.root.key_place(("hosts",))
    snippet = loaded.report.sources[place.file].snippet(place.line)
    cure = f"{did_you_mean(host, hosts, kind='hosts')} Choose one with --host NAME, or add it to hosts"
    summary = f"host {show(host)} is not listed under hosts"
    raise InvalidConfig([Diagnostic(code="E0130", summary=summary, cure=cure, place=place, snippet=snippet)])


class _Selection:
    def __init__(self, loaded: LoadedConfig, key: str | None, host: str, home: str | None, base: Path | None) -> None:
        self.loaded = loaded
        self.host = key or host
        self.at: Steps = ("hosts", key) if key is not None else ()
        self.home = home
        self.base = base
        data = loaded.data
        self.config = mapping(mapping(data.get("hosts")).get(key)) if key is not None else {}
        merged = overlay(mapping(data.get("defaults")), mapping(self.config.get("defaults")))
        self.defaults = msgspec.convert(merged, Defaults)
        self.backends: dict[str, Backend] = {}

    def desired(self) -> HostDesired:
        model = self.loaded.model
        chosen = model.hosts[self.host].models if self.at else None
        here = [(i, server) for i, server in enumerate(model.models) if chosen is None or server.name in chosen]
        servers = tuple(self._server(index, server) for index, server in sorted(here, key=lambda item: item[1].name))
        return HostDesired(
            stack=model.stack,
            host=self.host,
            servers=servers,
            backends=dict(sorted(self.backends.items())),
            store=self._store(),
            sources=self._sources(),
            catalogs=tuple(self._absolute(c.path, ("catalogs", i, "path")) for i, c in enumerate(model.catalogs)),
            base_dir=str(self.base or self.loaded.base_dir),
            prune=model.prune,
            memory_budget_bytes=(self.defaults.memory_mib or 0) << 20,
        )

    def _server(self, index: int, server: Server) -> DesiredServer:
        at: Steps = ("models", index)
        name = server.backend or self.defaults.backend
        if name is None:
            raise AssertionError("the checks let no server without a backend pass")
        plain = self._paths_absolute(self.loaded.data["models"][index], at, server_fields=True)
        made = msgspec.convert(plain, Server)
        return DesiredServer(
            name=made.name,
            port=made.port,
            host=made.host or self.defaults.host,
            backend_name=name,
            backend=self._backend(name),
            start_timeout_s=made.start_timeout_s or self.defaults.start_timeout_s,
            model=made.model,
            source=made.source,
            alias=made.alias,
            context=made.context,
            slots=made.slots,
            kv_cache=made.kv_cache,
            vision=made.vision,
            spec=made.spec,
            engine_options=option_values(made.engine_options),
            extra_args=made.extra_args,
            env=made.env,
            api_key=made.api_key,
            allow_unauthenticated=made.allow_unauthenticated,
            places=self._places(at, name),
        )

    def _backend(self, name: str) -> Backend:
        if name not in self.backends:
            base = self._paths_absolute(self.loaded.data["backends"][name], ("backends", name))
            at = (*self.at, "backends", name)
            given = mapping(mapping(self.config.get("backends")).get(name))
            merged = overlay_backend(base, self._paths_absolute(given, at))
            self.backends[name] = msgspec.convert(_sort(merged), Backend)
        return self.backends[name]

    def _store(self) -> StoreConfig:
        base = self._store_paths(mapping(self.loaded.data.get("store")), ("store",))
        given = self._store_paths(mapping(self.config.get("store")), (*self.at, "store"))
        return msgspec.convert(overlay(base, given), StoreConfig)

    def _store_paths(self, store: dict[str, Any], at: Steps) -> dict[str, Any]:
        store = self._change(store, "path", at)
        if store.get("adoptFrom"):
            store["adoptFrom"] = [
                self._absolute(path, (*at, "adoptFrom", index)) for index, path in enumerate(store["adoptFrom"])
            ]
        return store

    def _sources(self) -> Sources:
        sources = dict(mapping(self.loaded.data.get("sources")))
        hub = dict(mapping(sources.get("huggingface")))
        at: Steps = ("sources", "huggingface", "token")
        if hub.get("token"):
            hub["token"] = self._change(hub["token"], "fromFile", at)
        if hub:
            sources["huggingface"] = hub
        return msgspec.convert(sources, Sources)

    def _paths_absolute(self, config: dict[str, Any], at: Steps, *, server_fields: bool = False) -> dict[str, Any]:
        """A server or backend with absolute paths and sorted options; the document itself is never changed."""
        made = _sort(config)
        if made.get("engineOptions"):
            made["engineOptions"] = self._change(made["engineOptions"], "chatTemplateFile", (*at, "engineOptions"))
        if not server_fields:
            for key in _BACKEND_PATHS:
                if made.get(key) and ("/" in made[key] or made[key].startswith("~")):
                    made = self._change(made, key, at)
            return made
        for parent, key in (("source", "path"), ("apiKey", "fromFile"), ("spec", "draftModel")):
            inner = made.get(parent)
            if inner and inner.get(key) and (key != "draftModel" or _is_file(inner[key])):
                made[parent] = self._change(inner, key, (*at, parent))
        return made

    def _change(self, config: dict[str, Any], key: str, at: Steps) -> dict[str, Any]:
        made = dict(config)
        if made.get(key):
            made[key] = self._absolute(made[key], (*at, key))
        return made

    def _absolute(self, path: str, at: Steps) -> str:
        if path == "~" or path.startswith("~/"):
            path = (self.home or os.path.expanduser("~")) + path[1:]  # noqa: PTH111 - Path.home() raises without a home
        elif path.startswith("~"):
            path = os.path.expanduser(path)  # noqa: PTH111 - a user that does not exist leaves the path as it is
        return os.path.normpath((self.base or self.loaded.folder(at)) / path)

    def _places(self, at: Steps, backend: str) -> dict[str, Place]:
        """Dotted field names to places; a default that filled a field, and the backend, in the server's own terms."""
        root = self.loaded.root
        node = root.find(at)
        places = {"": node.place}
        for prefix in ((), self.at):
            for key in ("backend", "host", "startTimeoutS"):
                default = root.get((*prefix, "defaults", key))
                if default is not None and default.data is not None:
                    places[key] = default.place
        for path in (("backends", backend), (*self.at, "backends", backend)):
            _add_places(places, "backend", root.get(path))
        _add_places(places, "", node)
        return dict(sorted(places.items()))


def _add_places(places: dict[str, Place], prefix: str, node: Node | None) -> None:
    if node is None or not isinstance(node.children, dict):
        return
    for key, child in node.children.items():
        if child.data is not None:
            field = f"{prefix}.{key}" if prefix else key
            places[field] = child.place
            _add_places(places, field, child)


def _sort(config: dict[str, Any]) -> dict[str, Any]:
    made = dict(config)
    for key in _SORTED:
        if made.get(key):
            made[key] = dict(sorted(made[key].items()))
    return made


def _is_file(draft: str) -> bool:
    return "/" in draft or draft.endswith(".gguf")

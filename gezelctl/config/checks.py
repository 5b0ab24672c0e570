"""The rules that types cannot say, over the whole file. All of them report; none stops another.

They read plain values and take a value of the wrong type as absent, so that they also run on a file that did not
decode: its type errors are reported beside these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gezelctl.config.check_server import (
    Path,
    check_env,
    check_extra_args,
    check_host,
    check_server,
    check_server_engine,
    is_open,
    safe_name,
)
from gezelctl.config.diagnostics import Place
from gezelctl.config.hints import did_you_mean, show
from gezelctl.config.overlay import called, items, mapping, overlay, overlay_backend, program_forms, text
from gezelctl.config.redact import holds_token, is_secret_key
from gezelctl.config.report import Report
from gezelctl.config.settings import ENGINE_SETTINGS
from gezelctl.config.yaml12 import Node

_REFERENCE_CURE = (
    "write {fromEnv: NAME} or {fromFile: PATH} under apiKey or token instead; "
    "replace the secret if the file was ever shared"
)
_REFERENCE_KEYS = ("fromEnv", "fromFile")
_MULTI_LINE = ("chatTemplate", "env", "extraArgs")


@dataclass(frozen=True)
class _View:
    """What one host runs; `host` is "" for a file without hosts. `servers` are (index, mapping)."""

    host: str
    servers: list[tuple[int, dict[str, Any]]]
    backends: dict[str, dict[str, Any]]
    defaults: dict[str, Any]


def hide_secrets(roots: Sequence[Node], report: Report) -> None:
    """Find literal secrets (E0123) and mask them in everything reported from here on."""
    seen: set[int] = set()
    for root in roots:
        _hide_under(root, "", secret=False, report=report, seen=seen)
    for source in report.sources.values():
        source.secrets_known = True


def check(data: Any, report: Report) -> None:
    """Report every broken rule of a merged models.yaml (E0110 to E0139)."""
    top = mapping(data)
    _check_names(top, report)
    _check_hosts(top, report)
    for name, backend in mapping(top.get("backends")).items():
        _check_backend(mapping(backend), ("backends", name), mapping(backend), report)
    for index, server in _servers(top):
        check_server(server, ("models", index), report)
    for view in _views(top):
        _check_ports(view, report)
        _check_engines(view, report)
    _warn_unplaced(top, report)
    _check_places_of_secrets(top, report)
    _check_text(data, (), report)


def _hide_under(node: Node, key: str, *, secret: bool, report: Report, seen: set[int]) -> None:
    # An alias leads here again; by a second key it may be a secret although it was none by the first.
    if id(node) in seen and not secret:
        return
    seen.add(id(node))
    secret = (secret or is_secret_key(key)) and key not in _REFERENCE_KEYS
    if isinstance(node.children, dict):
        for name, child in node.children.items():
            if holds_token(name):
                place = Place(child.file, node.keys[name].line, node.keys[name].column)
                report.error_at("E0123", place, "a key looks like an access token", _REFERENCE_CURE)
            _hide_under(child, name, secret=secret, report=report, seen=seen)
    elif isinstance(node.children, list):
        for child in node.children:
            _hide_under(child, key, secret=secret, report=report, seen=seen)
    elif secret and node.data not in (None, "") and not isinstance(node.data, bool):
        report.literal_secret(node, f"a secret stands in the file, under {show(key)}", _REFERENCE_CURE)
    elif isinstance(node.data, str) and holds_token(node.data):
        report.hide(node)
        report.error_at(
            "E0123", node.place, f"the value of {show(key)} holds an access token or password", _REFERENCE_CURE
        )


def _servers(top: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    for index, server in enumerate(items(top.get("models"))):
        if isinstance(server, dict):
            yield index, server


def _check_names(top: dict[str, Any], report: Report) -> None:
    first: dict[str, int] = {}
    for index, server in _servers(top):
        name = text(server.get("name"))
        if name and name in first:
            where = report.root.find(("models", first[name], "name")).place.short
            summary = f"two servers are called {name} (first at {where})"
            report.error("E0110", ("models", index, "name"), summary, "give one of them another name")
        first.setdefault(name, index)


def _check_defaults(defaults: dict[str, Any], path: tuple[str, ...], backends: dict[str, Any], report: Report) -> None:
    _check_backend_name(defaults, (*path, "backend"), backends, report)
    check_host(text(defaults.get("host")), (*path, "host"), report)


def _check_hosts(top: dict[str, Any], report: Report) -> None:
    known = [text(server.get("name")) for _, server in _servers(top)]
    backends = mapping(top.get("backends"))
    _check_defaults(mapping(top.get("defaults")), ("defaults",), backends, report)
    for host, config in mapping(top.get("hosts")).items():
        path = ("hosts", host)
        for index, name in enumerate(items(mapping(config).get("models"))):
            if isinstance(name, str) and name not in known:
                cure = did_you_mean(name, filter(None, known), kind="servers")
                report.error("E0117", (*path, "models", index), f"there is no server {show(name)}", cure)
        _check_defaults(mapping(mapping(config).get("defaults")), (*path, "defaults"), backends, report)
        for name, override in mapping(mapping(config).get("backends")).items():
            here = (*path, "backends", name)
            if name in backends:
                merged = overlay_backend(mapping(backends[name]), mapping(override))
                _check_backend(mapping(override), here, merged, report)
            else:
                cure = did_you_mean(name, backends, kind="backends")
                report.error("E0112", here, f"there is no backend {show(name)} to override", cure, key=True)


def _check_backend_name(config: dict[str, Any], path: Path, backends: dict[str, Any], report: Report) -> None:
    name = text(config.get("backend"))
    if name and name not in backends:
        report.error("E0112", path, f"there is no backend {show(name)}", did_you_mean(name, backends, kind="backends"))


def _check_backend(given: dict[str, Any], path: Path, backend: dict[str, Any], report: Report) -> None:
    """`given` is what stands at `path`; `backend` is that laid over its base (the same for a base)."""
    engine = text(backend.get("engine"))
    forms = program_forms(backend)
    if engine == "llama-cpp" and (len(forms) != 1 or forms == ["python"]):
        has = f"has {' and '.join(forms)}" if forms else "says no program"
        cure = "give exactly one of binary, archive, embedded: true"
        report.error("E0114", path, f"a llama-cpp backend {has}", cure, key=True)
    if engine == "mlx" and set(forms) - {"python"}:
        wrong = " and ".join(form for form in forms if form != "python")
        report.error(
            "E0114", path, f"an mlx backend cannot have {wrong}", "give python, or nothing for gezelctl's own", key=True
        )
    archive = mapping(given.get("archive"))
    if text(archive.get("url")) and not text(archive.get("url")).startswith(("https://", "http://")):
        report.error(
            "E0119", (*path, "archive", "url"), "an archive is fetched over http or https", "write its https:// address"
        )
    if text(archive.get("binary")) and not safe_name(text(archive.get("binary"))):
        cure = "write the path inside the archive, as build/bin/llama-server"
        report.error("E0122", (*path, "archive", "binary"), "the path leaves the archive", cure)
    if engine in ENGINE_SETTINGS:
        check_server_engine(given, path, engine, f"this backend's engine is {engine}", report)
    check_extra_args(given, path, report)
    check_env(given, path, report)


def _views(top: dict[str, Any]) -> Iterator[_View]:
    """One view a host; without hosts, and for servers on no host, the file as it stands."""
    backends = {name: mapping(value) for name, value in mapping(top.get("backends")).items()}
    defaults = mapping(top.get("defaults"))
    servers = list(_servers(top))
    hosts = mapping(top.get("hosts"))
    if not hosts:
        yield _View("", servers, backends, defaults)
        return
    placed: set[int] = set()
    for host, value in hosts.items():
        config = mapping(value)
        chosen = config.get("models")
        here = [item for item in servers if not isinstance(chosen, list) or item[1].get("name") in chosen]
        placed.update(index for index, _ in here)
        overrides = mapping(config.get("backends"))
        merged = {name: overlay_backend(backend, mapping(overrides.get(name))) for name, backend in backends.items()}
        yield _View(host, here, merged, overlay(defaults, mapping(config.get("defaults"))))
    for item in servers:
        if item[0] not in placed:
            yield _View("", [item], backends, defaults)


def _warn_unplaced(top: dict[str, Any], report: Report) -> None:
    hosts = mapping(top.get("hosts")).values()
    chosen = [mapping(config).get("models") for config in hosts]
    if not chosen or not all(isinstance(names, list) for names in chosen):
        return
    placed = [name for names in chosen for name in items(names)]
    for index, server in _servers(top):
        if server.get("name") not in placed:
            cure = "add it to the models of a host, or remove it"
            summary = f"server {text(server.get('name'))} is on no host"
            report.warn("E0132", ("models", index), summary, cure)


def _check_ports(view: _View, report: Report) -> None:
    first: dict[int, tuple[int, str]] = {}
    for index, server in view.servers:
        port = server.get("port")
        if type(port) is not int:
            continue
        if port in first and server.get("name") != first[port][1]:
            other = first[port]
            place = report.root.find(("models", other[0], "port")).place.short
            where = f" on host {view.host}" if view.host else ""
            summary = f"port {port} is taken by server {other[1]}{where} (at {place})"
            report.error("E0111", ("models", index, "port"), summary, "choose another port")
        first.setdefault(port, (index, text(server.get("name"))))


def _check_engines(view: _View, report: Report) -> None:
    where = f" on host {view.host}" if view.host else ""
    for index, server in view.servers:
        path: Path = ("models", index)
        name = server["backend"] if server.get("backend") is not None else view.defaults.get("backend")
        if name is None:
            cure = f"add backend: to the server or to defaults{_known(view.backends)}"
            report.error("E0113", path, f"{called(server, index)} has no backend{where}", cure)
        elif isinstance(name, str) and name not in view.backends:
            if server.get("backend") is not None:
                _check_backend_name(server, (*path, "backend"), view.backends, report)
        elif isinstance(name, str):
            engine = text(view.backends[name].get("engine"))
            if engine in ENGINE_SETTINGS:
                owner = f"backend {name}{where} is {engine}"
                check_server_engine(server, path, engine, owner, report)
        _check_exposure(server, path, view.defaults, report)


def _known(backends: dict[str, Any]) -> str:
    return f"; known backends: {', '.join(sorted(backends))}" if backends else ", and declare it under backends"


def _check_exposure(server: dict[str, Any], path: Path, defaults: dict[str, Any], report: Report) -> None:
    host = text(server.get("host")) or text(defaults.get("host"))
    if not is_open(host) or server.get("apiKey") is not None or server.get("allowUnauthenticated") is True:
        return
    where = (*path, "host") if server.get("host") is not None else path
    summary = f"server {text(server.get('name'))} listens on {host} without an API key: other machines can use it"
    report.error("E0118", where, summary, "add apiKey: {fromEnv: NAME}, or allowUnauthenticated: true if that is meant")


def _check_places_of_secrets(top: dict[str, Any], report: Report) -> None:
    paths: list[Path] = [("models", index, "apiKey") for index, _ in _servers(top)]
    for path in [*paths, ("sources", "huggingface", "token")]:
        value = report.root.get(path)
        if value is None or not isinstance(value.data, dict):
            continue
        given = [key for key in _REFERENCE_KEYS if value.data.get(key) is not None]
        if len(given) != 1:
            what = "both fromEnv and fromFile" if given else "neither fromEnv nor fromFile"
            report.error("E0124", path, f"{path[-1]} has {what}", "give exactly one of them", key=True)


def _check_text(value: Any, path: Path, report: Report) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _check_text(item, (*path, key), report)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_text(item, (*path, index), report)
    elif isinstance(value, str) and not value.isprintable():
        allowed = "\t\n" if any(key in path for key in _MULTI_LINE) else ""
        if any((ord(char) < 0x20 and char not in allowed) or char == "\x7f" for char in value):
            report.error("E0131", path, "the value holds a line break or control character", "write it on one line")

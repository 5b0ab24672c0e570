"""The rules of one server: its model or source, its options, and what its engine can take."""

from __future__ import annotations

import re
from typing import Any

from gezelctl.config.hints import show
from gezelctl.config.overlay import called, items, mapping, text
from gezelctl.config.report import Report
from gezelctl.config.settings import ENGINE_SETTINGS

Path = tuple[str | int, ...]

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:@[A-Za-z0-9][A-Za-z0-9.+_-]*)?")
_HOST = re.compile(r"[A-Za-z0-9_.:%-]+")
_LOOPBACK = re.compile(r"localhost|::1|127(?:\.[0-9]{1,3}){1,3}", re.IGNORECASE)
_FLAG = re.compile(r"[a-z][a-z0-9-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPEC_TYPE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_DEVICE_NAME = re.compile(r"(?i)(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")
_ORIGINS = ("path", "url", "huggingface")
_FORMS = ("filename", "shards", "files")
_OWNER = {setting.name: engine for engine, settings in ENGINE_SETTINGS.items() for setting in settings}


def safe_name(name: str) -> bool:
    """Whether a relative POSIX path stays inside its folder on every system."""
    parts = name.split("/")
    return (
        "\\" not in name
        and ":" not in name
        and name.isprintable()
        and all(part not in ("", ".", "..") and not _DEVICE_NAME.fullmatch(part) for part in parts)
    )


def is_open(host: str) -> bool:
    """Whether other machines may reach what listens on `host`: a name such as 127.example.org can be any address."""
    return _HOST.fullmatch(host) is not None and _LOOPBACK.fullmatch(host) is None


def check_host(host: str, path: Path, report: Report) -> None:
    """E0127 for text without the shape of one host name or IP address."""
    if host and not _HOST.fullmatch(host):
        cure = "write a host name or an IP address without brackets, as 127.0.0.1 or ::1"
        report.error("E0127", path, f"{show(host)} is not an address to listen on", cure)


def check_server(server: dict[str, Any], path: Path, report: Report) -> None:
    """Everything about a server that does not depend on its backend."""
    _check_model(server, path, report)
    _check_spec(mapping(server.get("spec")), (*path, "spec"), report)
    check_extra_args(server, path, report)
    check_env(server, path, report)
    check_host(text(server.get("host")), (*path, "host"), report)
    if "," in text(server.get("alias")):
        # llama-server splits --alias at commas
        report.error(
            "E0127", (*path, "alias"), "an alias cannot hold a comma", "give the one name that clients ask for"
        )


def check_server_engine(config: dict[str, Any], path: Path, engine: str, owner: str, report: Report) -> None:
    """What stands in a server or backend at `path` against the engine that runs it; `owner` says whose engine it is."""
    for name in mapping(config.get("engineOptions")):
        if _OWNER.get(name, engine) != engine:
            summary = f"{name} is an option of {_OWNER[name]}, but {owner}"
            report.error(
                "E0116", (*path, "engineOptions", name), summary, "remove it, or use the other engine", key=True
            )
    source, at = mapping(config.get("source")), (*path, "source")
    wrong = ("filename", "shards", "url", "mmproj") if engine == "mlx" else ("files",)
    for key in wrong:
        if source.get(key):
            needs = "a folder (path) or a repository with files" if engine == "mlx" else "one GGUF file or its shards"
            report.error(
                "E0119", (*at, key), f"{key} does not fit: {owner}, which takes {needs}", f"remove {key}", key=True
            )


def check_extra_args(config: dict[str, Any], path: Path, report: Report) -> None:
    for key in mapping(config.get("extraArgs")):
        if not _FLAG.fullmatch(key):
            bare = key.lstrip("-").replace("_", "-").lower()
            cure = f"write {bare}" if _FLAG.fullmatch(bare) else "write a long flag without its dashes, as temp"
            report.error("E0128", (*path, "extraArgs", key), f"{show(key)} is not a flag name", cure, key=True)


def check_env(config: dict[str, Any], path: Path, report: Report) -> None:
    for key in mapping(config.get("env")):
        if not _VARIABLE.fullmatch(key):
            cure = "use letters, digits and _"
            report.error("E0129", (*path, "env", key), f"{show(key)} is not a variable name", cure, key=True)
        elif key.startswith("LLAMA_ARG_"):
            summary = f"{key} would set an engine flag behind the plan's back"
            report.error("E0129", (*path, "env", key), summary, "use engineOptions or extraArgs", key=True)


def _check_model(server: dict[str, Any], path: Path, report: Report) -> None:
    model, source = server.get("model"), server.get("source")
    if model is not None and source is not None:
        report.error(
            "E0115", (*path, "source"), "a server has model or source, not both", "remove one of them", key=True
        )
    elif model is None and source is None:
        cure = "add model: CATALOG-ID, or source: {path: FILE.gguf}"
        report.error("E0115", path, f"{called(server, path[-1])} has neither model nor source", cure)
    if text(model) and not _MODEL.fullmatch(text(model)):
        cure = "write the catalog's id, with @version if it is to stay at one"
        report.error("E0106", (*path, "model"), f"{show(model)} is not a model id", cure)
    if isinstance(source, dict):
        _check_source(source, (*path, "source"), report)


def _check_spec(spec: dict[str, Any], path: Path, report: Report) -> None:
    kinds = text(spec.get("type")).split(",") if "type" in spec else []
    if any(not _SPEC_TYPE.fullmatch(kind) for kind in kinds) and isinstance(spec["type"], str):
        cure = "write one name, as draft-mtp, or several with commas and no spaces"
        report.error("E0126", (*path, "type"), f"{show(spec['type'])} is not a speculation type", cure)
    if "none" in kinds and len(kinds) > 1:
        report.error("E0126", (*path, "type"), "none cannot be mixed with other types", "keep none alone, or remove it")
    low, high = spec.get("nMin"), spec.get("nMax")
    if type(low) is int and type(high) is int and low > high:
        report.error("E0126", (*path, "nMin"), f"nMin {low} is greater than nMax {high}", "make nMin at most nMax")


def _check_source(source: dict[str, Any], path: Path, report: Report) -> None:
    origins = [key for key in _ORIGINS if source.get(key) is not None]
    if len(origins) != 1:
        has = f"has {' and '.join(origins)}" if origins else "says no place"
        report.error("E0119", path, f"the source {has}", "give exactly one of path, url, huggingface", key=True)
    if origins == ["url"]:
        _check_url(source, path, report)
    if origins == ["path"]:
        _refuse(source, path, ("filename", "revision"), "a source with path", report)
    if origins == ["huggingface"]:
        _check_huggingface(source, path, report)
    for key in ("shards", "files"):
        for index, item in enumerate(items(source.get(key))):
            _check_name(mapping(item).get("filename"), (*path, key, index, "filename"), report)
    for key in ("mmproj", "draftModel"):
        _check_name(mapping(source.get(key)).get("filename"), (*path, key, "filename"), report)
    _check_name(source.get("filename"), (*path, "filename"), report)


def _check_url(source: dict[str, Any], path: Path, report: Report) -> None:
    url = text(source.get("url"))
    if url and not re.match(r"https?://[^/\s]+/\S*[^/\s]$", url):
        cure = "write the http:// or https:// address of the file itself"
        report.error("E0119", (*path, "url"), f"{show(url)} is not the address of a file", cure)
    if source.get("sha256") is None:
        report.error("E0120", (*path, "url"), "a source with url needs sha256", "add sha256: of the file")
    _refuse(source, path, (*_FORMS, "revision"), "a source with url", report)


def _check_huggingface(source: dict[str, Any], path: Path, report: Report) -> None:
    repo, revision = text(source.get("huggingface")), text(source.get("revision"))
    if repo and not _REPO.fullmatch(repo):
        report.error("E0119", (*path, "huggingface"), f"{show(repo)} is not a repository", "write owner/name")
    if revision and (not _REVISION.fullmatch(revision) or ".." in revision):
        cure = "write a branch, a tag or a commit"
        report.error("E0119", (*path, "revision"), f"{show(revision)} is not a revision", cure)
    forms = [key for key in _FORMS if source.get(key)]
    if len(forms) != 1:
        has = f"has {' and '.join(forms)}" if forms else "names no file"
        cure = "give exactly one of filename (with sha256), shards, or files (MLX)"
        report.error("E0121", path, f"the source {has}", cure, key=True)
    elif forms == ["filename"] and source.get("sha256") is None:
        report.error(
            "E0120",
            (*path, "filename"),
            "a source with huggingface and filename needs sha256",
            "add sha256: of the file",
        )
    elif forms != ["filename"]:
        _refuse(source, path, ("sha256", "sizeBytes"), f"a source with {forms[0]}", report)


def _refuse(source: dict[str, Any], path: Path, keys: tuple[str, ...], what: str, report: Report) -> None:
    for key in keys:
        if source.get(key):
            report.error("E0121", (*path, key), f"{what} cannot have {key}", f"remove {key}", key=True)


def _check_name(name: Any, path: Path, report: Report) -> None:
    if text(name) and not safe_name(text(name)):
        cure = "write a relative path with / and without .., drive letters or device names"
        report.error("E0122", path, f"the file name {show(name)} is not allowed", cure)

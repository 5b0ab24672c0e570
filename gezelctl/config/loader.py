"""Reads models.yaml, or several: bytes to typed model, with the place of every value and all findings at once."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gezelctl.config import checks
from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, Place
from gezelctl.config.merge import merge
from gezelctl.config.model import ModelsFile
from gezelctl.config.report import Report
from gezelctl.config.source import SourceText, is_text
from gezelctl.config.yaml12 import MAX_SOURCE_BYTES, Document, Node, load

STDIN = "-"
_SUFFIXES = (".yaml", ".yml")
_T = TypeVar("_T")


@dataclass(frozen=True)
class LoadedConfig:
    """A valid configuration. `display` names it for people; `files` are (path, sha256 of the bytes) in reading order.

    `base_dir` is the folder of the first file; a relative path in the configuration counts from the folder of the
    file in which it stands (`folder`). `warnings` are the findings that do not forbid anything.
    """

    model: ModelsFile
    root: Node
    report: Report
    files: tuple[tuple[str, str], ...]
    folders: dict[str, Path]
    base_dir: Path
    display: str

    @property
    def data(self) -> dict[str, Any]:
        """The merged document as plain values."""
        plain: dict[str, Any] = self.root.data
        return plain

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return self.report.findings()

    def place(self, path: Sequence[str | int]) -> Place:
        """The place of the value at `path`, or of its nearest existing parent."""
        return self.root.find(path).place

    def folder(self, path: Sequence[str | int]) -> Path:
        """The folder that a relative path standing at `path` counts from."""
        return self.folders[self.root.find(path).file]


def load_models(paths: Sequence[str]) -> LoadedConfig:
    """Read and check the files, folders and `-` (standard input) given, laid together in this order.

    Raises InvalidConfig with every finding: unreadable files, YAML (E0001 to E0013), types and rules (E01xx).
    """
    names = _files(paths)
    read, faults = _read_all(names)
    if faults:
        raise InvalidConfig(faults)
    documents = [document for document, _ in read]
    report = Report(documents[0].root, {document.source.file: document.source for document in documents})
    checks.hide_secrets([document.root for document in documents], report)
    if _not_mappings(documents, report):
        report.raise_errors()
    report.root = merge([document.root for document in documents], report)
    model = _decode(report.root.data, report)
    checks.check(report.root.data, report)
    report.raise_errors()
    if model is None:
        raise AssertionError("a document that did not decode has findings")
    folders = {name: _folder(name) for name in names}
    return LoadedConfig(
        model=model,
        root=report.root,
        report=report,
        files=tuple((name, digest) for name, (_, digest) in zip(names, read, strict=True)),
        folders=folders,
        base_dir=folders[names[0]],
        display=", ".join(paths),
    )


def _decode(data: Any, report: Report) -> ModelsFile | None:
    try:
        return msgspec.convert(data, ModelsFile)
    except msgspec.ValidationError as error:
        from gezelctl.config.typed import report_decode_error, report_type_errors

        report_type_errors(data, report)
        if not report.error_count:
            report_decode_error(str(error), report)
        return None


def _files(paths: Sequence[str]) -> list[str]:
    names: list[str] = []
    for given in paths:
        is_folder = given != STDIN and _guarded(given, Path(given).is_dir)
        names += _folder_files(given) if is_folder else [given]
    if not names:
        raise InvalidConfig([Diagnostic(code="E0001", summary="no file is given", cure="name one with -f models.yaml")])
    for name in names:
        if not is_text(f"{_folder(name)}/{name}"):
            raise InvalidConfig([_unreadable(name, "its path is not UTF-8 text", "rename the file or its folder")])
    return list(dict.fromkeys(names))


def _folder_files(folder: str) -> list[str]:
    def listed() -> list[str]:
        return sorted(str(path) for path in Path(folder).iterdir() if path.suffix in _SUFFIXES and path.is_file())

    found = _guarded(folder, listed)
    if not found:
        raise InvalidConfig([_unreadable(folder, "the folder holds no .yaml or .yml file", "name the file itself")])
    return found


def _read_all(names: Sequence[str]) -> tuple[list[tuple[Document, str]], list[Diagnostic]]:
    read: list[tuple[Document, str]] = []
    faults: list[Diagnostic] = []
    for name in names:
        try:
            data = _guarded(name, partial(_bytes, name))
            read.append((load(_text(data, name), name), hashlib.sha256(data).hexdigest()))
        except InvalidConfig as error:
            faults += error.diagnostics
    return read, faults


def _bytes(name: str) -> bytes:
    """At most one byte more than is allowed: the YAML layer names the limit, and an endless pipe ends here."""
    if name == STDIN:
        return sys.stdin.buffer.read(MAX_SOURCE_BYTES + 1)
    with Path(name).open("rb") as file:
        return file.read(MAX_SOURCE_BYTES + 1)


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start >= MAX_SOURCE_BYTES - 4:  # a character cut by the size limit
            return data.decode("utf-8", "replace")
        text = data[: error.start].decode("utf-8")
        place = SourceText(name, text).place_at(len(text))
        cure = "save the file as UTF-8"
        raise InvalidConfig(
            [Diagnostic(code="E0002", summary="the file is not UTF-8 text", cure=cure, place=place)]
        ) from None


def _guarded(name: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except FileNotFoundError as error:
        raise InvalidConfig([_unreadable(name, "the file does not exist", "check the path given with -f")]) from error
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise InvalidConfig(
            [_unreadable(name, f"cannot be read: {reason}", "check the path and its permissions")]
        ) from error


def _unreadable(name: str, what: str, cure: str) -> Diagnostic:
    return Diagnostic(code="E0001", summary=f"{name}: {what}", cure=cure)


def _not_mappings(documents: Sequence[Document], report: Report) -> bool:
    wrong = [document for document in documents if not isinstance(document.data, dict)]
    for document in wrong:
        if document.data is None:
            cure = "write at least apiVersion, stack and models"
            report.error_at("E0100", document.root.place, "the file is empty", cure)
        else:
            cure = "start it with apiVersion: gezelctl/v1"
            report.error_at("E0100", document.root.place, "the file is not a mapping", cure)
    return bool(wrong)


def _folder(name: str) -> Path:
    return Path.cwd() if name == STDIN else Path(name).absolute().parent

"""Collecting the findings of one catalog file, each with the place of the value it is about.

Codes (stable, E02xx = catalog):

    E0201  a file or folder cannot be read (missing, too large, not UTF-8, permission, …)
    E0202  a file is not well-formed JSON
    E0203  a value has the wrong type or is out of range
    E0204  an identity manifest disagrees with the folder it is in
    E0205  a version folder cannot be used
    E0206  a version has no source for any engine
    E0207  a source has both or neither of its file forms
    E0208  a file name is unsafe, reserved or used twice
    E0209  a key is unknown, or has no effect where it stands
    E0210  a model is in no catalog
    E0211  a model has no such version
    E0212  every version of a model is yanked or below its floor
    E0213  a model reference is not `id` or `id@version`
    E0214  a one-file catalog has an entry twice
    E0215  an inline source breaks a rule of its kind
    E0216  a model has no files for the engine of a server
    E0217  the build for that engine is known not to load
    E0218  the build is known not to work on that accelerator
    E0219  vision is asked for and the model has no projector
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, Place
from gezelctl.config.source import SourceText

Path = tuple[str | int, ...]
"""The way to a value: mapping keys and list indexes from the top of a document."""

MAX_SNIPPET = 240
"""Characters; a longer line is a minified file, which says nothing to a reader."""

Locate = Callable[[Path], Place | None]


def dotted(path: Path) -> str:
    """A path as a person writes it: `llamaCpp.shards[0].sha256`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


class Findings:
    """The findings of one document. `under` gives a view for a nested value that collects into the same list."""

    def __init__(
        self, locate: Locate, source: SourceText | None = None, *, address: str = "", strict: bool = False
    ) -> None:
        self.strict = strict
        """Unknown keys are errors: the format is our own, so no newer reader can know them."""
        self._locate = locate
        self._source = source
        self._address = address
        self._base: Path = ()
        self._found: list[Diagnostic] = []

    def under(self, *path: str | int) -> Findings:
        view = Findings(self._locate, self._source, address=self._address, strict=self.strict)
        view._base = (*self._base, *path)
        view._found = self._found
        return view

    def add(
        self,
        code: str,
        summary: str,
        path: Path = (),
        *,
        cure: str = "",
        severity: Literal["error", "warning"] = "error",
    ) -> None:
        """Record a finding about the value at `path` below this view; the summary starts with its name."""
        full = (*self._base, *path)
        text = f"{dotted(full)}: {summary}" if full else summary
        place = self._locate(full)
        snippet = self._source.snippet(place.line) if place and self._source else ""
        self._found.append(
            Diagnostic(
                code,
                text,
                cure=cure,
                severity=severity,
                place=place,
                snippet=snippet if len(snippet) <= MAX_SNIPPET else "",
                address=self._address,
            )
        )

    def extend(self, diagnostics: Iterable[Diagnostic]) -> None:
        self._found.extend(diagnostics)

    @property
    def all(self) -> tuple[Diagnostic, ...]:
        return tuple(self._found)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self._found if d.severity == "warning")

    @property
    def failed(self) -> bool:
        return any(d.severity == "error" for d in self._found)

    def check(self) -> None:
        """Raise InvalidConfig with everything found when any of it is an error."""
        if self.failed:
            raise InvalidConfig(self._found)


def fault(code: str, summary: str, *, cure: str, place: Place | None = None) -> InvalidConfig:
    """One error, ready to raise."""
    return InvalidConfig([Diagnostic(code, summary, cure=cure, place=place)])


def file_fault(file: str, summary: str, *, code: str = "E0201", cure: str) -> InvalidConfig:
    """One error about a file or folder as a whole."""
    return fault(code, summary, cure=cure, place=Place(file, 1, 1))

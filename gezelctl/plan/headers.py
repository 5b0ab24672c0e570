"""Where the planner finds the header of a GGUF file: installed, local, or read from afar."""

from __future__ import annotations

from gezelctl.catalog.servers import Resolved
from gezelctl.catalog.types import PayloadFile
from gezelctl.gguf.types import GgufSummary
from gezelctl.observe.types import Observed
from gezelctl.plan.payloads import installed_of


def header(file: PayloadFile | None, item: Resolved, observed: Observed) -> GgufSummary | None:
    """The header of a server's weights, summed over shards; None while nobody has seen the file."""
    if file is None:
        return None
    have = installed_of(item.payload, observed) if item.payload else None
    if have and have.manifest.gguf and file.sha256 and have.manifest.digests.get(file.name) == file.sha256:
        return have.manifest.gguf
    return companion_header(file, observed)


def companion_header(file: PayloadFile | None, observed: Observed) -> GgufSummary | None:
    """The header of any wanted GGUF file, by its digest or by its local path."""
    if file is None:
        return None
    if file.sha256 in observed.headers:
        return observed.headers[file.sha256]
    path = file.origin.path or observed.adoptable.get(file.sha256, "")
    fact = observed.sources.get(path)
    return fact.gguf if fact else None

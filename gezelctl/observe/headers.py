"""Headers of the GGUF files that servers need and that no installed manifest or local source has the header of.

Those that stand in the store are read there; those that are still to be fetched are read from their server, a few MB
each, so that a plan is exact before anything is downloaded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gezelctl.catalog.servers import Resolved
from gezelctl.catalog.types import PayloadFile
from gezelctl.config.model import HuggingFaceConfig
from gezelctl.config.secrets import SecretError, resolve
from gezelctl.errors import FetchError, GgufError
from gezelctl.gguf.cache import cached_summary
from gezelctl.gguf.types import GgufSummary
from gezelctl.observe.threads import each
from gezelctl.observe.types import SourceFact
from gezelctl.store.types import InstalledPayload

if TYPE_CHECKING:
    from gezelctl.observe.hub import Hub

LIMIT_S = 5.0
"""For one header; a plan goes on without it."""
ALL_LIMIT_S = 15.0
"""For all headers of a look together."""
_AT_ONCE = 8
_UNREACHABLE = frozenset({"DNS", "REFUSED", "TIMEOUT", "STALLED", "TLS", "DISCONNECTED"})
"""Faults of a server, not of one file: its other files are not asked for any more."""

Group = tuple[PayloadFile, ...]
"""All files of one GGUF model: a single one, or the shards in order."""


class Headers(NamedTuple):
    """Summaries by sha256 of the first file, and what could not be read, one line a cause."""

    found: dict[str, GgufSummary]
    problems: tuple[str, ...]


class _Missing(NamedTuple):
    site: str
    message: str
    whole_site: bool


def gguf_groups(files: Sequence[PayloadFile]) -> list[Group]:
    """The GGUF models among the files of a payload: weights with all shards, projector, drafter."""
    weights: Group = tuple(file for file in files if file.role in {"weights", "shard"})
    companions: list[Group] = [(file,) for file in files if file.role in {"mmproj", "draft"}]
    return [weights, *companions] if weights else companions


def read_headers(
    resolved: Iterable[Resolved],
    installed: Sequence[InstalledPayload],
    sources: Mapping[str, SourceFact],
    adoptable: Mapping[str, str],
    config: HuggingFaceConfig,
    *,
    base_dir: Path,
    cache_dir: Path,
    offline: bool,
) -> Headers:
    """Read what is missing. `offline` opens no connection; headers that were read before are still known.

    A fetch that fails or takes longer than `LIMIT_S` is one line in `problems`, as is a server that does not answer.
    """
    known = {fact.sha256 for fact in sources.values() if fact.gguf} | _known(installed)
    wanted = {
        group[0].sha256: group
        for item in resolved
        if item.payload and item.payload.engine == "llama-cpp"
        for group in (*gguf_groups(item.files), *gguf_groups(item.drafter.files if item.drafter else ()))
        if group[0].sha256 and group[0].origin.kind != "path" and group[0].sha256 not in known
    }
    found: dict[str, GgufSummary] = {}
    remote: dict[str, Group] = {}
    for sha256, group in sorted(wanted.items()):
        path = stored_file(sha256, installed) or adoptable.get(sha256, "")
        summary = _local(path, cache_dir) if path else _remembered(group, config, cache_dir)
        if summary is not None:
            found[sha256] = summary
        elif not path:
            remote[sha256] = group
    if offline or not remote:
        return Headers(found, ())
    fetched = _fetch(remote, config, base_dir, cache_dir)
    return Headers(dict(sorted((found | fetched.found).items())), fetched.problems)


def _known(installed: Iterable[InstalledPayload]) -> set[str]:
    return {p.manifest.files[0].sha256 for p in installed if p.manifest.gguf and p.manifest.files}


def stored_file(sha256: str, installed: Iterable[InstalledPayload]) -> str:
    """Absolute path of a whole file of the store, "" when there is none."""
    return next(
        (f"{p.path}/{f.name}" for p in installed for f in p.manifest.files if _whole(p, f.name) and f.sha256 == sha256),
        "",
    )


def _whole(payload: InstalledPayload, name: str) -> bool:
    return name not in payload.damaged


def _local(path: str, cache_dir: Path) -> GgufSummary | None:
    try:
        return cached_summary(Path(path), cache_dir)
    except (GgufError, OSError):
        return None  # what is wrong with an installed file is told where it is used


def _remembered(group: Group, config: HuggingFaceConfig, cache_dir: Path) -> GgufSummary | None:
    from gezelctl.observe.remote import cached_remote

    return cached_remote(group, _hub(config, ""), cache_dir)


def _hub(config: HuggingFaceConfig, token_dir: str) -> Hub:
    from gezelctl.observe.hub import Hub

    token = resolve(config.token, Path(token_dir)) if config.token and token_dir else None
    return Hub(config.endpoint, token)


def _fetch(remote: Mapping[str, Group], config: HuggingFaceConfig, base_dir: Path, cache_dir: Path) -> Headers:
    from gezelctl.observe.hub import Connection, site, source_url
    from gezelctl.observe.remote import remote_summary

    try:
        hub = _hub(config, str(base_dir))
    except SecretError as error:
        return Headers({}, (f"no header was read before its download: {error.message}",))
    silent: set[str] = set()
    deadline = time.monotonic() + ALL_LIMIT_S

    def read(sha256: str) -> GgufSummary | _Missing:
        group = remote[sha256]
        where = site(source_url(group[0].origin, hub))[1]
        if where in silent:
            return _Missing(where, "", whole_site=True)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return _Missing(where, f"{where}: all headers together took longer than {ALL_LIMIT_S:.0f} s", True)
        try:
            return remote_summary(group, hub, cache_dir, connection, limit_s=min(LIMIT_S, left_s))
        except (FetchError, GgufError) as error:
            whole_site = error.code in _UNREACHABLE
            if whole_site:
                silent.add(where)
            return _Missing(where, error.message, whole_site)

    with Connection(hub, stall_s=LIMIT_S, connect_s=LIMIT_S) as connection:
        answers = each(remote, read, _AT_ONCE)
    found = {sha256: answer for sha256, answer in answers.items() if isinstance(answer, GgufSummary)}
    missing = [answer for answer in answers.values() if isinstance(answer, _Missing)]
    return Headers(found, _problems(missing))


def _problems(missing: Sequence[_Missing]) -> tuple[str, ...]:
    """One line for each file, but for a server that does not answer one for all of its files."""
    lines = [f"the header could not be read: {m.message}" for m in missing if not m.whole_site]
    for where in sorted({m.site for m in missing if m.whole_site}):
        messages = sorted(m.message for m in missing if m.site == where and m.whole_site and m.message)
        count = sum(m.site == where and m.whole_site for m in missing)
        more = f" (and {count - 1} more of {where})" if count > 1 else ""
        lines.append(f"the header could not be read: {messages[0]}{more}")
    return tuple(lines)

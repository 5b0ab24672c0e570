"""Everything that is true on this host, once. Only reads, and writes nothing but the cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gezelctl.catalog.servers import Resolved
from gezelctl.config.desired import HostDesired
from gezelctl.config.model import SecretRef
from gezelctl.config.redact import mask_tokens
from gezelctl.config.secrets import Secret, SecretError, resolve, secret_mac
from gezelctl.observe.facts import read_facts
from gezelctl.observe.headers import read_headers
from gezelctl.observe.live import Target, read_live
from gezelctl.observe.memory import log_tail, read_memory
from gezelctl.observe.mounts import Mounts
from gezelctl.observe.ports import port_holders
from gezelctl.observe.probe import former_flags, probe_backend
from gezelctl.observe.processes import ProcessState, process_identity, process_state, resident_bytes, started_as
from gezelctl.observe.sources import read_sources
from gezelctl.observe.threads import each
from gezelctl.observe.types import EngineProbe, Flag, Live, MemoryReading, MlxShape, Observed, PortHolder, ServerFact
from gezelctl.observe.vocabs import read_vocabs
from gezelctl.store.files import StateError
from gezelctl.store.layout import Paths
from gezelctl.store.learned import read_broken, read_measured, read_starved
from gezelctl.store.manifests import scan
from gezelctl.store.records import read_records, read_state
from gezelctl.store.types import InstalledPayload, RunRecord

T = TypeVar("T")

API_KEY_VARIABLE = {"llama-cpp": "LLAMA_API_KEY", "mlx": "GEZELCTL_MLX_API_KEY"}
"""Where each engine reads its API key from."""
HEX = re.compile(r"[0-9a-f]{16}")
MISSING = "missing"
"""Stands for the HMAC of a secret that was looked for and could not be read."""


class _SecretEnv(msgspec.Struct, rename="camel"):
    name: str
    from_env: str = ""
    from_file: str = ""


class _Launch(msgspec.Struct, rename="camel"):
    """The few fields of a recorded launch that observing needs."""

    engine: str
    host: str
    port: int
    secret_env: tuple[_SecretEnv, ...] = ()
    engine_digest: str = ""


class _Recorded(msgspec.Struct, frozen=True):
    record: RunRecord
    launch: _Launch | None
    process: ProcessState


def observe(
    desired: HostDesired, resolved: Sequence[Resolved], paths: Paths, *, live: bool = True, offline: bool = True
) -> Observed:
    """Look at this host for one stack. `live=False` asks no server over HTTP.

    Unless `offline`, headers of files that are still to be downloaded are read from where they come from; that is the
    only thing that opens a connection to anywhere but servers of this stack.

    What cannot be read becomes a line in `problems`; nothing is raised for a host in a bad state.
    """
    mounts = Mounts()
    problems: list[str] = []
    records, unreadable = read_records(paths)
    inventory = scan(paths)
    problems += [*unreadable, *inventory.problems]
    recorded = [_recorded(record, problems) for record in records]
    engines = _engines(desired, paths)
    facts, gpu_problems = read_facts(mounts, (paths.store, paths.state), engines.values())
    sources = read_sources(resolved, inventory.payloads, desired.store.adopt_from, paths, mounts)
    headers = read_headers(
        resolved,
        inventory.payloads,
        sources.facts,
        sources.adoptable,
        desired.sources.huggingface,
        base_dir=Path(desired.base_dir),
        cache_dir=paths.cache / "gguf",
        offline=offline,
    )
    vocabs = read_vocabs(resolved, inventory.payloads, sources.facts, sources.adoptable, paths.cache / "gguf")
    problems += [*gpu_problems, *sources.problems, *headers.problems]
    answers = _live(recorded, Path(desired.base_dir)) if live else {}
    return Observed(
        facts=facts,
        engines=engines,
        installed=inventory.payloads,
        servers=tuple(_server(item, answers.get(item.record.server)) for item in recorded),
        ports=_ports((server.port for server in desired.servers), recorded),
        sources=sources.facts,
        adoptable=sources.adoptable,
        mlx_shapes=_mlx_shapes(resolved, inventory.payloads),
        directories=sources.directories,
        secrets=_secrets(desired, paths, problems),
        headers=headers.found,
        vocabs=vocabs,
        former_flags=_former_flags(recorded, engines, paths),
        broken_drafters={key: broken.reason for key, broken in _learned(read_broken, paths, problems).items()},
        starved=_learned(read_starved, paths, problems),
        measured=_learned(read_measured, paths, problems),
        state=_told(read_state, paths, problems),
        store_path=str(paths.store),
        state_path=str(paths.state),
        problems=tuple(problems),
    )


def _mlx_shapes(resolved: Sequence[Resolved], installed: Sequence[InstalledPayload]) -> dict[str, MlxShape]:
    if not any(item.payload and item.payload.engine == "mlx" for item in resolved):
        return {}
    from gezelctl.observe.mlxfolder import read_shapes

    return read_shapes(resolved, installed)


def _recorded(record: RunRecord, problems: list[str]) -> _Recorded:
    """The launch loses the record file's indentation, so that equal launches have equal bytes."""
    record = msgspec.structs.replace(record, launch=msgspec.Raw(msgspec.json.format(bytes(record.launch), indent=-1)))
    try:
        launch = msgspec.json.decode(record.launch, type=_Launch)
    except msgspec.MsgspecError:
        problems.append(f"the run record of {record.server} holds a launch of another version; it is not asked")
        launch = None
    return _Recorded(record, launch, process_state(record))


def _engines(desired: HostDesired, paths: Paths) -> dict[str, EngineProbe]:
    """Each used backend once. Asking a build for its devices takes a while, so they are asked at a time."""
    return each(sorted(desired.backends), lambda name: probe_backend(name, desired.backends[name], paths))


def _live(recorded: Iterable[_Recorded], base_dir: Path) -> dict[str, Live]:
    targets = [
        Target(
            item.record.server, item.launch.engine, item.launch.host, item.launch.port, _api_key(item.launch, base_dir)
        )
        for item in recorded
        if item.launch and item.process.state == "running"
    ]
    return read_live(targets)


def _api_key(launch: _Launch, base_dir: Path) -> Secret | None:
    """The key that the running server was given, None when it has none or it cannot be read any more."""
    for item in launch.secret_env:
        if item.name == API_KEY_VARIABLE.get(launch.engine):
            try:
                return resolve(SecretRef(from_env=item.from_env or None, from_file=item.from_file or None), base_dir)
            except SecretError:
                return None
    return None


def _server(item: _Recorded, live: Live | None) -> ServerFact:
    record, process = item.record, item.process
    log = Path(record.log) if record.log else None
    memory = None
    if log and process.state == "running" and item.launch and item.launch.engine == "llama-cpp":
        memory = read_memory(log, record.log_offset, resident_bytes(process.pid))
    elif process.state == "running" and item.launch:
        memory = MemoryReading(resident_bytes=resident_bytes(process.pid))  # MLX names no sizes
    well = process.state == "running" and (live is None or live.health in {"Ready", "Loading"})
    tail = log_tail(log, record.log_offset) if log and not well else ()
    return ServerFact(
        name=record.server,
        record=record,
        process=process.state,
        pid=process.pid,
        live=live,
        log_tail=tuple(mask_tokens(line) for line in tail),
        memory=memory,
    )


def _ports(wanted: Iterable[int], recorded: Sequence[_Recorded]) -> tuple[PortHolder, ...]:
    """Holders of the wanted ports. A server that runs behind a wrapper script is known by the token it inherited."""
    running = {item.process.pid: item.record.server for item in recorded if item.process.state == "running"}
    tokens = {item.record.token: item.record.server for item in recorded}
    return tuple(_named(holder, tokens) for holder in port_holders(wanted, running))


def _named(holder: PortHolder, tokens: Mapping[str, str]) -> PortHolder:
    identity = process_identity(holder.pid) if holder.pid and not holder.server else None
    name = tokens.get(identity.token, "") if identity and identity.token else ""
    if name:
        return msgspec.structs.replace(holder, server=name)
    return msgspec.structs.replace(holder, started_as=started_as(holder.pid)) if identity else holder


def _secrets(desired: HostDesired, paths: Paths, problems: list[str]) -> dict[str, str]:
    """HMAC of each secret; "" while this host has no key yet (the first apply makes it)."""
    found: dict[str, str] = {}
    key = b""
    for server in desired.servers:
        if server.api_key is None:
            continue
        key = key or _hmac_key(paths, problems)
        name = f"{server.name}/{API_KEY_VARIABLE[server.backend.engine]}"
        try:
            secret = resolve(server.api_key, Path(desired.base_dir))
        except SecretError as error:
            found[name] = MISSING
            problems.append(f"the API key of {server.name} cannot be read: {error.message}")
            continue
        found[name] = secret_mac(secret, key) if key else ""
    return found


def _hmac_key(paths: Paths, problems: list[str]) -> bytes:
    try:
        return paths.hmac_key.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        problems.append(f"{paths.hmac_key} cannot be read: {error.strerror}; changed secrets go unnoticed")
        return b""


def _former_flags(
    recorded: Iterable[_Recorded], engines: Mapping[str, EngineProbe], paths: Paths
) -> dict[str, tuple[Flag, ...]]:
    """Flags of the builds that servers were started on and that are not those of today's backends."""
    present = {probe.digest for probe in engines.values()}
    digests = {r.launch.engine_digest for r in recorded if r.launch and HEX.fullmatch(r.launch.engine_digest)}
    found = {digest: former_flags(digest, paths.cache) for digest in sorted(digests - present)}
    return {digest: flags for digest, flags in found.items() if flags}


def _learned(read: Callable[[Paths], dict[str, T]], paths: Paths, problems: list[str]) -> dict[str, T]:
    """Sorted, so that equal knowledge has equal bytes."""
    return dict(sorted((_told(read, paths, problems) or {}).items()))


def _told(read: Callable[[Paths], T], paths: Paths, problems: list[str]) -> T | None:
    """What a file of the state says, None when it cannot be read: that is a problem, never the end of a plan."""
    try:
        return read(paths)
    except StateError as error:
        problems.append(f"{error.message}; {error.cure}")
        return None

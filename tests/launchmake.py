"""Launch requests for the tests of engines: one server, one model, and the flag sets of real and older builds."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gezelctl.catalog.types import Model, Origin, Payload, PayloadFile
from gezelctl.config.desired import DesiredServer
from gezelctl.config.model import Backend
from gezelctl.embedded.commandline import help_text
from gezelctl.engines.launch import LaunchRequest
from gezelctl.gguf.types import GgufSummary, WeightTable
from gezelctl.observe.helptext import parse_help
from gezelctl.observe.types import EngineProbe, Flag

_HELP = Path(__file__).parent / "cases" / "observe"
_MODERN = frozenset({"--load-mode", "--jinja", "--offline", "--log-verbosity", "--kv-unified", "--flash-attn"})


@cache
def probe(build: str) -> EngineProbe:
    """b10434, b11434 and `embedded` by their own help; `ancient` is b10434 with the names of before."""
    if build == "ancient":
        return _ancient()
    text = help_text() if build == "embedded" else (_HELP / f"llama-server-{build}-help.txt").read_text("utf-8")
    found = parse_help(text)
    prefix = ("-m", "gezelctl.embedded") if build == "embedded" else ()
    return EngineProbe(
        backend="cpu",
        engine="llama-cpp",
        program="/opt/llama/llama-server",
        prefix=prefix,
        digest=f"{build:0<16}",
        build=int(build[1:]) if build.startswith("b1") else 0,
        version=build,
        flags=found.flags,
        removed=found.removed,
    )


def _ancient() -> EngineProbe:
    """Old spellings only: bare --flash-attn, --mlock and friends, --draft-max, --model-draft, numeric layers."""
    kept = [
        f for f in probe("b10434").flags if not _MODERN & set(f.names) and not f.names[0].startswith("--spec-draft")
    ]
    layers = next(f for f in kept if "--n-gpu-layers" in f.names)
    kept[kept.index(layers)] = msgspec.structs.replace(layers, default="")
    old = (
        Flag(("-fa", "--flash-attn"), 0),
        Flag(("--jinja",), 0),
        Flag(("--draft-max", "--draft", "--draft-n"), 1, "N"),
        Flag(("--draft-min", "--draft-n-min"), 1, "N"),
        Flag(("-md", "--model-draft"), 1, "FNAME"),
        Flag(("-ngld", "--n-gpu-layers-draft"), 1, "N"),
        Flag(("-cpent", "--checkpoint-every-n-tokens"), 1, "N"),
    )
    dropped = {"--ui", "--checkpoint-min-step"}
    flags = tuple(f for f in kept if not dropped & set(f.names))
    webui = Flag(("--webui",), 0, negations=("--no-webui",))
    return msgspec.structs.replace(
        probe("b10434"), build=6000, digest="ancient", flags=(*flags, *old, webui), removed={}
    )


def gguf(architecture: str = "llama", **values: int) -> GgufSummary:
    """A header with a 64-element head and 32,768 tokens of training context, unless told otherwise."""
    defaults = {"context_length": 32768, "block_count": 4, "embedding_length": 512, "attention.head_count": 8}
    keys = {f"{architecture}.{k.replace('__', '.')}": v for k, v in {**defaults, **values}.items()}
    table = WeightTable(
        total_bytes=1,
        parameters=1,
        tensor_count=1,
        input_bytes=0,
        token_embd_bytes=0,
        output_bytes=0,
        tied=False,
        layers=(),
    )
    return GgufSummary(3, architecture, 1, 1, {"general.architecture": architecture, **keys}, {}, table)


def header_of(architecture: str, keys: dict[str, Any]) -> GgufSummary:
    """A header of these keys, named without their architecture, and no tensors; a list becomes an array."""
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    return GgufSummary(
        version=3,
        architecture=architecture,
        file_bytes=0,
        shards=1,
        values={key: value for key, value in named.items() if not isinstance(value, list)},
        arrays={key: tuple(value) for key, value in named.items() if isinstance(value, list)},
        weights=WeightTable(0, 0, 0, 0, 0, 0, tied=False, layers=()),
    )


def payload(*roles: str, engine: Any = "llama-cpp", model_id: str = "tiny-q4", **fields: Any) -> Payload:
    """A payload of weights and one file for each further role."""
    names = {"weights": "w.gguf", "mmproj": "mmproj.gguf", "draft": "draft.gguf", "template": "chat.jinja"}
    files = tuple(
        PayloadFile(names[role], role, Origin("path", path="/src/x"), "a" * 64)  # type: ignore[arg-type] # a role name
        for role in ("weights", *roles)
    )
    return Payload(engine, model_id, "", files, **fields)


def request(
    build: str = "b11434",
    *,
    roles: tuple[str, ...] = (),
    header: GgufSummary | None = None,
    backend: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    server: dict[str, Any] | None = None,
    **fields: Any,
) -> LaunchRequest:
    """Server `chat` of model `tiny-q4` on port 8081; every part can be laid over."""
    model_fields = {"id": "tiny-q4", "name": "Tiny", "version": "1.0.0", "payloads": {}, **(model or {})}
    own = msgspec.convert({"engine": "llama-cpp", **(backend or {})}, Backend)
    desired = DesiredServer(
        **{"name": "chat", "port": 8081, "host": "127.0.0.1", "backend_name": "cpu", "backend": own,
           "start_timeout_s": 300, **(server or {})}
    )  # fmt: skip
    base = payload(*roles, model_id=model_fields["id"])
    values = {
        "payload": base,
        "files": base.files,
        "payload_dir": "/store/models/llama-cpp/tiny-q4",
        "digests": {f.name: f.sha256 for f in base.files},
        "gguf": header or gguf(),
        "probe": probe(build),
        "slots_dir": "/state/lab/slots/chat",
        "config_path": "/state/lab/config/chat.json",
        **fields,
    }
    return LaunchRequest(server=desired, model=Model(**model_fields), **values)

"""`extraArgs`: flags that have no field of their own. They come last and win; what gezelctl manages is refused."""

from __future__ import annotations

from gezelctl.engines.launch import Choices, LaunchRequest
from gezelctl.engines.llama_cpp.builder import Builder, range_problem, takes_value, text_of
from gezelctl.engines.llama_cpp.flags import LOAD_SWITCHES, Match, load_mode_of, load_mode_tokens
from gezelctl.engines.types import Scalar, Value

_DOWNLOADS = "Use model or source; the engine never downloads."
_LOGS = "gezelctl keeps the log; see gezelctl logs."
_ROUTER = "Declare one server for each model."
_ENDS = "Remove it; the program would print and exit."

RESERVED: dict[str, str] = {
    "--model": "Use model or source.",
    "--model-url": _DOWNLOADS,
    "--hf-repo": _DOWNLOADS,
    "--hf-file": _DOWNLOADS,
    "--hf-token": _DOWNLOADS,
    "--docker-repo": _DOWNLOADS,
    "--spec-draft-hf": _DOWNLOADS,
    "--mmproj-url": _DOWNLOADS,
    "--host": "Use host.",
    "--port": "Use port.",
    "--reuse-port": "Use port; every server has its own.",
    "--alias": "Use alias.",
    "--ctx-size": "Use context (tokens per slot).",
    "--parallel": "Use slots.",
    "--kv-unified": "Use engineOptions.kvUnified.",
    "--kv-unified-per-slot": "Use context and engineOptions.kvUnified.",
    "--cache-type-k": "Use kvCache.",
    "--cache-type-v": "Use kvCache.",
    "--flash-attn": "Use engineOptions.flashAttn.",
    "--embeddings": "Use engineOptions.embeddings.",
    "--mmproj": "Use vision: true.",
    "--mmproj-auto": "Use vision.",
    "--chat-template": "Use engineOptions.chatTemplate.",
    "--chat-template-file": "Use engineOptions.chatTemplateFile.",
    "--spec-type": "Use spec.type.",
    "--spec-draft-model": "Use spec.draftModel.",
    "--spec-draft-n-max": "Use spec.nMax.",
    "--spec-draft-n-min": "Use spec.nMin.",
    "--spec-default": "Use spec.type.",
    "--slot-save-path": "Remove it; gezelctl gives every server its own folder.",
    "--slots": "Remove it; the slots endpoint is needed to prove the server.",
    "--api-key": "Use apiKey with fromEnv or fromFile, so that the key is in no command line.",
    "--api-key-file": "Use apiKey with fromFile.",
    "--api-prefix": "Remove it; the server is asked at /health and /v1.",
    "--ssl-key-file": "Put a reverse proxy in front of the server for TLS.",
    "--ssl-cert-file": "Put a reverse proxy in front of the server for TLS.",
    "--log-disable": _LOGS,
    "--log-file": _LOGS,
    "--log-jsonl": _LOGS,
    "--models-dir": _ROUTER,
    "--models-preset": _ROUTER,
    "--models-max": _ROUTER,
    "--models-autoload": _ROUTER,
    "--help": _ENDS,
    "--version": _ENDS,
    "--list-devices": _ENDS,
    "--cache-list": _ENDS,
    "--completion-bash": _ENDS,
}
_LOAD_NAMES = frozenset(s.name for s in LOAD_SWITCHES)
_PRESETS = ("-default", "-spec")
"""Endings of the flags that fetch a named model (--gpt-oss-20b-default, --fim-qwen-7b-spec)."""


def put_extra_args(request: LaunchRequest, choices: Choices, builder: Builder) -> None:
    """Append the backend's and the server's extra arguments; the server's win over the backend's."""
    server = request.server
    layers = (("backend", "backend.extraArgs", server.backend.extra_args), ("server", "extraArgs", server.extra_args))
    switches: dict[str, str] = {}
    seen: dict[str, str] = {}
    for origin, prefix, args in layers:
        for key, value in args.items():
            field = f"{prefix}.{key}"
            if _load_switch(key) in _LOAD_NAMES and (builder.flags.assumed or _load_switch(key) not in builder.flags):
                if value is True:
                    switches[_load_switch(key)] = field
                continue
            match = _checked(key, value, field, builder)
            if match is None:
                continue
            _warn_twice(match, field, seen, builder, layer=prefix)
            _put(match, value, builder)
            place = server.places.get(field)
            choices.put(Value(f"extraArgs.{match.spelling.lstrip('-')}", value, origin, place=place))  # type: ignore[arg-type] # a literal
    _put_load_mode(switches, builder)


def _load_switch(key: str) -> str:
    bare = key.lstrip("-").replace("_", "-")
    return f"-{bare}" if bare in {"dio", "ndio"} else f"--{bare}"


def _checked(key: str, value: Scalar, field: str, builder: Builder) -> Match | None:
    """The build's flag for the key, None when it is to be left out or is refused."""
    spelled = f"--{key.lstrip('-').replace('_', '-')}"
    match = builder.flags.find_key(key)
    names = {spelled, *(match.flag.names if match else ())}
    reserved = next((RESERVED[name] for name in sorted(names & RESERVED.keys())), "")
    if not reserved and spelled.endswith(_PRESETS) and match is not None:
        reserved = _DOWNLOADS
    if reserved:
        builder.report.error("E0303", field, f"{spelled} is managed by gezelctl", reserved)
        return None
    if value is False:
        return None
    if match is None:
        builder.missing(spelled, field)
        return None
    return match if _value_fits(match, spelled, value, field, builder) else None


def _value_fits(match: Match, spelled: str, value: Scalar, field: str, builder: Builder) -> bool:
    if value is True:
        if takes_value(match):
            builder.report.error("E0302", field, f"{match.spelling} needs a value", f"Give {field} a value.")
        return not takes_value(match)
    if match.flag.arity > 1 and len(text_of(value).split()) != match.flag.arity:
        cure = f"Write {field} as one text with spaces between the values."
        builder.report.error("E0302", field, f"{match.spelling} takes {match.flag.arity} values", cure)
        return False
    long = next((name for name in match.flag.names if range_problem(name, value)), spelled)
    return builder.check(match, long, value, field)


def _warn_twice(match: Match, field: str, seen: dict[str, str], builder: Builder, *, layer: str) -> None:
    """Two spellings in one mapping, or an engine option that is set as well: the last wins, and it is said."""
    before = seen.get(match.ident, "")
    if before.startswith(f"{layer}."):
        summary = f"{before} and {field} are the same flag; {field} wins"
        builder.report.warning("E0310", field, summary, f"Remove {before} or {field}.")
    elif not before and any(item.ident == match.ident for item in builder.items):
        summary = f"{match.spelling} is set by an engine option too; {field} wins"
        builder.report.warning("E0310", field, summary, f"Remove {field} and use engineOptions.")
    seen[match.ident] = field


def _put(match: Match, value: Scalar, builder: Builder) -> None:
    if value is True:
        builder.put(match)
    elif match.flag.arity > 1:
        builder.put(match, *text_of(value).split())
    else:
        builder.put(match, text_of(value))


def _put_load_mode(switches: dict[str, str], builder: Builder) -> None:
    """The old switches said with `--load-mode`, on a build that has dropped them."""
    if not switches:
        return
    field = next(iter(switches.values()))
    mode = load_mode_of(switches)
    if mode is None:
        names = " ".join(switches)
        builder.report.error("E0304", field, f"{names} contradict each other", "Use engineOptions.loadMode.")
        return
    tokens = load_mode_tokens(builder.flags, mode)
    if tokens is None or not tokens:
        builder.missing(next(iter(switches)), field)
        return
    builder.value(tokens[0], tokens[1], field)
    builder.report.note(f"{' '.join(switches)} is {' '.join(tokens)} in this build")

"""The MLX sidecar's command line and configuration file (the sidecar is gezelctl/mlx_sidecar.py)."""

from __future__ import annotations

import msgspec

from gezelctl.config.settings import MLX_SETTINGS
from gezelctl.engines.launch import API_KEY_MLX, Choices, LaunchRequest, environment, secrets, wanted_digests
from gezelctl.engines.llama_cpp.builder import Builder, takes_value, text_of
from gezelctl.engines.llama_cpp.flags import FlagSet
from gezelctl.engines.mlx.flags import MLX_FLAGS
from gezelctl.engines.report import Report
from gezelctl.engines.types import ConfigFile, Expectation, LaunchSpec, Value

_MIB = 1024 * 1024
_LIMITS = {
    "memoryLimitMib": "memoryLimitBytes",
    "wiredLimitMib": "wiredLimitBytes",
    "cacheLimitMib": "cacheLimitBytes",
}
_PROMPT_CACHE_MIB = 2048
"""mlx_lm.server keeps up to ten KV caches without any limit of bytes unless it is told one."""

RESERVED: dict[str, str] = {
    "--model": "Use model or source.",
    "--host": "Use host.",
    "--port": "Use port.",
    "--adapter-path": "Merge the adapter into the model.",
    "--draft-model": "Remove it; a drafter is not supported on MLX yet.",
    "--num-draft-tokens": "Remove it; a drafter is not supported on MLX yet.",
    "--chat-template": "Use the chat template of the model or of the catalog.",
    "--help": "Remove it; the program would print and exit.",
}


class SidecarConfig(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the sidecar reads. `args` go to mlx_lm.server as they are; limits are bytes, 0 = the library's own.

    `alias` is the model id that clients use; `chat_template` is used only when the model folder brings none.
    """

    model: str
    alias: str
    host: str
    port: int
    args: tuple[str, ...] = ()
    memory_limit_bytes: int = 0
    wired_limit_bytes: int = 0
    cache_limit_bytes: int = 0
    chat_template: str = ""


def render_mlx(request: LaunchRequest, report: Report) -> LaunchSpec:
    """The launch of one MLX server; findings go to `report`, and a spec with errors must not be used."""
    server = request.server
    choices = Choices(request)
    builder = Builder(FlagSet(msgspec.structs.replace(request.probe, flags=MLX_FLAGS)), report)
    _refuse_unsupported(request, report)
    choices.server("alias", server.alias)
    _put_options(choices, builder, request)
    _put_extra_args(request, choices, builder)
    alias = server.alias or request.model.id
    limits = {
        field: int(choices.values[name].value) * _MIB for name, field in _LIMITS.items() if name in choices.values
    }
    config = SidecarConfig(
        model=request.payload_dir,
        alias=alias,
        host=server.host,
        port=server.port,
        args=builder.argv,
        memory_limit_bytes=limits.get("memoryLimitBytes", 0),
        wired_limit_bytes=limits.get("wiredLimitBytes", 0),
        cache_limit_bytes=limits.get("cacheLimitBytes", 0),
        chat_template=request.payload.chat_template,
    )
    content = msgspec.json.format(msgspec.json.encode(config), indent=2).decode() + "\n"
    return LaunchSpec(
        server=server.name,
        engine="mlx",
        backend=server.backend_name,
        program=request.probe.program,
        argv=(*request.probe.prefix, "--config", request.config_path),
        host=server.host,
        port=server.port,
        env=environment(request, report),
        secret_env=secrets(server, API_KEY_MLX),
        config_files=(ConfigFile(request.config_path, content),),
        payload=wanted_digests(request),
        payload_id=f"payload.mlx.{request.payload.model_id}",
        engine_digest=request.probe.digest,
        values=tuple(choices.values.values()),
        expect=Expectation(model_id=alias),
        start_timeout_s=server.start_timeout_s,
    )


def _refuse_unsupported(request: LaunchRequest, report: Report) -> None:
    """What mlx_lm.server cannot do is said, never dropped in silence (E0311)."""
    server = request.server
    if server.vision:
        report.error("E0311", "vision", "vision is not supported on MLX", "Remove vision, or use a llama-cpp backend.")
    if server.spec is not None and server.spec.type != "none":
        report.error("E0311", "spec", "a drafter is not supported on MLX", "Remove spec, or use a llama-cpp backend.")
    if server.kv_cache not in {None, "f16"}:
        cure = "Remove kvCache; extraArgs kv-bits: 8 quantises the cache, one request at a time."
        report.error("E0311", "kvCache", f"mlx_lm.server has no {server.kv_cache} KV cache", cure)
    if server.context is not None:
        summary = "mlx_lm.server has no context limit; context is not enforced"
        report.warning("E0311", "context", summary, "Remove context, or limit requests with engineOptions.maxTokens.")
    if "," in server.host:
        report.error("E0304", "host", f"host {server.host} holds a comma", "Use one IP address as host.")


def _put_options(choices: Choices, builder: Builder, request: LaunchRequest) -> None:
    slots = choices.server("slots", request.server.slots)
    for setting in MLX_SETTINGS:
        value = choices.option(setting.name)
        if setting.name == "decodeConcurrency" and value is None and slots is not None:
            value = choices.decide(setting.name, slots.value, "one sequence for each slot")
        if setting.name == "promptCacheMib":
            value = value or choices.decide(setting.name, _PROMPT_CACHE_MIB, "mlx_lm.server has no limit of its own")
            value = Value(setting.name, int(value.value) * _MIB, value.origin)
        if value is not None and setting.argv:
            builder.value(setting.argv, value.value, f"engineOptions.{setting.name}")


def _put_extra_args(request: LaunchRequest, choices: Choices, builder: Builder) -> None:
    server = request.server
    layers = (("backend", "backend.extraArgs", server.backend.extra_args), ("server", "extraArgs", server.extra_args))
    for origin, prefix, args in layers:
        for key, value in args.items():
            flag = f"--{key.lstrip('-').replace('_', '-')}"
            field = f"{prefix}.{key}"
            if flag in RESERVED:
                builder.report.error("E0303", field, f"{flag} is managed by gezelctl", RESERVED[flag])
            elif value is True:
                _put_switch(flag, field, builder)
            elif value is not False:
                builder.value(flag, text_of(value), field)
            if value is not False:
                place = server.places.get(field)
                choices.put(Value(f"extraArgs.{flag[2:]}", value, origin, place=place))  # type: ignore[arg-type] # a literal


def _put_switch(flag: str, field: str, builder: Builder) -> None:
    match = builder.flags.find(flag)
    if match is not None and takes_value(match):
        builder.report.error("E0302", field, f"{flag} needs a value", f"Give {field} a value.")
    else:
        builder.switch(flag, field)

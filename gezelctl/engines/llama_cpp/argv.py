"""The llama-server command line of one server, in the order of reference behaviour 10, checked against the build."""

from __future__ import annotations

from gezelctl.config.settings import LLAMA_CPP_SETTINGS, Setting
from gezelctl.engines.launch import Choices, LaunchRequest, environment, secrets, wanted_digests
from gezelctl.engines.llama_cpp.builder import Builder
from gezelctl.engines.llama_cpp.context import ContextRequest, plan_context
from gezelctl.engines.llama_cpp.extra import put_extra_args
from gezelctl.engines.llama_cpp.flags import FlagSet, load_mode_tokens
from gezelctl.engines.llama_cpp.kvtype import choose_kv_type, quantised
from gezelctl.engines.llama_cpp.specargs import put_spec
from gezelctl.engines.projector import projector_problem
from gezelctl.engines.report import Report
from gezelctl.engines.types import Expectation, LaunchSpec, Value

MODEST_CONTEXT = 8192
"""Tokens per slot when nobody says and nothing plans memory: enough to chat, small enough for a laptop."""
_CACHE_REUSE = 256
_VERBOSITY_WITH_SIZES = 4
"""llama-server names its buffer sizes from this verbosity on, where 3 is its default (memory notes 8)."""
_HANDLED = frozenset({"kvUnified", "flashAttn", "loadMode", "cacheReuse", "cpuMoe", "nCpuMoe", "reasoningBudget"})
_ALL_LAYERS_OLD = 999
"""`all` for builds whose --n-gpu-layers only takes numbers."""


def render_llama_cpp(request: LaunchRequest, report: Report) -> LaunchSpec:
    """The launch of one llama.cpp server; findings go to `report`, and a spec with errors must not be used."""
    choices = Choices(request)
    builder = Builder(FlagSet(request.probe), report)
    if builder.flags.assumed:
        report.note(f"flags of {request.probe.backend} are checked once its archive is unpacked")
    _check_layers(request, report)
    choices.server("alias", request.server.alias)
    alias = request.server.alias or request.model.id
    _put_identity(request, alias, builder)
    expect = _put_context(request, choices, builder)
    _put_cache_types(request, choices, builder)
    _put_options(choices, builder, request)
    spec = put_spec(request, choices, builder)
    put_extra_args(request, choices, builder)
    _check_template(choices, builder)
    _put_tail(request, choices, builder)
    embeddings = choices.values.get("embeddings")
    server = request.server
    return LaunchSpec(
        server=server.name,
        engine="llama-cpp",
        backend=server.backend_name,
        program=request.probe.program,
        argv=(*request.probe.prefix, *builder.argv),
        host=server.host,
        port=server.port,
        env=environment(request, report),
        secret_env=secrets(server, "LLAMA_API_KEY"),
        directories=(request.slots_dir,) if builder.has("--slot-save-path") else (),
        payload=wanted_digests(request),
        payload_id=f"payload.llama-cpp.{request.payload.model_id}",
        engine_digest=request.probe.digest,
        values=tuple(choices.values.values()),
        expect=Expectation(
            model_id=alias,
            model_path=_model_path(request),
            context_tokens=expect[0],
            slots=expect[1],
            speculation=True if spec.types else None,
            chat=not (embeddings and embeddings.value),
        ),
        start_timeout_s=server.start_timeout_s,
    )


def _model_path(request: LaunchRequest) -> str:
    return f"{request.payload_dir}/{request.payload.files[0].name}"


def _check_layers(request: LaunchRequest, report: Report) -> None:
    if request.gguf is not None and not request.gguf.block_count:
        summary = f"the header of {request.model.id} names no layer count, without which llama.cpp loads no model"
        report.error("E0314", "model", summary, "Use a GGUF file of the whole model.")


def _put_identity(request: LaunchRequest, alias: str, builder: Builder) -> None:
    server = request.server
    for field, value in (("alias", alias), ("host", server.host)):
        if "," in value:
            summary = f"{field} {value} holds a comma, which llama-server reads as a list"
            builder.report.error("E0304", field, summary, f"Remove the comma from {field}.")
    if server.host.endswith(".sock"):
        builder.report.error("E0311", "host", "a Unix socket cannot be proved to serve", "Use an IP address as host.")
    builder.value("--model", _model_path(request), "model")
    builder.value("--host", server.host, "host")
    builder.value("--port", server.port, "port")
    builder.value("--alias", alias, "alias")
    jinja = builder.flags.find("--jinja")
    if jinja is not None and jinja.flag.default != "enabled" and not builder.flags.assumed:
        builder.put(jinja)


def _context(request: LaunchRequest, choices: Choices, report: Report) -> int:
    """Tokens per slot, never above the training length: llama-server caps a slot there but allocates all of it."""
    trained = _trained(request)
    options = request.model.engine_options
    value = choices.server("context", request.server.context) or choices.planned("context")
    if value is None and "contextSize" in options:
        value = choices.put(Value("context", options["contextSize"], "catalog"))
    if value is None:
        tokens = min(trained or MODEST_CONTEXT, MODEST_CONTEXT)
        why = "training context" if tokens == trained else f"a modest {MODEST_CONTEXT}, as nothing asks for more"
        value = choices.decide("context", tokens, why)
    if trained and int(value.value) > trained:
        if value.origin == "server":
            summary = f"context {value.value} is above the model's training context; llama-server caps a slot there"
            report.warning("E0309", "context", summary, f"Set context to {trained} or less.")
        value = choices.put(Value("context", trained, value.origin, "capped at the training context", value.place))
    return int(value.value)


def _trained(request: LaunchRequest) -> int:
    """Training context from the header, else what the catalog says; 0 when neither does."""
    return (request.gguf.context_length if request.gguf else 0) or request.model.context_window


def _put_context(request: LaunchRequest, choices: Choices, builder: Builder) -> tuple[int, int]:
    """Context, slots, one pool or split, slot folder. Returns what a slot will report and the slot count."""
    context = _context(request, choices, builder.report)
    wanted = choices.server("slots", request.server.slots) or choices.planned("slots")
    slots = int((wanted or choices.decide("slots", 1, "one request at a time, as nothing asks for more")).value)
    unified = choices.option("kvUnified") or choices.decide("kvUnified", False, "each slot keeps its own context")
    builder.value("--ctx-size", context * slots, "context")
    builder.value("--parallel", slots, "slots")
    builder.pair("--kv-unified", "--no-kv-unified", "engineOptions.kvUnified", on=bool(unified.value))
    builder.optional("--slot-save-path", request.slots_dir, "")
    plan = plan_context(ContextRequest(n_ctx=context * slots, slots=slots, unified=bool(unified.value)), 0)
    trained = _trained(request)
    return min(plan.n_ctx_seq, trained) if trained else plan.n_ctx_seq, slots


def _put_cache_types(request: LaunchRequest, choices: Choices, builder: Builder) -> None:
    """KV types, and flash attention `on` where a quantised V cache needs it and nobody says otherwise."""
    flash = choices.option("flashAttn")
    wanted = choices.server("kvCache", request.server.kv_cache) or choices.planned("kvCache")
    setting = flash.value if flash else None
    kv = choices.put(choose_kv_type(wanted, request.gguf, request.model.id, setting, builder.report))
    builder.value("--cache-type-k", kv.value, "kvCache")
    builder.value("--cache-type-v", kv.value, "kvCache")
    if flash is None and quantised(str(kv.value)):
        flash = choices.decide("flashAttn", "on", f"a {kv.value} V cache requires it")
    if flash is not None:
        _put_flash(str(flash.value), builder)


def _put_flash(value: str, builder: Builder) -> None:
    """Old builds have a bare switch, which is off unless given."""
    match = builder.flags.find("--flash-attn")
    if match is not None and match.flag.arity == 0:
        if value == "on":
            builder.put(match)
    else:
        builder.value("--flash-attn", value, "engineOptions.flashAttn")


def _put_options(choices: Choices, builder: Builder, request: LaunchRequest) -> None:
    _put_load_mode(choices, builder)
    for setting in LLAMA_CPP_SETTINGS:
        if setting.name in _HANDLED:
            continue
        value = choices.option(setting.name)
        if value is not None:
            if setting.argv in builder.flags:
                _check_devices(value, request, builder.report)
            _put_setting(setting, value, builder)
    _put_experts(choices, builder)
    _put_cache_reuse(choices, builder)
    template = request.path_of("template")
    if template and not builder.has("--chat-template") and not builder.has("--chat-template-file"):
        builder.value("--chat-template-file", template, "engineOptions.chatTemplateFile")


def _put_setting(setting: Setting, value: Value, builder: Builder) -> None:
    field = f"engineOptions.{setting.name}"
    if setting.form == "switch":
        if value.value:
            builder.switch(setting.argv, field)
    elif setting.form == "pair":
        builder.pair(setting.argv, setting.negation, field, on=bool(value.value))
    elif setting.form == "layers" and value.value == -1:
        match = builder.flags.find(setting.argv)
        words = match is not None and (match.flag.default == "auto" or builder.flags.assumed)
        builder.value(setting.argv, "all" if words else _ALL_LAYERS_OLD, field)
    else:
        builder.value(setting.argv, value.value, field)


def _put_load_mode(choices: Choices, builder: Builder) -> None:
    value = choices.option("loadMode")
    if value is None:
        return
    field = "engineOptions.loadMode"
    tokens = load_mode_tokens(builder.flags, str(value.value))
    if tokens is None:
        builder.missing("--load-mode", field)
    elif len(tokens) == 2 and not tokens[1].startswith("-"):
        builder.value(tokens[0], tokens[1], field)
    else:
        for switch in tokens:
            builder.switch(switch, field)
        if tokens:
            builder.report.note(f"loadMode {value.value} is {' '.join(tokens)} in this build")


def _put_experts(choices: Choices, builder: Builder) -> None:
    """`cpuMoe` wins over the partial form; a planner's split gives way to an explicit `cpuMoe: false`."""
    whole = choices.option("cpuMoe")
    part = choices.option("nCpuMoe")
    if whole is not None and whole.value:
        builder.switch("--cpu-moe", "engineOptions.cpuMoe")
        choices.values.pop("nCpuMoe", None)
    elif part is not None and (part.origin != "planner" or whole is None):
        builder.value("--n-cpu-moe", part.value, "engineOptions.nCpuMoe")
    else:
        choices.values.pop("nCpuMoe", None)


def _put_cache_reuse(choices: Choices, builder: Builder) -> None:
    value = choices.option("cacheReuse")
    if value is None and "--cache-reuse" in builder.flags:
        value = choices.decide("cacheReuse", _CACHE_REUSE, "cached prompt chunks of this length are shifted and reused")
    if value is not None and value.value:
        builder.value("--cache-reuse", value.value, "engineOptions.cacheReuse")


def _check_devices(value: Value, request: LaunchRequest, report: Report) -> None:
    """Devices that the build does not list: the engine ignores a wrong index and dies of a wrong name."""
    known = [d.id for d in request.probe.devices]
    if request.probe.pending or "rpc" in request.server.engine_options or "rpc" in request.server.backend_options:
        return
    listed = ", ".join(known) or "none"
    if value.name == "mainGpu" and int(value.value) >= max(len(known), 1):
        summary = f"mainGpu {value.value} names no device; the build lists {listed}"
        report.error("E0304", "engineOptions.mainGpu", summary, "Set mainGpu to an index of the listed devices.")
    elif value.name == "device":
        wrong = [name for name in str(value.value).split(",") if name not in {*known, "none"}]
        if wrong:
            summary = f"device {wrong[0]} is not listed by the build, which lists {listed}"
            report.error("E0302", "engineOptions.device", summary, "Use a device id of gezelctl facts.")


def _put_tail(request: LaunchRequest, choices: Choices, builder: Builder) -> None:
    """Projector, thinking budget, no downloads, and a log that names its buffer sizes."""
    if request.server.vision:
        projector = request.path_of("mmproj")
        choices.server("vision", value=True)
        if projector:
            builder.value("--mmproj", projector, "vision")
            _check_projector(request, builder.report)
        else:
            summary = f"{request.model.id} has no projector for llama.cpp"
            builder.report.error("E0307", "vision", summary, "Remove vision: true, or use a model with an mmproj file.")
    _put_budget(request, choices, builder)
    offline = builder.flags.find("--offline")
    if offline is not None:
        builder.put(offline)
    verbosity = builder.flags.find("--log-verbosity")
    if verbosity is not None and verbosity.flag.default == "3" and not builder.has("--log-verbosity"):
        builder.put(verbosity, str(_VERBOSITY_WITH_SIZES))


def _check_projector(request: LaunchRequest, report: Report) -> None:
    """The header decides whether a projector belongs to the model, never its file name."""
    if request.gguf is None or request.mmproj_gguf is None:
        return
    problem = projector_problem(request.gguf, request.mmproj_gguf)
    if problem:
        name = request.path_of("mmproj").rpartition("/")[2]
        cure = "Use the projector of this model, or remove vision: true."
        report.error("E0307", "vision", f"{name} is not the projector of {request.model.id}: {problem}", cure)


def _check_template(choices: Choices, builder: Builder) -> None:
    """A chat template that is given as text must parse and hold a conversation before an engine reads it.

    With --jinja, which is on in every build that has it, any other name than chatml is taken for the text itself:
    each prompt would be that word (measured on b11434).
    """
    report = builder.report
    given = choices.option("chatTemplate")
    text = str(given.value) if given else ""
    if not set("{}\n") & set(text):
        if text not in {"", "chatml"} and "--jinja" in builder.flags and "--no-jinja" not in builder.argv:
            summary = f"the engine would take chatTemplate {text} for the template itself: every prompt would read so"
            report.error("E0313", "engineOptions.chatTemplate", summary, "Remove it, or give Jinja text or chatml.")
        return
    from gezelctl.engines.templatelint import lint_template

    for found in lint_template(text):
        where = f", line {found.line} of the template" if found.line else ""
        tell = report.error if found.severity == "error" else report.warning
        tell("E0313", "engineOptions.chatTemplate", f"{found.summary}{where}", found.cure)


def _put_budget(request: LaunchRequest, choices: Choices, builder: Builder) -> None:
    """An explicit budget, else the catalog's, which a build without the flag goes without."""
    budget = choices.option("reasoningBudget")
    if budget is not None:
        builder.value("--reasoning-budget", budget.value, "engineOptions.reasoningBudget")
        return
    tokens = request.model.thinking_budget
    if tokens > 0 and builder.optional("--reasoning-budget", tokens, "engineOptions.reasoningBudget"):
        choices.put(Value("reasoningBudget", tokens, "catalog"))
    elif tokens > 0:
        builder.report.note(
            f"the catalog's thinking budget of {tokens} tokens is left out: the build has no flag for it"
        )

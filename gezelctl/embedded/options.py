"""The flags of the embedded server: names and help as llama-server has them, and what each sets in xllamacpp.

Only flags that really change the server are listed. xllamacpp has no counterpart of `--device` and `--rpc`, so they
are absent, and a plan that wants them says so before anything starts.
"""

from __future__ import annotations

import msgspec

from gezelctl.embedded.setters import (
    KV_TYPES,
    SPEC_TYPES,
    Apply,
    alias,
    cache_type,
    choice,
    constant,
    cpu_moe,
    fit,
    fit_target,
    hosts,
    integer,
    layers,
    n_cpu_moe,
    override,
    port,
    real,
    seed,
    slot_path,
    spec_type,
    template_file,
    tensor_split,
    text,
    timeout,
)

_LOAD_MODES = {
    "auto": "AUTO",
    "none": "NONE",
    "mmap": "MMAP",
    "mlock": "MLOCK",
    "mmap+mlock": "MMAP_MLOCK",
    "dio": "DIRECT_IO",
}
_FLASH = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
_FLASH_MEMBERS = {word: f"LLAMA_FLASH_ATTN_TYPE_{member}" for word, member in _FLASH.items()}
_LOAD_MEMBERS = {word: f"LLAMA_LOAD_MODE_{member}" for word, member in _LOAD_MODES.items()}
_SPLIT_MEMBERS = {word: f"LLAMA_SPLIT_MODE_{word.upper()}" for word in ("none", "layer", "row", "tensor")}
_POOLING_MEMBERS = {word: f"LLAMA_POOLING_TYPE_{word.upper()}" for word in ("none", "mean", "cls", "last", "rank")}
_REASONING_MEMBERS = {
    word: f"COMMON_REASONING_FORMAT_{word.upper().replace('-', '_')}"
    for word in ("none", "auto", "deepseek", "deepseek-legacy")
}


class Option(msgspec.Struct, frozen=True):
    """One flag: `apply` for its positive names, `negate` for the --no-… ones; `metavar` "" makes it a switch."""

    names: tuple[str, ...]
    metavar: str
    help: str
    apply: Apply
    negations: tuple[str, ...] = ()
    negate: Apply | None = None
    env: str = ""


def _switch(names: str, help_: str, path: str, env: str = "") -> Option:
    return Option(tuple(names.split()), "", help_, constant(path, value=True), env=env)


def _pair(names: str, negations: str, help_: str, path: str, env: str = "", *, inverted: bool = False) -> Option:
    return Option(
        tuple(names.split()), "", help_, constant(path, not inverted),
        tuple(negations.split()), constant(path, inverted), env,
    )  # fmt: skip


def _value(names: str, metavar: str, help_: str, apply: Apply, env: str = "") -> Option:
    return Option(tuple(names.split()), metavar, help_, apply, env=env)


OPTIONS: tuple[Option, ...] = (
    _value("-m --model", "FNAME", "model path to load", text("model.path"), "LLAMA_ARG_MODEL"),
    _value("-a --alias", "STRING", "set model name aliases, comma-separated (to be used by API)", alias,
           "LLAMA_ARG_ALIAS"),
    _value("--host", "HOST", "IP addresses to listen on, comma-separated (default: 127.0.0.1)", hosts,
           "LLAMA_ARG_HOST"),
    _value("--port", "PORT", "port to listen (default: 8080)", port, "LLAMA_ARG_PORT"),
    _value("-c --ctx-size", "N", "size of the prompt context (default: 0, 0 = loaded from model)",
           integer("n_ctx", 0), "LLAMA_ARG_CTX_SIZE"),
    _value("-np --parallel", "N", "number of server slots (default: 1)", integer("n_parallel", 1),
           "LLAMA_ARG_N_PARALLEL"),
    _pair("-kvu --kv-unified", "-no-kvu --no-kv-unified",
          "use single unified KV buffer shared across all sequences (default: disabled)", "kv_unified",
          "LLAMA_ARG_KV_UNIFIED"),
    _value("-n --predict --n-predict", "N", "number of tokens to predict (default: -1, -1 = infinity)",
           integer("n_predict"), "LLAMA_ARG_N_PREDICT"),
    _value("-b --batch-size", "N", "logical maximum batch size (default: 2048)", integer("n_batch", 1),
           "LLAMA_ARG_BATCH"),
    _value("-ub --ubatch-size", "N", "physical maximum batch size (default: 512)", integer("n_ubatch", 1),
           "LLAMA_ARG_UBATCH"),
    _value("-t --threads", "N", "number of CPU threads to use during generation (default: -1)",
           integer("cpuparams.n_threads"), "LLAMA_ARG_THREADS"),
    _value("-tb --threads-batch", "N",
           "number of threads to use during batch and prompt processing (default: same as --threads)",
           integer("cpuparams_batch.n_threads")),
    _value("-fa --flash-attn", "[on|off|auto]",
           "set Flash Attention use ('on', 'off', or 'auto', default: 'auto')",
           choice("flash_attn_type", "llama_flash_attn_type", _FLASH_MEMBERS), "LLAMA_ARG_FLASH_ATTN"),
    _switch("--swa-full", "use full-size SWA cache (default: false)", "swa_full", "LLAMA_ARG_SWA_FULL"),
    _pair("-kvo --kv-offload", "-nkvo --no-kv-offload", "whether to enable KV cache offloading (default: enabled)",
          "no_kv_offload", "LLAMA_ARG_KV_OFFLOAD", inverted=True),
    _value("-ctk --cache-type-k", "TYPE",
           f"KV cache data type for K\nallowed values: {', '.join(KV_TYPES)}\n(default: f16)",
           cache_type("cache_type_k"), "LLAMA_ARG_CACHE_TYPE_K"),
    _value("-ctv --cache-type-v", "TYPE",
           f"KV cache data type for V\nallowed values: {', '.join(KV_TYPES)}\n(default: f16)",
           cache_type("cache_type_v"), "LLAMA_ARG_CACHE_TYPE_V"),
    _value("-lm --load-mode", "MODE",
           "model loading mode (default: auto)\n"
           "- auto: mmap, unless a device does not support it\n"
           "- none: no special loading mode\n"
           "- mmap: memory-map model\n"
           "- mlock: force system to keep model in RAM\n"
           "- mmap+mlock: both of them\n"
           "- dio: use DirectIO if available",
           choice("load_mode", "llama_load_mode", _LOAD_MEMBERS), "LLAMA_ARG_LOAD_MODE"),
    _value("-ngl --gpu-layers --n-gpu-layers", "N",
           "max. number of layers to store in VRAM, either an exact number, 'auto', or 'all' (default: auto)",
           layers("n_gpu_layers"), "LLAMA_ARG_N_GPU_LAYERS"),
    _value("-sm --split-mode", "{none,layer,row,tensor}", "how to split the model across multiple GPUs",
           choice("split_mode", "llama_split_mode", _SPLIT_MEMBERS), "LLAMA_ARG_SPLIT_MODE"),
    _value("-ts --tensor-split", "N0,N1,N2,...",
           "fraction of the model to offload to each GPU, comma-separated list of proportions, e.g. 3,1",
           tensor_split, "LLAMA_ARG_TENSOR_SPLIT"),
    _value("-mg --main-gpu", "INDEX", "the GPU to use for the model (with split-mode = none) (default: 0)",
           integer("main_gpu", 0), "LLAMA_ARG_MAIN_GPU"),
    _value("-ot --override-tensor", "<tensor name pattern>=<buffer type>,...", "override tensor buffer type",
           lambda _x, params, value: override(params, [value]), "LLAMA_ARG_OVERRIDE_TENSOR"),
    Option(("-cmoe", "--cpu-moe"), "", "keep all Mixture of Experts (MoE) weights in the CPU", cpu_moe,
           env="LLAMA_ARG_CPU_MOE"),
    _value("-ncmoe --n-cpu-moe", "N", "keep the Mixture of Experts (MoE) weights of the first N layers in the CPU",
           n_cpu_moe, "LLAMA_ARG_N_CPU_MOE"),
    _value("-fit --fit", "[on|off]",
           "whether to adjust unset arguments to fit in device memory ('on' or 'off', default: 'on')", fit,
           "LLAMA_ARG_FIT"),
    _value("-fitt --fit-target", "MiB0,MiB1,MiB2,...",
           "target margin per device for --fit, comma-separated list of values, default: 1024", fit_target,
           "LLAMA_ARG_FIT_TARGET"),
    _value("-fitc --fit-ctx", "N", "minimum ctx size that can be set by --fit option, default: 4096",
           integer("fit_params_min_ctx", 1), "LLAMA_ARG_FIT_CTX"),
    _value("-cram --cache-ram", "N",
           "set the maximum cache size in MiB (default: 8192, -1 - no limit, 0 - disable)",
           integer("cache_ram_mib", -1), "LLAMA_ARG_CACHE_RAM"),
    _value("-ctxcp --ctx-checkpoints --swa-checkpoints", "N",
           "max number of context checkpoints to create per slot (default: 32)", integer("n_ctx_checkpoints", 0),
           "LLAMA_ARG_CTX_CHECKPOINTS"),
    _value("-cms --checkpoint-min-step", "N",
           "minimum spacing between context checkpoints in tokens (default: 8192, 0 = no minimum)",
           integer("checkpoint_min_step", 0)),
    _value("--cache-reuse", "N", "min chunk size to attempt reusing from the cache via KV shifting (default: 0)",
           integer("n_cache_reuse", 0), "LLAMA_ARG_CACHE_REUSE"),
    _pair("--cache-prompt", "--no-cache-prompt", "whether to enable prompt caching (default: enabled)",
          "cache_prompt", "LLAMA_ARG_CACHE_PROMPT"),
    _value("--slot-save-path", "PATH", "path to save slot kv cache (default: disabled)", slot_path),
    _pair("-cb --cont-batching", "-nocb --no-cont-batching",
          "whether to enable continuous batching (default: enabled)", "cont_batching", "LLAMA_ARG_CONT_BATCHING"),
    _pair("--context-shift", "--no-context-shift",
          "whether to use context shift on infinite text generation (default: disabled)", "ctx_shift",
          "LLAMA_ARG_CONTEXT_SHIFT"),
    _pair("--warmup", "--no-warmup", "whether to perform warmup with an empty run (default: enabled)", "warmup"),
    _pair("--jinja", "--no-jinja", "whether to use jinja template engine for chat (default: enabled)", "use_jinja",
          "LLAMA_ARG_JINJA"),
    _value("--chat-template", "JINJA_TEMPLATE",
           "set custom jinja chat template (default: template taken from model's metadata)", text("chat_template"),
           "LLAMA_ARG_CHAT_TEMPLATE"),
    _value("--chat-template-file", "JINJA_TEMPLATE_FILE",
           "set custom jinja chat template file (default: template taken from model's metadata)", template_file,
           "LLAMA_ARG_CHAT_TEMPLATE_FILE"),
    _value("--reasoning-format", "FORMAT",
           "where thoughts go in the response; one of:\n"
           "- none: leaves thoughts unparsed in `message.content`\n"
           "- auto: as the template asks\n"
           "- deepseek: puts thoughts in `message.reasoning_content`\n"
           "- deepseek-legacy: keeps `<think>` tags in `message.content` too\n"
           "(default: deepseek)",
           choice("reasoning_format", "common_reasoning_format", _REASONING_MEMBERS), "LLAMA_ARG_THINK"),
    _value("--reasoning-budget", "N",
           "token budget for thinking: -1 for unrestricted, 0 for immediate end, N>0 for token budget (default: -1)",
           integer("sampling.reasoning_budget_tokens", -1), "LLAMA_ARG_THINK_BUDGET"),
    _switch("--metrics", "enable prometheus compatible metrics endpoint (default: disabled)", "endpoint_metrics",
            "LLAMA_ARG_ENDPOINT_METRICS"),
    _switch("--props", "enable changing global properties via POST /props (default: disabled)", "endpoint_props",
            "LLAMA_ARG_ENDPOINT_PROPS"),
    _pair("--slots", "--no-slots", "expose slots monitoring endpoint (default: enabled)", "endpoint_slots",
          "LLAMA_ARG_ENDPOINT_SLOTS"),
    _pair("--ui --webui", "--no-ui --no-webui", "whether to enable the Web UI (default: enabled)", "ui",
          "LLAMA_ARG_UI"),
    _switch("--embedding --embeddings", "restrict to only support embedding use case (default: disabled)",
            "embedding", "LLAMA_ARG_EMBEDDINGS"),
    _value("--pooling", "{none,mean,cls,last,rank}", "pooling type for embeddings",
           choice("pooling_type", "llama_pooling_type", _POOLING_MEMBERS), "LLAMA_ARG_POOLING"),
    _value("-to --timeout", "N", "server read/write timeout in seconds (default: 3600)", timeout, "LLAMA_ARG_TIMEOUT"),
    _value("--threads-http", "N", "number of threads used to process HTTP requests (default: -1)",
           integer("n_threads_http"), "LLAMA_ARG_THREADS_HTTP"),
    _value("-mm --mmproj", "FILE", "path to a multimodal projector file", text("mmproj.path"), "LLAMA_ARG_MMPROJ"),
    _pair("--mmproj-offload", "--no-mmproj-offload",
          "whether to enable GPU offloading for multimodal projector (default: enabled)", "mmproj_use_gpu",
          "LLAMA_ARG_MMPROJ_OFFLOAD"),
    _value("--spec-type", ",".join(SPEC_TYPES),
           "comma-separated list of types of speculative decoding to use (default: none)", spec_type,
           "LLAMA_ARG_SPEC_TYPE"),
    _value("--spec-draft-model -md --model-draft", "FNAME",
           "draft model for speculative decoding (default: unused)", text("speculative.draft.mparams.path"),
           "LLAMA_ARG_SPEC_DRAFT_MODEL"),
    _value("--spec-draft-n-max", "N", "number of tokens to draft for speculative decoding (default: 3)",
           integer("speculative.draft.n_max", 1), "LLAMA_ARG_SPEC_DRAFT_N_MAX"),
    _value("--spec-draft-n-min", "N", "minimum number of draft tokens to use (default: 0)",
           integer("speculative.draft.n_min", 0), "LLAMA_ARG_SPEC_DRAFT_N_MIN"),
    _value("--spec-draft-p-min --draft-p-min", "P", "minimum speculative decoding probability (default: 0.00)",
           real("speculative.draft.p_min"), "LLAMA_ARG_SPEC_DRAFT_P_MIN"),
    _value("--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft", "N",
           "max. number of draft model layers to store in VRAM, a number, 'auto', or 'all' (default: auto)",
           layers("speculative.draft.n_gpu_layers"), "LLAMA_ARG_N_GPU_LAYERS_DRAFT"),
    _value("--spec-draft-type-k -ctkd --cache-type-k-draft", "TYPE",
           f"KV cache data type for K for the draft model\nallowed values: {', '.join(KV_TYPES)}\n(default: f16)",
           cache_type("speculative.draft.cache_type_k"), "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K"),
    _value("--spec-draft-type-v -ctvd --cache-type-v-draft", "TYPE",
           f"KV cache data type for V for the draft model\nallowed values: {', '.join(KV_TYPES)}\n(default: f16)",
           cache_type("speculative.draft.cache_type_v"), "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V"),
    _value("-s --seed", "SEED", "RNG seed (default: -1, use random seed for -1)",
           seed),
    _value("--temp --temperature", "N", "temperature (default: 0.80)", real("sampling.temp"),
           "LLAMA_ARG_TEMPERATURE"),
    _value("--top-k", "N", "top-k sampling (default: 40, 0 = disabled)", integer("sampling.top_k"),
           "LLAMA_ARG_TOP_K"),
    _value("--top-p", "N", "top-p sampling (default: 0.95, 1.0 = disabled)", real("sampling.top_p"),
           "LLAMA_ARG_TOP_P"),
    _value("--min-p", "N", "min-p sampling (default: 0.05, 0.0 = disabled)", real("sampling.min_p"),
           "LLAMA_ARG_MIN_P"),
    _value("--repeat-penalty", "N", "penalize repeat sequence of tokens (default: 1.00, 1.0 = disabled)",
           real("sampling.penalty_repeat"), "LLAMA_ARG_REPEAT_PENALTY"),
    _value("--presence-penalty", "N", "repeat alpha presence penalty (default: 0.00, 0.0 = disabled)",
           real("sampling.penalty_present"), "LLAMA_ARG_PRESENCE_PENALTY"),
    _value("--rope-freq-base", "N", "RoPE base frequency (default: loaded from model)", real("rope_freq_base"),
           "LLAMA_ARG_ROPE_FREQ_BASE"),
    _value("--rope-freq-scale", "N", "RoPE frequency scaling factor", real("rope_freq_scale"),
           "LLAMA_ARG_ROPE_FREQ_SCALE"),
    Option(("--offline",), "", "Offline mode: prevents network access", constant("offline", value=True),
           env="LLAMA_ARG_OFFLINE"),
    _value("-lv --verbosity --log-verbosity", "N",
           "Set the verbosity threshold. Values:\n - 0: generic output\n - 1: error\n - 2: warning\n - 3: info\n"
           " - 4: trace (more info)\n - 5: debug\n(default: 3)",
           integer("verbosity", 0), "LLAMA_ARG_LOG_VERBOSITY"),
)  # fmt: skip

BY_NAME: dict[str, Option] = {name: option for option in OPTIONS for name in (*option.names, *option.negations)}

"""The settings table: every engine option is declared here once.

Schema, argv, diff and documentation come from this table. `argv` names the long flag of llama-server; what a build
calls it today, and whether it has it, is the probe's and `engines.llama_cpp.flags`' business.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

Effect = Literal["live", "restart"]
Form = Literal["value", "switch", "pair", "layers"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One engine option.

    `form`: `value` = flag and value; `switch` = the bare flag when true, nothing when false; `pair` = flag or its
    negation; `layers` = value with -1 printed as `all`.
    """

    name: str
    type: Any
    argv: str
    help: str
    form: Form = "value"
    negation: str = ""
    effect: Effect = "restart"


_POS = Annotated[int, Meta(gt=0)]
_NAT = Annotated[int, Meta(ge=0)]
_GIB_MIB = Annotated[int, Meta(ge=-1)]
# llama-server splits these at commas and takes what it cannot read as something else, so their shape is checked here.
_SPLIT = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?([,/][0-9]+(\.[0-9]+)?)*$(?!\n)")]
_DEVICES = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]+(,[A-Za-z0-9_.:-]+)*$(?!\n)")]
_ENDPOINTS = Annotated[str, Meta(pattern=r"^[^\s,:]+:[0-9]{1,5}(,[^\s,:]+:[0-9]{1,5})*$(?!\n)")]
_TEXT = Annotated[str, Meta(min_length=1)]

LLAMA_CPP_SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="nGpuLayers",
        type=Annotated[int, Meta(ge=-1)],
        argv="--n-gpu-layers",
        form="layers",
        help="layers in device memory; -1 = all",
    ),
    Setting(name="cpuMoe", type=bool, argv="--cpu-moe", form="switch", help="keep all expert tensors in host memory"),
    Setting(
        name="nCpuMoe", type=_NAT, argv="--n-cpu-moe", help="keep the experts of the first N layers in host memory"
    ),
    Setting(name="flashAttn", type=Literal["on", "off", "auto"], argv="--flash-attn", help="flash attention"),
    Setting(name="cacheReuse", type=_NAT, argv="--cache-reuse", help="smallest chunk to reuse from the cache; 0 = off"),
    Setting(
        name="swaFull", type=bool, argv="--swa-full", form="switch", help="full-size cache for sliding-window layers"
    ),
    Setting(
        name="kvUnified",
        type=bool,
        argv="--kv-unified",
        form="pair",
        negation="--no-kv-unified",
        help="one KV pool shared by all slots",
    ),
    Setting(
        name="kvOffload",
        type=bool,
        argv="--kv-offload",
        form="pair",
        negation="--no-kv-offload",
        help="KV cache in device memory",
    ),
    Setting(name="threads", type=_POS, argv="--threads", help="CPU threads for generation"),
    Setting(name="threadsBatch", type=_POS, argv="--threads-batch", help="CPU threads for prompt processing"),
    Setting(name="batchSize", type=_POS, argv="--batch-size", help="logical batch, tokens"),
    Setting(name="ubatchSize", type=_POS, argv="--ubatch-size", help="physical batch, tokens"),
    Setting(
        name="loadMode",
        type=Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"],
        argv="--load-mode",
        help="how weights are brought into memory",
    ),
    Setting(name="tensorSplit", type=_SPLIT, argv="--tensor-split", help="share of each device, as 3,1"),
    Setting(
        name="splitMode", type=Literal["none", "layer", "row"], argv="--split-mode", help="how to split over devices"
    ),
    Setting(name="mainGpu", type=_NAT, argv="--main-gpu", help="device index for split mode none"),
    Setting(
        name="device",
        type=_DEVICES,
        argv="--device",
        help="devices to offload to: ids of gezelctl facts (UUID, PCI address), or the engine's names (CUDA0)",
    ),
    Setting(
        name="cacheRamMib", type=_GIB_MIB, argv="--cache-ram", help="host prompt cache, MiB; 0 = off, -1 = no limit"
    ),
    Setting(name="ctxCheckpoints", type=_NAT, argv="--ctx-checkpoints", help="context checkpoints a slot"),
    Setting(name="rpc", type=_ENDPOINTS, argv="--rpc", help="RPC servers, as host:port"),
    Setting(name="chatTemplate", type=_TEXT, argv="--chat-template", help="Jinja text, or chatml"),
    Setting(name="chatTemplateFile", type=_TEXT, argv="--chat-template-file", help="a Jinja template file"),
    Setting(
        name="reasoningFormat",
        type=Literal["none", "auto", "deepseek", "deepseek-legacy"],
        argv="--reasoning-format",
        help="where thoughts go in the answer",
    ),
    Setting(
        name="reasoningBudget",
        type=Annotated[int, Meta(ge=-1)],
        argv="--reasoning-budget",
        help="thinking tokens; 0 = none, -1 = no limit",
    ),
    Setting(name="metrics", type=bool, argv="--metrics", form="switch", help="Prometheus endpoint"),
    Setting(name="embeddings", type=bool, argv="--embeddings", form="switch", help="serve embeddings only"),
    Setting(name="fit", type=Literal["on", "off"], argv="--fit", help="let the engine shrink unset values to fit"),
)

MLX_SETTINGS: tuple[Setting, ...] = (
    Setting(name="promptCacheSize", type=_POS, argv="--prompt-cache-size", help="KV caches kept between requests"),
    Setting(name="promptCacheMib", type=_NAT, argv="--prompt-cache-bytes", help="bytes of kept KV caches, in MiB"),
    Setting(name="decodeConcurrency", type=_POS, argv="--decode-concurrency", help="sequences decoded together"),
    Setting(name="promptConcurrency", type=_POS, argv="--prompt-concurrency", help="prompts processed together"),
    Setting(name="prefillStepSize", type=_POS, argv="--prefill-step-size", help="prompt tokens a step"),
    Setting(name="maxTokens", type=_POS, argv="--max-tokens", help="default answer length, tokens"),
    Setting(name="memoryLimitMib", type=_POS, argv="", help="Metal memory limit, MiB"),
    Setting(name="wiredLimitMib", type=_POS, argv="", help="Metal wired limit, MiB"),
    Setting(name="cacheLimitMib", type=_NAT, argv="", help="Metal buffer cache limit, MiB"),
)

SETTINGS: dict[str, Setting] = {s.name: s for s in (*LLAMA_CPP_SETTINGS, *MLX_SETTINGS)}
ENGINE_SETTINGS: dict[str, tuple[Setting, ...]] = {"llama-cpp": LLAMA_CPP_SETTINGS, "mlx": MLX_SETTINGS}

_Struct = msgspec.defstruct(
    "EngineOptions",
    [(s.name, Annotated[s.type | None, Meta(description=s.help)], None) for s in SETTINGS.values()],
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    namespace={"__doc__": "Options of the engine; each belongs to llama-cpp or to mlx."},
)
# A struct made from the table has no static type; its only reader is `option_values`.
EngineOptions: TypeAlias = _Struct  # type: ignore[valid-type]


def option_values(options: object | None) -> dict[str, bool | int | float | str]:
    """The options that are set, in table order."""
    if options is None:
        return {}
    values = ((name, getattr(options, name)) for name in SETTINGS)
    return {name: value for name, value in values if value is not None}

"""How a flag's text becomes a parameter of xllamacpp's CommonParams; each setter raises ValueError with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

Apply = Callable[[ModuleType, Any, str], None]
"""(xllamacpp module, CommonParams, value text) -> None; raises ValueError with the reason."""

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
SPEC_TYPES = (
    "none",
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
)
_ON_OFF: dict[str, bool] = {"on": True, "off": False}
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""The tensor names that llama.cpp's --cpu-moe overrides (common.h, LLM_FFN_EXPS_REGEX)."""


def set_path(params: Any, path: str, value: object) -> None:
    """Set a dotted attribute of CommonParams."""
    *parents, last = path.split(".")
    for name in parents:
        params = getattr(params, name)
    setattr(params, last, value)


def text(path: str) -> Apply:
    return lambda _x, params, value: set_path(params, path, value)


def integer(path: str, minimum: int | None = None) -> Apply:
    """An integer; below `minimum` is refused here, because the engine would take it and misbehave."""

    def apply(_x: ModuleType, params: Any, value: str) -> None:
        number = int(value)
        if minimum is not None and number < minimum:
            raise ValueError(f"invalid value: {value} is below {minimum}")
        set_path(params, path, number)

    return apply


def real(path: str) -> Apply:
    return lambda _x, params, value: set_path(params, path, float(value))


def constant(path: str, value: object) -> Apply:
    return lambda _x, params, _value: set_path(params, path, value)


def choice(path: str, kind: str, members: dict[str, str]) -> Apply:
    """A word of a closed set, stored as the member of an xllamacpp enum."""

    def apply(x: ModuleType, params: Any, value: str) -> None:
        if value not in members:
            raise ValueError(f"unknown value: '{value}'")
        set_path(params, path, getattr(getattr(x, kind), members[value]))

    return apply


def cache_type(path: str) -> Apply:
    def apply(x: ModuleType, params: Any, value: str) -> None:
        if value not in KV_TYPES:
            raise ValueError(f"Unsupported cache type: {value}")
        set_path(params, path, getattr(x.ggml_type, f"GGML_TYPE_{value.upper()}"))

    return apply


def layers(path: str) -> Apply:
    """`auto` is -1 and `all` is -2 in llama.cpp (common/arg.cpp)."""

    def apply(_x: ModuleType, params: Any, value: str) -> None:
        set_path(params, path, {"auto": -1, "all": -2}.get(value) or int(value))

    return apply


def spec_type(x: ModuleType, params: Any, value: str) -> None:
    names = value.split(",")
    unknown = next((name for name in names if name not in SPEC_TYPES), None)
    if unknown is not None:
        raise ValueError(f"unknown speculative type: {unknown}")
    members = x.common_speculative_type
    params.speculative.types = [
        getattr(members, f"COMMON_SPECULATIVE_TYPE_{name.upper().replace('-', '_')}") for name in names
    ]


def tensor_split(_x: ModuleType, params: Any, value: str) -> None:
    shares = [float(part) for part in value.replace("/", ",").split(",")]
    size = len(params.tensor_split)
    if len(shares) > size:
        raise ValueError(f"got {len(shares)} input configs, but system only has {size} devices")
    params.tensor_split = shares + [0.0] * (size - len(shares))


def fit_target(_x: ModuleType, params: Any, value: str) -> None:
    margins = [int(part) << 20 for part in value.split(",")]
    size = len(params.fit_params_target)
    params.fit_params_target = margins * size if len(margins) == 1 else (margins + [margins[-1]] * size)[:size]


def override(params: Any, rules: Iterable[str]) -> None:
    params.tensor_buft_overrides = ",".join(filter(None, (params.tensor_buft_overrides, *rules)))


def cpu_moe(_x: ModuleType, params: Any, _value: str) -> None:
    override(params, [f"{_EXPERTS}=CPU"])


def n_cpu_moe(_x: ModuleType, params: Any, value: str) -> None:
    if int(value) < 0:
        raise ValueError("invalid value")
    override(params, (rf"blk\.{layer}{_EXPERTS}=CPU" for layer in range(int(value))))


def template_file(_x: ModuleType, params: Any, value: str) -> None:
    try:
        params.chat_template = Path(value).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"error: failed to open file '{value}'") from error


def slot_path(_x: ModuleType, params: Any, value: str) -> None:
    if not Path(value).is_dir():
        raise ValueError(f"not a directory: {value}")
    params.slot_save_path = value.rstrip("/") + "/"


def hosts(_x: ModuleType, params: Any, value: str) -> None:
    params.hostnames = value.split(",")


def alias(_x: ModuleType, params: Any, value: str) -> None:
    params.model_alias = set(value.split(","))


def port(_x: ModuleType, params: Any, value: str) -> None:
    port = int(value)
    if not 1 <= port <= 65535:
        raise ValueError(f"invalid value: port {value}")
    params.port = port


def timeout(_x: ModuleType, params: Any, value: str) -> None:
    params.timeout_read = params.timeout_write = int(value)


def fit(_x: ModuleType, params: Any, value: str) -> None:
    if value not in _ON_OFF:
        raise ValueError(f"unknown value for --fit: '{value}'")
    params.fit_params = _ON_OFF[value]


def seed(_x: ModuleType, params: Any, value: str) -> None:
    """-1 is llama.cpp's random seed, kept as an unsigned number."""
    params.sampling.seed = int(value) & 0xFFFFFFFF

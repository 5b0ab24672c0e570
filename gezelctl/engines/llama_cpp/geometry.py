"""Attention and recurrent geometry per layer, read from header keys as llama.cpp's load_hparams reads them."""

from __future__ import annotations

import msgspec

from gezelctl.engines.llama_cpp import architectures as arch
from gezelctl.gguf.types import GgufSummary


class Layer(msgspec.Struct, frozen=True, rename="camel"):
    """One block: elements of a cached token, and what is cached at all."""

    k_elements: int
    """dk * KV heads: values in one row of K."""
    v_elements: int
    """dv * KV heads; 0 under MLA, whose values are a view of K."""
    swa: bool = False
    cached: bool = True
    recurrent: bool = False
    nextn: bool = False
    """MTP layer: cached only by the MTP context, loaded only with MTP."""
    index_elements: int = 0
    """Values of one row of indexer keys (DeepSeek sparse attention)."""

    @property
    def shares(self) -> bool:
        """Attends to the cache of an earlier layer instead of its own."""
        return not self.cached and not self.recurrent and not self.nextn and self.k_elements > 0


class Geometry(msgspec.Struct, frozen=True, rename="camel"):
    """All that sizes caches and recurrent state."""

    architecture: str
    layers: tuple[Layer, ...]
    """`block_count` layers, MTP layers last."""
    window: int = 0
    """Sliding window in tokens, 0 = none."""
    mla: bool = False
    r_elements: int = 0
    """Convolution or token-shift state of one recurrent layer, in F32 values."""
    s_elements: int = 0
    rollback: bool = False
    exact: bool = True
    notes: tuple[str, ...] = ()

    @property
    def layer_count(self) -> int:
        """Layers of the main model, without MTP layers."""
        return sum(not layer.nextn for layer in self.layers)

    @property
    def hybrid(self) -> bool:
        """Has attention and recurrent layers."""
        return any(layer.recurrent for layer in self.layers) and any(layer.cached for layer in self.layers)

    @property
    def v_widest(self) -> int:
        """Widest V row over all layers of the main model, n_embd_v_gqa_max."""
        return max((layer.v_elements for layer in self.layers if not layer.nextn), default=0)


def per_layer(summary: GgufSummary, suffix: str, count: int, default: int = 0) -> tuple[int, ...]:
    """A key that may be a scalar or an array with one value per layer."""
    array = summary.array(suffix)
    if array is not None:
        values = [int(value) for value in array[:count]]
        return tuple(values + [default] * (count - len(values)))
    return (summary.integer(suffix, default),) * count


def read_geometry(summary: GgufSummary) -> Geometry:
    """Geometry of a model file; `exact` is False with a note where llama.cpp uses a cache class not modelled here."""
    count = summary.block_count
    main = count - min(summary.integer("nextn_predict_layers"), count)
    window = _window(summary, main)
    heads = per_layer(summary, "attention.head_count", count)
    kv_heads = per_layer(summary, "attention.head_count_kv", count)
    if summary.get("attention.head_count_kv") is None and summary.array("attention.head_count_kv") is None:
        kv_heads = heads
    swa = _swa_layers(summary, main, count) if window else (False,) * count
    recurrent = _recurrent_layers(summary, main, count, kv_heads)
    cached = _cached_layers(summary, main, count, recurrent)
    mla = summary.get("attention.key_length_mla") is not None and summary.get("attention.value_length_mla") is not None
    kinds = tuple(zip(kv_heads, swa, strict=True))
    rows = {kind: _row(summary, heads, kind[0], swa=kind[1], mla=mla) for kind in set(kinds)}
    r_elements, s_elements = _state(summary, heads) if any(recurrent) else (0, 0)
    index = summary.integer("attention.indexer.key_length") if summary.architecture in arch.INDEXED else 0
    notes = _notes(summary, mla=mla)
    return Geometry(
        architecture=summary.architecture,
        layers=tuple(
            Layer(*rows[kind], swa[i], cached[i], recurrent[i], nextn=i >= main, index_elements=index)
            for i, kind in enumerate(kinds)
        ),
        window=window if any(swa) else 0,
        mla=mla,
        r_elements=r_elements,
        s_elements=s_elements,
        rollback=summary.architecture in arch.ROLLBACK,
        exact=arch.known(summary.architecture),
        notes=notes,
    )


def _row(summary: GgufSummary, heads: tuple[int, ...], kv_heads: int, *, swa: bool, mla: bool) -> tuple[int, int]:
    """(K, V) elements of one cached token of a layer."""
    fallback = summary.integer("embedding_length") // heads[0] if heads and heads[0] else 0
    dk = summary.integer("attention.key_length", fallback)
    dv = summary.integer("attention.value_length", fallback)
    if swa:
        dk = summary.integer("attention.key_length_swa", dk)
        dv = summary.integer("attention.value_length_swa", dv)
    return dk * kv_heads, 0 if mla else dv * kv_heads


def _window(summary: GgufSummary, main: int) -> int:
    """Window in tokens that the architecture would use, 0 = full attention everywhere."""
    rule = arch.WINDOWS.get(summary.architecture)
    if rule is None or (rule.only_layers and main != rule.only_layers):
        return 0
    given = summary.get("attention.sliding_window")
    if given is None:
        return rule.default if summary.architecture != "smallthinker" else 0
    size = summary.integer("attention.sliding_window")
    return rule.default if rule.forced and size > 0 else size


def _swa_layers(summary: GgufSummary, main: int, count: int) -> tuple[bool, ...]:
    """Which layers are windowed: the pattern key (array, or scalar period), else the architecture's own period."""
    rule = arch.WINDOWS[summary.architecture]
    array = summary.array("attention.sliding_window_pattern")
    if array is not None:
        flags = [bool(value) for value in array[:main]]
        return tuple(flags + [False] * (count - len(flags)))
    period = summary.integer("attention.sliding_window_pattern", rule.period)
    if period == arch.ARRAY:
        return (False,) * count
    return tuple(i < main and _in_window(i, period, dense_first=rule.dense_first) for i in range(count))


def _in_window(layer: int, period: int, *, dense_first: bool) -> bool:
    """llama_hparams::set_swa_pattern."""
    if period == 0:
        return True
    return layer % period != 0 if dense_first else layer % period < period - 1


def _recurrent_layers(summary: GgufSummary, main: int, count: int, kv_heads: tuple[int, ...]) -> tuple[bool, ...]:
    name = summary.architecture
    if name in arch.RECURRENT or name == "falcon-h1":
        return tuple(i < main for i in range(count))
    if name in arch.INTERVAL_HYBRIDS:
        listed = summary.array("attention.recurrent_layers")
        if listed is not None:
            return tuple(i < main and i < len(listed) and bool(listed[i]) for i in range(count))
        interval = summary.integer("full_attention_interval", arch.INTERVALS.get(name, 4))
        return tuple(i < main and (i + 1) % interval != 0 for i in range(count))
    if name in arch.NEMOTRON_H:
        feed_forward = per_layer(summary, "feed_forward_length", count)
        return tuple(i < main and kv_heads[i] == 0 and feed_forward[i] == 0 for i in range(count))
    if name in arch.HEAD_HYBRIDS:
        return tuple(i < main and kv_heads[i] == 0 for i in range(count))
    return (False,) * count


def _cached_layers(summary: GgufSummary, main: int, count: int, recurrent: tuple[bool, ...]) -> tuple[bool, ...]:
    """Layers with an attention cache, before the MTP context takes its own.

    A layer without KV heads is still cached in a model that is no hybrid: its K is empty, its V is widened with the
    others when flash attention is off.
    """
    name = summary.architecture
    if name in arch.RECURRENT or name in arch.NO_CACHE:
        return (False,) * count
    if name == "falcon-h1":
        return (True,) * count
    if name == "gemma3n":
        main = min(main, 20)
    if name in {"gemma4", "gemma4-assistant"}:
        main -= min(summary.integer("attention.shared_kv_layers"), main)
    kept = [i < main or i >= summary.block_count - summary.integer("nextn_predict_layers") for i in range(count)]
    if name in arch.NEMOTRON_H:
        feed_forward = per_layer(summary, "feed_forward_length", count)
        return tuple(kept[i] and not recurrent[i] and feed_forward[i] == 0 for i in range(count))
    return tuple(kept[i] and not recurrent[i] for i in range(count))


def _state(summary: GgufSummary, heads: tuple[int, ...]) -> tuple[int, int]:
    """(r, s) values of one recurrent layer: llama_hparams::n_embd_r and n_embd_s."""
    embedding = summary.integer("embedding_length")
    head_size = summary.integer("wkv.head_size")
    if head_size:
        return summary.integer("token_shift_count", 2) * embedding, embedding * head_size
    short = summary.integer("shortconv.l_cache")
    if short:
        return embedding * (short - 1), 0
    head_dim = summary.integer("kda.head_dim")
    n_head = max(heads, default=0)
    kernel = max(summary.integer("ssm.conv_kernel") - 1, 0)
    if head_dim:
        return 3 * kernel * n_head * head_dim, head_dim * head_dim * n_head
    if summary.architecture == "minimax-01":
        key = summary.integer("attention.key_length", embedding // n_head if n_head else 0)
        return 0, key * key * n_head
    inner, state = summary.integer("ssm.inner_size"), summary.integer("ssm.state_size")
    return kernel * (inner + 2 * summary.integer("ssm.group_count") * state), state * inner


def _notes(summary: GgufSummary, *, mla: bool) -> tuple[str, ...]:
    name = summary.architecture
    if name in arch.SPECIAL_CACHES:
        return (f"{name}: {arch.SPECIAL_CACHES[name]}; context bytes are an estimate",)
    if not arch.known(name):
        return (f"unknown architecture {name}: context bytes assume plain attention in every layer",)
    if not mla and summary.get("attention.kv_lora_rank") is not None and name in {"deepseek2", "deepseek2-ocr"}:
        missing = f"{name} without attention.key_length_mla and value_length_mla"
        return (f"{missing} is cached as full attention, about nine times the size: use a newer conversion of it",)
    return ()

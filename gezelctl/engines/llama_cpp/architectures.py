"""What llama.cpp b11434 does per architecture: cache class, window pattern, recurrent layers.

Membership of HYBRID, RECURRENT and ROLLBACK is that of llm_arch_is_hybrid, llm_arch_is_recurrent and
llm_arch_supports_rs_rollback (src/llama-arch.cpp); WINDOWS gathers the `set_swa_pattern` calls of src/models/*.cpp.
"""

from __future__ import annotations

import msgspec


class Window(msgspec.Struct, frozen=True):
    """Sliding-window rule of an architecture for files without a pattern key."""

    period: int = 0
    """Every `period`-th layer attends fully; 1 = none is windowed, 0 = all are, -1 = the file must bring an array."""
    dense_first: bool = False
    """The full layer is the first of each period instead of the last."""
    default: int = 0
    """Window in tokens when the file has no `attention.sliding_window`."""
    forced: bool = False
    """`default` replaces any positive value of the file."""
    only_layers: int = 0
    """The rule holds only for models of exactly this many layers; others attend fully."""


ARRAY = -1

WINDOWS: dict[str, Window] = {
    "gemma2": Window(2, default=4096),
    "gemma3": Window(6),
    "gemma3n": Window(5),
    "gemma-embedding": Window(6),
    "cohere2": Window(4),
    "cohere2moe": Window(4, dense_first=True),
    "llama4": Window(4, default=8192, forced=True),
    "gpt-oss": Window(2),
    "exaone4": Window(4, default=4096, only_layers=64),
    "exaone-moe": Window(4, default=128),
    "smallthinker": Window(4, dense_first=True, default=4096, forced=True),
    "olmo2": Window(4),
    "afmoe": Window(4),
    "mellum": Window(4),
    "muse-glimmer": Window(4),
    "plamo3": Window(8),
    "laguna": Window(4, dense_first=True),
    "modern-bert": Window(3, dense_first=True),
    "gemma4": Window(ARRAY),
    "gemma4-assistant": Window(ARRAY),
    "mimo2": Window(ARRAY),
    "step35": Window(ARRAY),
    "granite_swa": Window(ARRAY),
    "maple": Window(ARRAY),
    "spark2_5": Window(ARRAY),
    "dots3note": Window(ARRAY),
    "dflash": Window(ARRAY),
    "lfm2": Window(0),
}

RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})

INTERVAL_HYBRIDS = frozenset({"qwen3next", "qwen35", "qwen35moe", "minimax-01"})
"""Recurrent layers come from `attention.recurrent_layers`, else from `full_attention_interval`."""
HEAD_HYBRIDS = frozenset({"plamo2", "jamba", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear"})
"""A layer without KV heads is recurrent."""
INDEXED = frozenset({"deepseek32", "glm-dsa"})
"""Sparse attention: each layer also caches the keys of an indexer."""
INTERVALS = {"minimax-01": 8}
"""Period of full attention without a key, where it is not 4."""
NEMOTRON_H = frozenset({"nemotron_h", "nemotron_h_moe"})
"""Recurrent without KV heads and without feed-forward, attention with KV heads and without feed-forward."""

ROLLBACK = frozenset(
    {
        "qwen35",
        "qwen35moe",
        "qwen4exp",
        "deepseek4",
        "nemotron_h",
        "nemotron_h_moe",
        "bailingmoe3",
        "lfm2",
        "lfm2moe",
        "kimi-k3",
        "glm5-next",
    }
)

SPECIAL_CACHES: dict[str, str] = {
    "deepseek4": "compressed cache with its own state",
    "minimax-m3": "sparse attention cache with an index",
    "qwen4exp": "hybrid cache with an index",
    "glm5-next": "hybrid cache with an index",
    "bailingmoe3": "hybrid linear attention over MLA",
    "kimi-k3": "hybrid linear attention over MLA",
    "glm-dsa": "indexer key cache, perhaps not in every layer",
    "t5": "encoder and cross attention",
    "graniteswitch": "switched caches",
}
"""Architectures whose cache class is not modelled to the byte, and why."""

NO_CACHE = frozenset(
    {
        "bert",
        "modern-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "eurobert",
        "gemma-embedding",
        "t5encoder",
        "dream",
        "llada",
        "llada-moe",
        "rnd1",
        "wavtokenizer-dec",
    }
)
"""Encoders and diffusion models: llama_model::create_memory gives them no cache."""

ATTENTION = frozenset(
    {
        "llama",
        "deci",
        "falcon",
        "baichuan",
        "grok",
        "gpt2",
        "gptneox",
        "mpt",
        "starcoder",
        "refact",
        "bloom",
        "stablelm",
        "qwen",
        "qwen2",
        "qwen2moe",
        "qwen2vl",
        "qwen3",
        "qwen3moe",
        "qwen3vl",
        "qwen3vlmoe",
        "phi2",
        "phi3",
        "phimoe",
        "plamo",
        "codeshell",
        "orion",
        "internlm2",
        "minicpm",
        "minicpm3",
        "gemma",
        "starcoder2",
        "xverse",
        "command-r",
        "dbrx",
        "olmo",
        "olmoe",
        "openelm",
        "arctic",
        "deepseek",
        "deepseek2",
        "deepseek2-ocr",
        "deepseek32",
        "chatglm",
        "glm4",
        "glm4moe",
        "bitnet",
        "jais",
        "jais2",
        "nemotron",
        "exaone",
        "granite",
        "granitemoe",
        "chameleon",
        "plm",
        "bailingmoe",
        "bailingmoe2",
        "dots1",
        "arcee",
        "ernie4_5",
        "ernie4_5-moe",
        "hunyuan-moe",
        "hunyuan-dense",
        "hunyuan_vl",
        "hy_v3",
        "smollm3",
        "seed_oss",
        "grovemoe",
        "apertus",
        "minimax-m2",
        "cogvlm",
        "pangu-embedded",
        "mistral3",
        "mistral4",
        "paddleocr",
        "maincoder",
        "talkie",
        "eagle3",
        "nanbeige",
        "llama-embed",
        "qwen3tts",
    }
)
"""Plain attention caches without a window rule."""


NO_FLASH_ATTENTION = frozenset({"grok"})
"""Attention with a soft cap of its own, computed without the fused kernel whatever is asked."""
EXPERTS_LIKE_DENSE = frozenset({"phimoe", "dbrx", "arctic", "hunyuan-moe", "minimax-m2", "granite_swa", "grok"})
"""Experts as wide as `feed_forward_length`; `expert_feed_forward_length` is not read."""
WIDER_GRAPHS = {"cogvlm": 240, "minimax-01": 220}
"""Percent of the common compute bound: a second set of weights for images, lightning attention's blocks."""


INPUT_EMBEDDINGS = {"grok": 10, "gpt2": 4, "starcoder": 4, "gemma3n": 12, "minimax-01": 32}
"""Bytes per token and embedding value that the first layer's inputs need beyond the common ones."""
HEADLESS = frozenset(
    {"bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert"}
) | {"t5encoder", "bitnet"}
"""No second copy of the embedding as output head: encoders have none, BitNet multiplies with the one on the host."""


def known(architecture: str) -> bool:
    """Whether the cache of this architecture is modelled to the byte."""
    return (
        architecture in ATTENTION
        or architecture in WINDOWS
        or architecture in RECURRENT
        or architecture in INTERVAL_HYBRIDS
        or architecture in HEAD_HYBRIDS
        or architecture in NEMOTRON_H
        or architecture in NO_CACHE
        or architecture == "falcon-h1"
    )

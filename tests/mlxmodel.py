"""A tiny MLX model with random weights: enough for mlx_lm.server to load it, chat and generate."""

from __future__ import annotations

import json
from pathlib import Path

_HIDDEN, _LAYERS, _HEADS, _KV_HEADS, _FFN = 64, 2, 4, 2, 128
_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPECIAL = ("<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")


def make_tiny_model(folder: Path, *, chat_template: bool = True) -> Path:
    """Write config, byte-level tokenizer, chat template and safetensors of a llama-type model into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = _write_tokenizer(folder, chat_template=chat_template)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "intermediate_size": _FFN,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "vocab_size": vocab,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _write_weights(folder, vocab)
    return folder


def _write_tokenizer(folder: Path, *, chat_template: bool) -> int:
    """Byte-level BPE without merges; special tokens come first."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate((*_SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[1],
        "model_max_length": 512,
    }
    if chat_template:
        settings["chat_template"] = _TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return len(vocab)


def _write_weights(folder: Path, vocab: int) -> None:
    import mlx.core as mx

    mx.random.seed(7)
    head = _HIDDEN // _HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, _HIDDEN)}
    for layer in range(_LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": (_HIDDEN, _HIDDEN),
            f"{at}.self_attn.k_proj.weight": (_KV_HEADS * head, _HIDDEN),
            f"{at}.self_attn.v_proj.weight": (_KV_HEADS * head, _HIDDEN),
            f"{at}.self_attn.o_proj.weight": (_HIDDEN, _HIDDEN),
            f"{at}.mlp.gate_proj.weight": (_FFN, _HIDDEN),
            f"{at}.mlp.up_proj.weight": (_FFN, _HIDDEN),
            f"{at}.mlp.down_proj.weight": (_HIDDEN, _FFN),
        }
    weights = {name: mx.random.normal(shape) * 0.05 for name, shape in shapes.items()}
    norms = [
        f"model.layers.{i}.{part}" for i in range(_LAYERS) for part in ("input_layernorm", "post_attention_layernorm")
    ]
    weights |= {f"{name}.weight": mx.ones((_HIDDEN,)) for name in (*norms, "model.norm")}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})

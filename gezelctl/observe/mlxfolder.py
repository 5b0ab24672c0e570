"""What an MLX model folder says of itself: config.json and the bytes of its weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gezelctl.catalog.servers import Resolved
from gezelctl.errors import GezelctlError
from gezelctl.observe.types import MlxShape
from gezelctl.store.types import InstalledPayload

CONFIG_NAME = "config.json"
F16_BYTES = 2


class MlxQuantization(msgspec.Struct, frozen=True):
    """`quantization` of config.json."""

    bits: int = 0
    group_size: int = 0


class MlxFolder(msgspec.Struct, frozen=True, rename="camel"):
    """One MLX model. `weights_bytes` is the sum of all safetensors files; 0 and "" where config.json does not say."""

    path: str
    model_type: str
    weights_bytes: int
    weight_files: int
    layers: int = 0
    hidden_size: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    context_length: int = 0
    vocab_size: int = 0
    experts: int = 0
    sliding_window: int = 0
    quantization_bits: int = 0
    quantization_group: int = 0


class _Config(msgspec.Struct):
    """The keys of a Hugging Face config.json that are shown; a multimodal model has them under text_config."""

    model_type: str = ""
    num_hidden_layers: int | None = None
    hidden_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int | None = None
    vocab_size: int | None = None
    num_experts: int | None = None
    num_local_experts: int | None = None
    sliding_window: int | None = None
    quantization: MlxQuantization | None = None
    text_config: _Config | None = None


def read_mlx_folder(folder: Path) -> MlxFolder:
    """Read config.json and the sizes of the weights. Raises GezelctlError (NOT_MLX, CONFIG_DAMAGED)."""
    weights = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    try:
        data = (folder / CONFIG_NAME).read_bytes()
    except OSError as error:
        raise GezelctlError(
            f"{folder}: is no MLX model: {CONFIG_NAME}: {(error.strerror or str(error)).lower()}",
            cure="name a .gguf file, or a folder with config.json and safetensors",
            code="NOT_MLX",
        ) from error
    try:
        config = msgspec.json.decode(data, type=_Config)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = f"{folder / CONFIG_NAME}: {error}"
        raise GezelctlError(what, cure="fetch the folder again", code="CONFIG_DAMAGED") from error
    text = config.text_config or config
    quantization = config.quantization or text.quantization or MlxQuantization()
    return MlxFolder(
        path=str(folder),
        model_type=config.model_type,
        weights_bytes=sum(path.stat().st_size for path in weights),
        weight_files=len(weights),
        layers=text.num_hidden_layers or 0,
        hidden_size=text.hidden_size or 0,
        heads=text.num_attention_heads or 0,
        kv_heads=text.num_key_value_heads or text.num_attention_heads or 0,
        head_dim=text.head_dim or (text.hidden_size or 0) // (text.num_attention_heads or 1),
        context_length=text.max_position_embeddings or 0,
        vocab_size=text.vocab_size or 0,
        experts=text.num_experts or text.num_local_experts or 0,
        sliding_window=text.sliding_window or 0,
        quantization_bits=quantization.bits,
        quantization_group=quantization.group_size,
    )


def read_shapes(resolved: Iterable[Resolved], installed: Iterable[InstalledPayload]) -> dict[str, MlxShape]:
    """Shapes of the MLX models that servers want, by folder: the source's, or the installed one's. What cannot be read
    is left out: the payload's own finding says why."""
    wanted = [item.payload for item in resolved if item.payload and item.payload.engine == "mlx"]
    ids = {payload.model_id for payload in wanted}
    folders = {p.path for p in installed if p.manifest.engine == "mlx" and p.manifest.id in ids}
    folders |= {f.origin.path for w in wanted for f in w.files if f.origin.kind == "path" and not f.name}
    shapes = {}
    for folder in sorted(folders):
        try:
            found = read_mlx_folder(Path(folder))
        except GezelctlError:
            continue
        shapes[folder] = MlxShape(
            context_tokens=found.context_length,
            kv_bytes_per_token=2 * F16_BYTES * found.layers * found.kv_heads * found.head_dim,
        )
    return shapes

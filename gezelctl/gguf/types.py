"""What gezelctl keeps of a GGUF file: enough to plan a launch to the byte without the file at hand."""

from __future__ import annotations

import msgspec

Scalar = bool | int | float | str


class LayerWeights(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of one `blk.N` layer: all but routed experts, routed experts, MTP-only, the largest expert tensor."""

    dense_bytes: int
    expert_bytes: int = 0
    nextn_bytes: int = 0
    largest_expert_bytes: int = 0


class WeightTable(msgspec.Struct, frozen=True, rename="camel"):
    """Tensor bytes by the class that decides their device (llama.cpp load_tensors), over all shards."""

    total_bytes: int
    parameters: int
    tensor_count: int
    input_bytes: int
    """INPUT class, host always: token_embd, position_embd, token_types, per_layer_token_embd."""
    token_embd_bytes: int
    output_bytes: int
    """OUTPUT class outside layers: output, output_norm, cls*, altup_*, fc, d2t."""
    tied: bool
    """No `output.weight`: token_embd is loaded a second time as output."""
    layers: tuple[LayerWeights, ...]
    other_bytes: int = 0
    by_type: dict[str, int] = {}


class GgufSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A header without its tensors and vocabularies.

    `values` holds every scalar key (strings up to 256 characters) and `arrays` every numeric or bool array of at
    most 4,096 elements, by full key name. `file_bytes` and `weights` are summed over all shards.
    """

    version: int
    architecture: str
    file_bytes: int
    shards: int
    values: dict[str, Scalar]
    arrays: dict[str, tuple[int | float, ...]]
    weights: WeightTable
    vocab_size: int = 0
    chat_template: str = ""
    """Text of `tokenizer.chat_template`, "" when absent."""

    def get(self, suffix: str) -> Scalar | None:
        """The scalar `<architecture>.<suffix>`, or None."""
        return self.values.get(f"{self.architecture}.{suffix}")

    def array(self, suffix: str) -> tuple[int | float, ...] | None:
        """The array `<architecture>.<suffix>`, or None."""
        return self.arrays.get(f"{self.architecture}.{suffix}")

    def integer(self, suffix: str, default: int = 0) -> int:
        """The integer `<architecture>.<suffix>`, or `default` when absent or not an integer."""
        value = self.get(suffix)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    @property
    def context_length(self) -> int:
        """Training context in tokens; 0 when the file does not say."""
        return self.integer("context_length")

    @property
    def block_count(self) -> int:
        return self.integer("block_count")

    @property
    def file_type(self) -> int | None:
        value = self.values.get("general.file_type")
        return value if isinstance(value, int) else None


class TensorInfo(msgspec.Struct, frozen=True, array_like=True):
    """One row of the tensor table; `offset` is from the start of its file's data section, `size_bytes` unpadded."""

    name: str
    type_name: str
    dims: tuple[int, ...]
    offset: int
    size_bytes: int


class VocabDigest(msgspec.Struct, frozen=True, rename="camel"):
    """What llama.cpp compares of a draft and a target vocabulary, less the texts (common_speculative_are_compatible).

    `digests[k]` covers the texts of the tokens from id 5 up to, not including, id `first + k`; the last one covers
    all `tokens`. 129 of them suffice, because the sizes of a compatible pair differ by at most 128.
    """

    kind: str
    """llama.cpp's vocabulary type: spm, bpe, wpm, ugm, rwkv, plamo2, none; else the tokenizer's own name."""
    tokens: int
    add_bos: bool
    bos_id: int
    """-1 when there is none."""
    add_eos: bool
    eos_id: int
    first: int
    digests: tuple[str, ...]

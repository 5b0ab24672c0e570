"""The draft/target vocabulary rule of llama.cpp, on digests instead of token texts.

Source of the rule: common_speculative_are_compatible in common/speculative.cpp; of the defaults:
llama_vocab::impl::load in src/llama-vocab.cpp.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from gezelctl.errors import GgufError
from gezelctl.gguf.header import Header, TokenSpan, read_header
from gezelctl.gguf.shards import shard_paths
from gezelctl.gguf.source import ByteSource, Cursor, LocalFile
from gezelctl.gguf.types import VocabDigest

MAX_SIZE_DIFFERENCE: Final = 128
"""SPEC_VOCAB_MAX_SIZE_DIFFERENCE, in tokens."""
FIRST_CHECKED_TOKEN: Final = 5
"""SPEC_VOCAB_CHECK_START_TOKEN_ID."""
DIGEST_BYTES: Final = 16

_NONE: Final = "none"
_BATCH: Final = 4_096


class _Defaults(NamedTuple):
    kind: str
    bos: int
    eos: int
    add_bos: bool = False
    add_eos: bool = False


_BY_MODEL: Final[dict[str, _Defaults]] = {
    "llama": _Defaults("spm", 1, 2, add_bos=True),
    "bert": _Defaults("wpm", 101, -1, add_bos=True),
    "gpt2": _Defaults("bpe", 11, 11),
    "hybriddna": _Defaults("bpe", 11, 11),
    "whitespace": _Defaults("bpe", 11, 11),
    "gemma4": _Defaults("bpe", -1, -1),
    "t5": _Defaults("ugm", -1, 1, add_eos=True),
    "rwkv": _Defaults("rwkv", -1, -1),
    "plamo2": _Defaults("plamo2", 1, 2),
    "no_vocab": _Defaults(_NONE, -1, -1),
    "none": _Defaults(_NONE, -1, -1),
}
_ADDS_BOS: Final = frozenset(
    (
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        *("tekken", "chameleon"),
    )
)
_FORCES_BOS: Final = frozenset({"gemma4", "granite-embed-multi-311m"})
_WITHOUT_BOS: Final = frozenset({"glm4", "chatglm-bpe"})


def vocab_digest(path: Path) -> VocabDigest:
    """The vocabulary of the model at `path` (of its first shard, where the keys are).

    Raises GgufError as `read_summary` does, and NO_VOCAB for a file without a tokenizer (a projector, an adapter).
    """
    with ExitStack() as stack:
        return vocab_digest_from(stack.enter_context(LocalFile(shard_paths(path)[0])))


def vocab_digest_from(source: ByteSource) -> VocabDigest:
    """`vocab_digest` of any source; reads the header and then the token texts once more."""
    header = read_header(source)
    model = header.text("tokenizer.ggml.model")
    defaults = _BY_MODEL.get(model, _Defaults(model, -1, -1))
    if not model or (header.tokens is None and defaults.kind != _NONE):
        raise GgufError(
            f"{source.name}: has no vocabulary",
            cure="name a language model, not a projector or adapter",
            code="NO_VOCAB",
        )
    if defaults.kind == _NONE:
        tokens = header.number(f"{header.text('general.architecture')}.vocab_size") or 0
        return VocabDigest(_NONE, tokens, False, -1, False, -1, tokens, ())
    span = header.tokens or TokenSpan(0, 0)
    first, digests = _digests(Cursor(source), span)
    flags = _flags(header, defaults, span.total)
    return VocabDigest(defaults.kind, span.total, *flags, first, digests)


def _flags(header: Header, defaults: _Defaults, tokens: int) -> tuple[bool, int, bool, int]:
    """(add_bos, bos id, add_eos, eos id) as llama.cpp would have them."""
    pre = "gemma4" if header.text("tokenizer.ggml.model") == "gemma4" else header.text("tokenizer.ggml.pre")
    bpe = defaults.kind == "bpe"
    default_bos = -1 if bpe and pre in _WITHOUT_BOS else defaults.bos
    add_bos = _flag(header, "add_bos_token", defaults.add_bos or (bpe and pre in _ADDS_BOS))
    return (
        add_bos or (bpe and pre in _FORCES_BOS),
        _special(header, "bos_token_id", default_bos, tokens),
        _flag(header, "add_eos_token", defaults.add_eos),
        _special(header, "eos_token_id", defaults.eos, tokens),
    )


def _flag(header: Header, key: str, default: bool) -> bool:
    value = header.values.get(f"tokenizer.ggml.{key}")
    return value if isinstance(value, bool) else default


def _special(header: Header, key: str, default: int, tokens: int) -> int:
    value = header.number(f"tokenizer.ggml.{key}")
    if value is not None and 0 <= value < tokens:
        return value
    return default if default < tokens else -1


def _digests(cursor: Cursor, span: TokenSpan) -> tuple[int, tuple[str, ...]]:
    """(first, digests) of `VocabDigest`: one running digest, noted at each of the last 129 positions."""
    cursor.skip(span.offset, "the vocabulary")
    cursor.skip_strings(min(FIRST_CHECKED_TOKEN, span.total), "the vocabulary")
    first = max(span.total - MAX_SIZE_DIFFERENCE, 0)
    running = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for start in range(FIRST_CHECKED_TOKEN, first, _BATCH):
        running.update(_texts(cursor, start, min(start + _BATCH, first)))
    digests = [running.hexdigest()]
    for index in range(first, span.total):
        if index >= FIRST_CHECKED_TOKEN:
            running.update(_texts(cursor, index, index + 1))
        digests.append(running.hexdigest())
    return first, tuple(digests)


def _texts(cursor: Cursor, start: int, stop: int) -> bytes:
    """The texts of the tokens `start` to `stop` - 1 as llama.cpp holds them: up to a NUL, and never empty.

    A C string holds no NUL, so that a NUL after each text keeps their borders apart.
    """
    texts = cursor.take_strings(stop - start, "the vocabulary")
    joined = b"\0".join(texts) + b"\0"
    if b"" in texts or joined.count(0) != len(texts):
        held = [text.partition(b"\0")[0] or b"[EMPTY_%d]" % index for index, text in enumerate(texts, start)]
        joined = b"\0".join(held) + b"\0"
    return joined


def vocabs_compatible(target: VocabDigest, draft: VocabDigest) -> str | None:
    """None when llama.cpp would speculate with this pair, else why it would not, in words."""
    if target.kind != draft.kind:
        return f"the target's vocabulary is of type {target.kind}, the draft's of type {draft.kind}"
    if target.kind == _NONE:
        return "neither file has a vocabulary"
    for word, add, ids in (
        ("BOS", (target.add_bos, draft.add_bos), (target.bos_id, draft.bos_id)),
        ("EOS", (target.add_eos, draft.add_eos), (target.eos_id, draft.eos_id)),
    ):
        if add[0] != add[1]:
            adds, other = ("target", "draft") if add[0] else ("draft", "target")
            return f"the {adds} adds {word} to its input, the {other} does not"
        if add[0] and ids[0] != ids[1]:
            return f"the {word} token is {ids[0]} in the target, {ids[1]} in the draft"
    return _texts_differ(target, draft)


def _texts_differ(target: VocabDigest, draft: VocabDigest) -> str | None:
    difference = abs(target.tokens - draft.tokens)
    if difference > MAX_SIZE_DIFFERENCE:
        return (
            f"the target has {target.tokens} tokens, the draft {draft.tokens}; "
            f"they may differ by {MAX_SIZE_DIFFERENCE}, not by {difference}"
        )
    common = min(target.tokens, draft.tokens)
    if target.digests[common - target.first] == draft.digests[common - draft.first]:
        return None
    return f"the texts of the tokens {FIRST_CHECKED_TOKEN} to {common - 1} are not the same"

"""The vocabulary rule: digests decide as llama.cpp's loop over the texts does."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gezelctl.gguf.types import VocabDigest
from gezelctl.gguf.vocab import vocab_digest, vocab_digest_from, vocabs_compatible
from tests import ggufmake as make
from tests.unit.test_gguf_reader import Memory


def digest(tokens: list[bytes] | list[str], **values: Any) -> VocabDigest:
    keys = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    keys |= {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    listed = (make.ARRAY, (make.STRING, tokens))
    return vocab_digest_from(Memory(make.gguf_bytes(keys | {"tokenizer.ggml.tokens": listed})))


def words(count: int, **changed: bytes) -> list[bytes]:
    texts = [b"t%d" % index for index in range(count)]
    for index, text in changed.items():
        texts[int(index.removeprefix("at"))] = text
    return texts


def llama_cpp_says(target: list[bytes], draft: list[bytes]) -> bool:
    """The loop of common_speculative_are_compatible, on the texts as llama_vocab holds them."""
    if abs(len(target) - len(draft)) > 128:
        return False

    def held(texts: list[bytes], index: int) -> bytes:
        return texts[index].split(b"\0")[0] or b"[EMPTY_%d]" % index

    return all(held(target, i) == held(draft, i) for i in range(5, min(len(target), len(draft))))


_TEXTS = st.lists(st.sampled_from([b"a", b"bb", b"", b"a\0", b"a\0b", b"\0", b"[EMPTY_7]", b"c" * 300]), max_size=12)


@settings(max_examples=300, deadline=None)
@given(_TEXTS, _TEXTS, _TEXTS, st.integers(0, 300))
def test_digests_decide_as_the_texts_do(start: list[bytes], left: list[bytes], right: list[bytes], middle: int) -> None:
    shared = start + [b"w%d" % index for index in range(middle)]
    for target, draft in ((shared + left, shared + right), (left + shared, right + shared)):
        verdict = vocabs_compatible(digest(target), digest(draft))
        assert (verdict is None) == llama_cpp_says(target, draft), verdict


def test_a_digest_that_anyone_can_recompute() -> None:
    found = digest(words(300))
    assert (found.tokens, found.first, len(found.digests)) == (300, 172, 129)
    expected = hashlib.blake2b(b"".join(text + b"\0" for text in words(300)[5:200]), digest_size=16).hexdigest()
    assert found.digests[200 - found.first] == expected


@pytest.mark.parametrize(
    ("target", "draft", "reason"),
    [
        (words(400), words(400), None),
        (words(400), words(272), None),
        (words(272), words(400), None),
        (words(400), words(271), "the target has 400 tokens, the draft 271; they may differ by 128, not by 129"),
        (words(400), words(400, at4=b"other"), None),
        (words(400), words(400, at5=b"other"), "the texts of the tokens 5 to 399 are not the same"),
        (words(400), words(300, at299=b"other"), "the texts of the tokens 5 to 299 are not the same"),
        (words(400), words(300) + [b"other"] * 50, "the texts of the tokens 5 to 349 are not the same"),
        (words(4), words(3), None),
    ],
)
def test_sizes_and_texts(target: list[bytes], draft: list[bytes], reason: str | None) -> None:
    assert vocabs_compatible(digest(target), digest(draft)) == reason


@pytest.mark.parametrize(
    ("target", "draft", "reason"),
    [
        ({"model": "llama"}, {"model": "gpt2"}, "the target's vocabulary is of type spm, the draft's of type bpe"),
        ({"model": "gpt2"}, {"model": "gemma4"}, "the draft adds BOS to its input, the target does not"),
        ({"add_bos_token": True}, {"add_bos_token": False}, "the target adds BOS to its input, the draft does not"),
        ({"pre": "llama-bpe"}, {"pre": "qwen2"}, "the target adds BOS to its input, the draft does not"),
        ({"pre": "llama-bpe", "add_bos_token": False}, {"pre": "qwen2"}, None),
        ({"pre": "gemma4", "add_bos_token": False}, {"add_bos_token": True}, None),
        (
            {"add_bos_token": True, "bos_token_id": 1},
            {"add_bos_token": True, "bos_token_id": 2},
            "the BOS token is 1 in the target, 2 in the draft",
        ),
        ({"bos_token_id": 1}, {"bos_token_id": 2}, None),
        ({"add_bos_token": True, "bos_token_id": 9_999}, {"add_bos_token": True, "bos_token_id": 11}, None),
        ({"add_eos_token": True}, {}, "the target adds EOS to its input, the draft does not"),
        ({"model": "t5"}, {"model": "t5", "eos_token_id": 3}, "the EOS token is 1 in the target, 3 in the draft"),
    ],
)
def test_flags_and_ids(target: dict[str, Any], draft: dict[str, Any], reason: str | None) -> None:
    assert vocabs_compatible(digest(words(300), **target), digest(words(300), **draft)) == reason


def test_a_file_without_a_vocabulary_is_no_partner() -> None:
    empty = vocab_digest_from(Memory(make.gguf_bytes({"tokenizer.ggml.model": "no_vocab"})))
    assert vocabs_compatible(empty, empty) == "neither file has a vocabulary"


@pytest.mark.engine("smollm2")
def test_the_real_vocabulary(smollm2: Path) -> None:
    found = vocab_digest(smollm2)
    assert (found.kind, found.tokens, found.add_bos, found.bos_id, found.eos_id) == ("bpe", 49_152, False, 1, 2)
    field = gguf.GGUFReader(smollm2).fields["tokenizer.ggml.tokens"]
    texts = [bytes(field.parts[index]) for index in field.data]
    whole = hashlib.blake2b(b"".join(text + b"\0" for text in texts[5:]), digest_size=16).hexdigest()
    assert found.digests[-1] == whole
    assert vocabs_compatible(found, found) is None
    assert msgspec.json.decode(msgspec.json.encode(found), type=VocabDigest) == found

"""Speculative decoding at plan time: the table of algorithms, drafters that cannot serve, and what a drafter costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gezelctl.engines.llama_cpp.planner import speculation as spec
from gezelctl.engines.llama_cpp.spec import SpecRequest, needs_draft
from gezelctl.gguf.types import GgufSummary, VocabDigest, WeightTable

CASES: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parent.parent / "cases" / "planner" / "speculation.yaml").read_text()
)


def label(case: dict[str, Any]) -> str:
    return str(case.get("name") or case)


def summary(keys: dict[str, Any]) -> GgufSummary:
    architecture = keys["architecture"]
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    values = {key: value for key, value in named.items() if not isinstance(value, list | str)}
    return GgufSummary(
        version=3,
        architecture=architecture,
        file_bytes=0,
        shards=1,
        values={**values, "tokenizer.ggml.model": keys.get("tokenizer", "llama")},
        arrays={key: tuple(value) for key, value in named.items() if isinstance(value, list)},
        weights=WeightTable(0, 0, 0, 0, 0, 0, tied=False, layers=()),
        vocab_size=keys.get("vocab_size", 32_000),
    )


TARGET = summary({"architecture": "llama", "block_count": 32, "embedding_length": 4096})


def request_of(case: dict[str, Any]) -> SpecRequest:
    return SpecRequest(
        backend=case["backend"],
        base=case["base"],
        operator_type=case.get("operator"),
        sidecar=case.get("sidecar", ""),
        drafts=case.get("drafts", {}),
        target_nextn=case["nextn"],
        sidecar_nextn=case.get("sidecar_nextn"),
    )


@pytest.mark.parametrize("case", CASES["resolve"], ids=label)
def test_resolve(case: dict[str, Any]) -> None:
    facts = spec.DraftFacts(types_of_build=tuple(case.get("domain", ())), broken=case.get("broken", ""))
    found = spec.plan_speculation(request_of(case), facts)
    first = found.ways[0]
    assert list(first.types) == case["types"]
    assert first.draft_model == case.get("draft", "")
    assert first.n_max == case.get("nMax")
    told = " ".join(problem.summary for problem in found.problems)
    assert case.get("problem", "") in told
    assert bool(found.problems) == ("problem" in case)
    assert found.forced or found.ways[-1] == spec.PLAIN


@pytest.mark.parametrize(("name", "wanted"), CASES["needs_draft"].items())
def test_needs_draft(name: str, wanted: bool) -> None:
    assert needs_draft((name,)) is wanted


@pytest.mark.parametrize("case", CASES["drafters"], ids=label)
def test_drafter_problem(case: dict[str, Any]) -> None:
    facts = spec.DraftFacts(target=TARGET, draft=summary(case["draft"]))
    problem = spec.drafter_problem((case["type"],), facts)
    assert case["problem"] in problem
    assert bool(problem) == bool(case["problem"])


def test_a_wrong_drafter_is_left_out_with_its_reason() -> None:
    base: dict[str, object] = {"type": "draft-simple", "draftModelId": "small"}
    request = SpecRequest(backend="cpu", base=base, drafts={"small": "/m/small.gguf"}, target_nextn=0)
    eagle = summary({"architecture": "eagle3", "extract_layers": [1, 2, 3]})
    found = spec.plan_speculation(request, spec.DraftFacts(target=TARGET, draft=eagle))
    assert found.ways == (spec.PLAIN,)
    assert "made for draft-eagle3" in found.notes[0]


def vocab(**changes: Any) -> VocabDigest:
    values: dict[str, Any] = {
        "kind": "bpe",
        "tokens": 1000,
        "add_bos": False,
        "bos_id": 1,
        "add_eos": False,
        "eos_id": 2,
        "first": 872,
        "digests": tuple(str(i) for i in range(129)),
    }
    return VocabDigest(**(values | changes))


def test_vocabularies_by_the_engines_rule() -> None:
    small = summary({"architecture": "llama", "vocab_size": 1})
    same = spec.DraftFacts(target=TARGET, draft=small, target_vocab=vocab(), draft_vocab=vocab())
    assert spec.drafter_problem(("draft-simple",), same) == ""
    other = spec.DraftFacts(target=TARGET, draft=small, target_vocab=vocab(), draft_vocab=vocab(kind="spm"))
    assert "type bpe" in spec.drafter_problem(("draft-simple",), other)
    texts = vocab(digests=tuple("x" for _ in range(129)))
    differing = spec.DraftFacts(target=TARGET, draft=small, target_vocab=vocab(), draft_vocab=texts)
    assert "texts of the tokens" in spec.drafter_problem(("draft-simple",), differing)


@pytest.mark.parametrize("case", CASES["costs"], ids=label)
def test_context_costs(case: dict[str, Any]) -> None:
    cost = spec.drafter_costs_context(case["with"][0], case["without"][0], case["with"][1], case["without"][1])
    assert case["cost"] in cost
    assert bool(cost) == bool(case["cost"])


@pytest.mark.parametrize("case", CASES["residency"], ids=label)
def test_residency_costs(case: dict[str, Any]) -> None:
    assert bool(spec.drafter_costs_residency(case["bytes"], case["pool"])) is case["cost"]

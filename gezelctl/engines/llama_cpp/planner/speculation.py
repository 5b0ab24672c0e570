"""Speculative decoding at plan time: which drafter is possible at all, and which is worth its memory.

Builds on `resolve_spec` (which algorithm, which file) and adds what llama.cpp does not check before it loads: whether
the file is of the algorithm that it is handed to, whether its vocabulary is the target's, whether the build knows the
algorithm, and whether this pair has taken an engine down before.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gezelctl.engines.llama_cpp.planner.types import LaunchQuestion
from gezelctl.engines.llama_cpp.spec import Problem, SpecPlan, SpecRequest, resolve_spec
from gezelctl.engines.llama_cpp.specinput import spec_request
from gezelctl.gguf.types import GgufSummary, VocabDigest

DEFAULT_DRAFT_TOKENS = 3
"""`--spec-draft-n-max` of llama-server."""

_ALGORITHMS = {
    "draft-simple": frozenset({"simple"}),
    "draft-mtp": frozenset({"mtp"}),
    "draft-eagle3": frozenset({"eagle3"}),
    "draft-dflash": frozenset({"dflash"}),
    "draft-dspark": frozenset({"dflash"}),
}
"""What kind of file each algorithm can load; DSpark heads come in files of architecture dflash."""
_NOT_DECODERS = frozenset({"clip", "bert", "nomic-bert", "jina-bert-v2", "modern-bert", "t5encoder"})
_SNAPSHOT_TYPES = frozenset({"draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"})
"""Algorithms under which a recurrent model keeps a state for every drafted token."""
_BLOCK_TYPES = frozenset({"draft-dflash", "draft-dspark"})


class DraftFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known of a target and its drafter; None and "" = not known yet."""

    target: GgufSummary | None = None
    draft: GgufSummary | None = None
    target_vocab: VocabDigest | None = None
    draft_vocab: VocabDigest | None = None
    types_of_build: tuple[str, ...] = ()
    """Domain of `--spec-type` in the probed build, () when not probed."""
    broken: str = ""
    """Why this pair of engine build and drafter is not tried again."""


class Speculation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Ways to speculate in order of preference, the last one always without. `notes` tell what was ruled out."""

    ways: tuple[SpecPlan, ...]
    forced: bool
    wanted: SpecPlan = SpecPlan()
    """What the launch would do by itself, before anything is ruled out."""
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


PLAIN = SpecPlan()


def algorithm_of(draft: GgufSummary) -> str:
    """What kind of drafter a file is: simple, mtp, eagle3, dflash, or none (a projector, an encoder)."""
    name = draft.architecture
    if name in {"eagle3", "dflash"}:
        return name
    if name.startswith("dflash-") or name in _NOT_DECODERS:
        return "none"
    if name == "gemma4-assistant" or draft.integer("nextn_predict_layers") > 0:
        return "mtp"
    return "simple"


def drafter_problem(types: Sequence[str], facts: DraftFacts) -> str:
    """Why this drafter cannot serve this target under these types, "" when nothing speaks against it."""
    if facts.draft is None:
        return ""
    kind = algorithm_of(facts.draft)
    for name in types:
        if name in _ALGORITHMS and kind not in _ALGORITHMS[name]:
            what = "is no draft model" if kind == "none" else f"was made for {_type_of(kind)}"
            return f"the drafter (architecture {facts.draft.architecture}) {what}, not for {name}"
    if kind == "simple":
        return vocabulary_problem(facts)
    return _shape_problem(kind, facts.draft, facts.target)


def _type_of(kind: str) -> str:
    return f"draft-{kind}"


def _shape_problem(kind: str, draft: GgufSummary, target: GgufSummary | None) -> str:
    """What the loaders of EAGLE3, DFlash and Gemma's assistant insist on."""
    if kind == "eagle3":
        layers = draft.array("extract_layers") or ()
        if len(layers) != 3:
            return f"the EAGLE3 drafter names {len(layers)} layers to extract, not 3"
        wanted = draft.integer("target_hidden_size")
    elif kind == "dflash":
        layers = draft.array("target_layers") or ()
        if not layers:
            return "the DFlash drafter names no target layers"
        wanted = 0
    else:
        layers, wanted = (), draft.integer("embedding_length_out")
    if target is None:
        return ""
    width, count = target.integer("embedding_length"), target.block_count
    if wanted and wanted != width:
        return f"the drafter was made for a target of width {wanted}, this one has {width}"
    if layers and max(layers) >= count:
        return f"the drafter reads layer {int(max(layers))} of a target that has {count}"
    return ""


def vocabulary_problem(facts: DraftFacts) -> str:
    """llama.cpp's own rule where both vocabularies were read, else what two headers tell of them."""
    from gezelctl.gguf.vocab import MAX_SIZE_DIFFERENCE, vocabs_compatible

    if facts.target_vocab is not None and facts.draft_vocab is not None:
        return vocabs_compatible(facts.target_vocab, facts.draft_vocab) or ""
    target, draft = facts.target, facts.draft
    if target is None or draft is None:
        return ""
    models = [summary.values.get("tokenizer.ggml.model") for summary in (target, draft)]
    if all(models) and models[0] != models[1]:
        return f"the target's tokenizer is {models[0]}, the drafter's {models[1]}"
    difference = abs(target.vocab_size - draft.vocab_size)
    if target.vocab_size and draft.vocab_size and difference > MAX_SIZE_DIFFERENCE:
        return (
            f"the target has {target.vocab_size} tokens, the drafter {draft.vocab_size}; "
            f"they may differ by {MAX_SIZE_DIFFERENCE}"
        )
    return ""


def unknown_type(types: Sequence[str], domain: Sequence[str]) -> str:
    """The first type that the probed build does not know, "" when it knows all or was not probed."""
    return next((name for name in types if domain and name not in domain), "")


def combination_problem(types: Sequence[str]) -> str:
    """Lists that crash llama.cpp while it loads: it makes one context for the drafter, of one kind."""
    drafting = [name for name in types if name.startswith("draft-")]
    if len(drafting) > 1:
        return f"{' and '.join(drafting)} together; the engine runs one drafter"
    repeated = next((name for name in types if types.count(name) > 1), "")
    return f"{repeated} twice" if repeated else ""


def speculation_of(question: LaunchQuestion) -> Speculation:
    """`plan_speculation` of a server with all that is known of its drafter."""
    flags = question.probe.flags if question.probe else ()
    facts = DraftFacts(
        target=question.gguf,
        draft=question.draft_gguf,
        target_vocab=question.vocab,
        draft_vocab=question.draft_vocab,
        types_of_build=next((flag.values for flag in flags if "--spec-type" in flag.names), ()),
        broken=question.broken_drafter,
    )
    return plan_speculation(spec_request(question), facts)


def plan_speculation(request: SpecRequest, facts: DraftFacts) -> Speculation:
    """All ways to speculate that could work, best first, and plain decoding last.

    What the operator forces is kept alone, and what speaks against it is a problem, never a silent change. Of the
    catalog's wish, what cannot work is left out with a note: first the drafter, which may leave the base algorithm.
    """
    forced = request.operator_type is not None
    first = resolve_spec(request)
    why = _objection(first, facts)
    if forced:
        problems = first.problems
        if why:
            cure = "Choose another spec.type or spec.draftModel, or remove spec."
            problems = (*problems, Problem(f"spec.type {','.join(first.types)}: {why}", cure, "spec.type"))
        return Speculation(ways=(first,), forced=True, wanted=first, notes=first.notes, problems=problems)
    ways, notes = [], [*first.notes]
    if first.types and not why:
        ways.append(first)
    elif why:
        notes.append(f"{','.join(first.types)} left out: {why}")
    second = without_drafter(request)
    if second.types and second.types != first.types and not _objection(second, facts):
        ways.append(second)
    return Speculation(ways=(*ways, PLAIN), forced=False, wanted=first, notes=tuple(notes))


def without_drafter(request: SpecRequest) -> SpecPlan:
    """What remains of a request whose drafter is not to be used: the base algorithm, or nothing."""
    return resolve_spec(msgspec.structs.replace(request, sidecar="", drafts={}))


def _objection(plan: SpecPlan, facts: DraftFacts) -> str:
    if not plan.types:
        return ""
    unknown = unknown_type(plan.types, facts.types_of_build)
    if unknown:
        return f"this build knows {', '.join(facts.types_of_build)}, not {unknown}"
    if combined := combination_problem(plan.types):
        return combined
    if not plan.draft_model:
        return ""
    if facts.broken:
        return f"the drafter took this engine build down before: {facts.broken}"
    return drafter_problem(plan.types, facts)


def drafter_costs_context(with_kv: str, without_kv: str, with_context: int, without_context: int) -> str:
    """What a drafter costs in words, "" when nothing. A context of 0 = the plan does not fit.

    Fewer slots and less growth are not a cost (reference behaviour 9.5).
    """
    if with_context == 0:
        return "it does not fit beside the model"
    if with_kv != without_kv:
        return f"the KV cache would have to be {with_kv} instead of {without_kv}"
    if with_context != without_context:
        return f"each slot would get {with_context} tokens instead of {without_context}"
    return ""


def drafter_costs_residency(bytes_with: int, gpu_pool_bytes: int | None) -> str:
    """Whether the model would no longer be on the GPU alone; unknown pools (None) never cost."""
    if gpu_pool_bytes is None or bytes_with <= gpu_pool_bytes:
        return ""
    return "model and drafter do not fit on the GPU together"


def draft_tokens(plan: SpecPlan) -> int:
    """Tokens proposed at once, which the target then verifies together."""
    return (plan.n_max or DEFAULT_DRAFT_TOKENS) if any(name.startswith("draft-") for name in plan.types) else 0


def snapshot_tokens(plan: SpecPlan) -> int:
    """Recurrent states kept for rolling back, before the architecture has its say."""
    return draft_tokens(plan) if _SNAPSHOT_TYPES & set(plan.types) else 0


def block_tokens(plan: SpecPlan) -> int:
    """Tokens that a block drafter proposes in one pass, 0 for one at a time."""
    return draft_tokens(plan) if _BLOCK_TYPES & set(plan.types) else 0


def loads_mtp(plan: SpecPlan) -> bool:
    """Whether the target's own MTP layers are loaded."""
    return "draft-mtp" in plan.types and not plan.draft_model

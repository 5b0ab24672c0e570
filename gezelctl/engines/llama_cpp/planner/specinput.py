"""From a launch question to what the speculation rules look at."""

from __future__ import annotations

from gezelctl.engines.llama_cpp.planner.speculation import DraftFacts
from gezelctl.engines.llama_cpp.planner.types import LaunchQuestion
from gezelctl.engines.llama_cpp.spec import SpecRequest
from gezelctl.gguf.types import GgufSummary


def _nextn(gguf: GgufSummary | None) -> int | None:
    """MTP layers; Gemma's assistant is one as a whole."""
    if gguf is None:
        return None
    return 1 if gguf.architecture == "gemma4-assistant" else gguf.integer("nextn_predict_layers")


def spec_request(question: LaunchQuestion) -> SpecRequest:
    """The catalog's block, the server's own and the drafters that there are.

    A sidecar is named by its file in the payload; the launch knows the folder.
    """
    wanted = question.server.spec
    draft = (wanted.draft_model if wanted else None) or ""
    is_path = "/" in draft or draft.endswith(".gguf")
    accelerator = question.server.backend.accelerator
    sidecar = next(
        (f.name for f in question.files if f.role == "draft" and accelerator in (f.backends or (accelerator,))), ""
    )
    return SpecRequest(
        backend=accelerator,
        base=question.model.spec,
        operator_type=wanted.type if wanted else None,
        operator_draft=draft if is_path else question.drafts.get(draft, ""),
        unresolved_draft="" if is_path or not draft or draft in question.drafts else draft,
        operator_n_max=wanted.n_max if wanted else None,
        operator_n_min=wanted.n_min if wanted else None,
        sidecar=sidecar,
        drafts=question.drafts,
        target_nextn=_nextn(question.gguf),
        sidecar_nextn=_nextn(question.draft_gguf),
    )


def draft_facts(question: LaunchQuestion) -> DraftFacts:
    flags = question.probe.flags if question.probe else ()
    domain = next((flag.values for flag in flags if "--spec-type" in flag.names), ())
    return DraftFacts(
        target=question.gguf,
        draft=question.draft_gguf,
        target_vocab=question.vocab,
        draft_vocab=question.draft_vocab,
        types_of_build=domain,
        broken=question.broken_drafter,
    )

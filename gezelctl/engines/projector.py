"""Which vision or audio projector belongs to a model: by the headers of both, never by file names.

The rule is mtmd's own: what the projector puts out must be as wide as what the text model takes in (n_embd_inp), which
is wider than its embedding where deepstack layers are fed as well.
"""

from __future__ import annotations

from gezelctl.gguf.types import GgufSummary

PROJECTOR_ARCHITECTURE = "clip"
_MODALITIES = ("vision", "audio", "gen_audio")


def input_width(text: GgufSummary) -> int:
    """Values per position that a text model takes in; 0 when its header does not say."""
    deepstack = text.integer("n_deepstack_layers")
    return text.integer("embedding_length") * (1 + deepstack)


def projector_width(projector: GgufSummary) -> int:
    """Values per position that a projector puts out, deepstack features included; 0 when its header does not say.

    `clip.<modality>.is_deepstack_layers` marks the encoder layers whose features are put out beside the last.
    """
    widths = []
    for modality in _MODALITIES:
        width = projector.integer(f"{modality}.projection_dim")
        deepstack = sum(bool(flag) for flag in projector.array(f"{modality}.is_deepstack_layers") or ())
        if width:
            widths.append(width * (1 + deepstack))
    return max(widths, default=0)


def projector_problem(text: GgufSummary, projector: GgufSummary) -> str:
    """Why a file is not the projector of a model, "" when it is.

    A header without widths is accepted: old projectors do not say, and the engine checks again.
    """
    if projector.architecture != PROJECTOR_ARCHITECTURE:
        return f"it is no projector but a model of architecture {projector.architecture}"
    if not any(projector.values.get(f"clip.has_{modality}_encoder") is True for modality in ("vision", "audio")):
        return "it has neither a vision nor an audio encoder"
    if projector.values.get("clip.projector_type") is None and not any(
        projector.get(f"{modality}.projector_type") is not None for modality in _MODALITIES
    ):
        return "it names no projector type"
    wanted, given = input_width(text), projector_width(projector)
    if wanted and given and given != wanted:
        return f"it puts out {given} values a position, the model takes in {wanted}"
    return ""

"""From a launch, asked for or to be rendered, to what the speculation rules look at."""

from __future__ import annotations

from typing import Protocol

from gezelctl.catalog.types import Model, PayloadFile
from gezelctl.config.desired import DesiredServer
from gezelctl.engines.llama_cpp.spec import SpecRequest
from gezelctl.gguf.types import GgufSummary


class Launch(Protocol):
    """What a LaunchQuestion and a LaunchRequest both know of a server."""

    @property
    def server(self) -> DesiredServer: ...
    @property
    def model(self) -> Model: ...
    @property
    def files(self) -> tuple[PayloadFile, ...]: ...
    @property
    def gguf(self) -> GgufSummary | None: ...
    @property
    def draft_gguf(self) -> GgufSummary | None: ...
    @property
    def drafts(self) -> dict[str, str]: ...


def _nextn(gguf: GgufSummary | None) -> int | None:
    """MTP layers; Gemma's assistant is one as a whole."""
    if gguf is None:
        return None
    return 1 if gguf.architecture == "gemma4-assistant" else gguf.integer("nextn_predict_layers")


def spec_request(launch: Launch) -> SpecRequest:
    """The catalog's block, the server's own and the drafters that there are.

    A sidecar is named by its file in the payload; whoever renders the launch knows the folder.
    """
    wanted = launch.server.spec
    draft = (wanted.draft_model if wanted else None) or ""
    is_path = "/" in draft or draft.endswith(".gguf")
    accelerator = launch.server.backend.accelerator
    sidecar = next(
        (f.name for f in launch.files if f.role == "draft" and accelerator in (f.backends or (accelerator,))), ""
    )
    return SpecRequest(
        backend=accelerator,
        base=launch.model.spec,
        operator_type=wanted.type if wanted else None,
        operator_draft=draft if is_path else launch.drafts.get(draft, ""),
        unresolved_draft="" if is_path or not draft or draft in launch.drafts else draft,
        operator_n_max=wanted.n_max if wanted else None,
        operator_n_min=wanted.n_min if wanted else None,
        sidecar=sidecar,
        drafts=launch.drafts,
        target_nextn=_nextn(launch.gguf),
        sidecar_nextn=_nextn(launch.draft_gguf),
    )

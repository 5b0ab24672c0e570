"""From the desired state of one server to the exact process: pure, and equal for equal input.

The findings of this layer are E0300 to E0315 of docs/codes.md.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gezelctl.catalog.types import Engine, Model, Payload, PayloadFile
from gezelctl.config.desired import DesiredServer
from gezelctl.config.diagnostics import Diagnostic
from gezelctl.config.settings import ENGINE_SETTINGS
from gezelctl.engines.llama_cpp.spec import SpecPlan
from gezelctl.engines.report import Report
from gezelctl.engines.types import LaunchSpec, Scalar, SecretEnv, Value
from gezelctl.gguf.types import GgufSummary
from gezelctl.observe.types import EngineProbe


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides a launch.

    `files` are the wanted files of the payload and stand in `payload_dir` (absolute) by their names; `digests` maps
    names to sha256. `gguf` and `draft_gguf` are None while a header is not known yet. `drafts` maps catalog ids to
    the absolute path of their installed weights. `planned` are values of the memory planner.
    """

    server: DesiredServer
    model: Model
    payload: Payload
    files: tuple[PayloadFile, ...]
    payload_dir: str
    probe: EngineProbe
    slots_dir: str
    config_path: str
    digests: dict[str, str] = {}
    gguf: GgufSummary | None = None
    draft_gguf: GgufSummary | None = None
    mmproj_gguf: GgufSummary | None = None
    drafts: dict[str, str] = {}
    planned: tuple[Value, ...] = ()
    spec: SpecPlan | None = None
    """What the launch planner made of speculation; None lets the renderer resolve it by itself."""

    def path_of(self, role: str) -> str:
        """Absolute path of the first wanted file of a role, "" when none is wanted."""
        return next((f"{self.payload_dir}/{f.name}" for f in self.files if f.role == role), "")


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """`spec` is None exactly when a diagnostic is an error. `notes` are the reasons, one line each."""

    spec: LaunchSpec | None
    diagnostics: tuple[Diagnostic, ...] = ()
    notes: tuple[str, ...] = ()


class Choices:
    """The launch values with their origins: server > backend > catalog > planner > engine."""

    def __init__(self, request: LaunchRequest) -> None:
        server = request.server
        self._server = server
        self._layers: tuple[tuple[str, dict[str, Scalar]], ...] = (
            ("server", dict(server.engine_options)),
            ("backend", server.backend_options),
            ("catalog", dict(request.model.engine_options) if request.payload.engine == "llama-cpp" else {}),
        )
        self._planned = {v.name: v for v in request.planned}
        self.values: dict[str, Value] = {}

    def option(self, name: str) -> Value | None:
        """The chosen engine option, recorded; None when nobody sets it."""
        if name in self.values:
            return self.values[name]
        for origin, options in self._layers:
            if name in options:
                field = f"engineOptions.{name}" if origin == "server" else f"backend.engineOptions.{name}"
                place = None if origin == "catalog" else self._server.places.get(field)
                return self.put(Value(name, options[name], origin, place=place))  # type: ignore[arg-type] # a literal
        return self.planned(name)

    def planned(self, name: str) -> Value | None:
        """The planner's value, recorded."""
        return self.put(self._planned[name]) if name in self._planned else None

    def server(self, name: str, value: Scalar | None) -> Value | None:
        """A field of the server itself, recorded when set."""
        return None if value is None else self.put(Value(name, value, "server", place=self._server.places.get(name)))

    def decide(self, name: str, value: Scalar, reason: str) -> Value:
        """A value that nobody set and gezelctl decides."""
        return self.put(Value(name, value, "planner", reason))

    def put(self, value: Value) -> Value:
        self.values[value.name] = value
        return value

    def explicit(self, name: str) -> bool:
        """Set in models.yaml, not by the catalog or by us."""
        return name in self.values and self.values[name].origin in {"server", "backend", "defaults"}


def check_engine_options(request: LaunchRequest, report: Report) -> None:
    """Options of the other engine are refused, not ignored (E0312)."""
    engine = request.payload.engine
    known = {s.name for s in ENGINE_SETTINGS[engine]}
    places = (
        ("engineOptions", request.server.engine_options),
        ("backend.engineOptions", request.server.backend_options),
    )
    for field, options in places:
        for name in sorted(set(options) - known):
            report.error("E0312", f"{field}.{name}", f"{name} is not an option of {engine}", f"Remove {field}.{name}.")


def environment(request: LaunchRequest, report: Report) -> dict[str, str]:
    """The backend's and the server's variables; what would override flags or carry a secret is refused (E0308)."""
    server = request.server
    for field, variables in (("backend.env", server.backend.env), ("env", server.env)):
        for name in sorted(variables):
            if name.startswith("LLAMA_ARG_"):
                cure = "Use the field of models.yaml, engineOptions or extraArgs instead."
                report.error("E0308", f"{field}.{name}", f"{name} would change the command line behind the plan", cure)
            elif name in {"LLAMA_API_KEY", API_KEY_MLX}:
                report.error("E0308", f"{field}.{name}", f"{name} is a secret", "Use apiKey with fromEnv or fromFile.")
    return {**server.backend.env, **server.env}


API_KEY_MLX = "GEZELCTL_MLX_API_KEY"
"""The sidecar reads its key here; mlx_lm.server itself has none."""


def secrets(server: DesiredServer, name: str) -> tuple[SecretEnv, ...]:
    """The API key as a reference; its value is read when the process starts."""
    key = server.api_key
    return (SecretEnv(name, key.from_env or "", key.from_file or ""),) if key else ()


def wanted_digests(request: LaunchRequest) -> dict[str, str]:
    """sha256 of the wanted files, by name."""
    names = sorted(f.name for f in request.files)
    return {name: request.digests[name] for name in names if name in request.digests}


def _renderer(engine: Engine) -> Callable[[LaunchRequest, Report], LaunchSpec]:
    if engine == "mlx":
        from gezelctl.engines.mlx.config import render_mlx

        return render_mlx
    from gezelctl.engines.llama_cpp.argv import render_llama_cpp

    return render_llama_cpp


def render(request: LaunchRequest) -> Rendered:
    """The launch of one server, or every reason why it cannot be."""
    report = Report(request.server)
    if request.probe.error:
        what, _, cure = request.probe.message.partition("\n")
        report.error("E0300", "backend", what, cure)
        return Rendered(spec=None, diagnostics=tuple(report.diagnostics))
    check_engine_options(request, report)
    spec = _renderer(request.payload.engine)(request, report)
    return Rendered(
        spec=None if report.failed else spec,
        diagnostics=tuple(sorted(report.diagnostics, key=lambda d: d.sort_key)),
        notes=tuple(report.notes),
    )

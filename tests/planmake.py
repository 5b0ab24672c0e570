"""Plans as the planner would make them, for the tests of what shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gezelctl.catalog.types import Origin, PayloadFile
from gezelctl.config.diagnostics import Diagnostic, Place
from gezelctl.engines.types import LaunchSpec, Value
from gezelctl.plan.render_json import plan_digest
from gezelctl.plan.types import Against, Capacity, Change, Decision, Field, FileAction, Plan, SourceFile, Summary

GIB = 1 << 30
LIVE = Against(kind="live", seen="2026-01-12T14:02:11Z")
SNAPSHOT = Against(kind="snapshot", seen="2026-01-12T14:02:11Z", path="lab-gpu-03.json", age_s=10_800)


def place(line: int, file: str = "models.yaml") -> Place:
    return Place(file=file, line=line, column=7)


def summary(changes: Iterable[Change]) -> Summary:
    listed = tuple(changes)
    counts = {a: sum(c.action == a for c in listed) for a in ("create", "update", "restart", "delete", "fetch", "link")}
    return Summary(
        **counts,
        noop=sum(c.action == "noop" for c in listed),
        kept=sum(c.action == "keep" for c in listed),
        blocked=sum(c.action == "blocked" for c in listed),
        download_bytes=sum(c.download_bytes for c in listed),
        link_bytes=sum(c.link_bytes for c in listed),
        downtime_s=sum(c.downtime_s or 0 for c in listed if c.action == "restart"),
    )


def plan(*changes: Change, capacity: tuple[Capacity, ...] = (), against: Against = LIVE, **more: Any) -> Plan:
    """A plan of these changes, with the digest, counts and verdict that follow from them."""
    diagnostics: tuple[Diagnostic, ...] = more.get("diagnostics", ())
    applyable = (
        all(c.fits for c in capacity)
        and not any(c.action == "blocked" for c in changes)
        and not any(d.severity == "error" for d in diagnostics)
    )
    values: dict[str, Any] = {
        "format_version": "1.0",
        "kind": "Plan",
        "tool": "gezelctl 0.1.0",
        "stack": "lab",
        "host": "lab-gpu-03",
        "digest": plan_digest(changes),
        "source": (SourceFile(path="models.yaml", sha256="4f1c2ab9" * 8),),
        "against": against,
        "lineage": "1f0e",
        "serial": 41,
        "complete": True,
        "applyable": applyable,
        "summary": summary(changes),
        "changes": changes,
        "capacity": capacity,
    }
    return Plan(**(values | more))


def file(name: str, size: int, digest: str = "ab", origin: Origin | None = None) -> PayloadFile:
    hub = Origin(kind="huggingface", repo="lab/embed-small-GGUF", revision="5d0c3ae", filename=name)
    return PayloadFile(name=name, role="weights", origin=origin or hub, sha256=digest * 32, size_bytes=size)


def launch(server: str, port: int, *argv: str) -> LaunchSpec:
    return LaunchSpec(
        server=server,
        engine="llama-cpp",
        backend="cuda",
        program="/opt/llama/llama-server",
        argv=("--model", f"/srv/models/{server}.gguf", "--port", str(port), *argv),
        host="127.0.0.1",
        port=port,
        payload_id=f"{server}-q4",
    )


def download(name: str = "embed-small", size: int = 644_245_094) -> Change:
    weights = f"{name}-Q8_0.gguf"
    return Change(
        address=f"payload.llama-cpp.{name}",
        action="fetch",
        reason="model_missing",
        cause="not in the store; 2 files",
        download_bytes=size,
        link_bytes=1_073_741_824,
        files=(
            FileAction(file=file(weights, size), how="download", size_bytes=size),
            FileAction(
                file=file("mmproj.gguf", GIB, "cd"),
                how="link",
                size_bytes=GIB,
                source="/home/user/.cache/huggingface/hub/blobs/cdcd",
                reason="same bytes in an adoptFrom folder",
            ),
        ),
    )


def create(name: str = "embed-small", port: int = 8083) -> Change:
    return Change(
        address=f"server.{name}",
        action="create",
        reason="not_present",
        fields=(
            Field(path="port", after=port, origin="server", place=place(38)),
            Field(path="context", after=8192, origin="planner", reason="what the model was trained for"),
            Field(path="apiKey", sensitive=True, reason="added", origin="server", place=place(39)),
        ),
        depends_on=(f"payload.llama-cpp.{name}",),
        launch=launch(name, port, "--ctx-size", "8192", "--embeddings"),
        memory_after_bytes=GIB,
    )


def restart(name: str = "qwen3-8b", seconds: int | None = 40) -> Change:
    return Change(
        address=f"server.{name}",
        action="restart",
        reason="needs_restart",
        cause="context, slots differ",
        fields=(
            Field(path="apiKey", sensitive=True, reason="changed", origin="server", place=place(22)),
            Field(path="context", before=8192, after=16384, origin="server", place=place(19)),
            Field(path="slots", before=8, after=4, origin="server", place=place(20), drift=True),
            Field(path="spec.type", before="draft-mtp", origin="", reason="no longer set"),
        ),
        unchanged_count=11,
        downtime_s=seconds,
        launch=launch(name, 8081, "--ctx-size", "65536", "--parallel", "4"),
        argv_before=("--model", f"/srv/models/{name}.gguf", "--port", "8081", "--ctx-size", "65536", "--parallel", "8"),
        memory_before_bytes=5 * GIB,
        memory_after_bytes=6 * GIB,
    )


def noop(name: str) -> Change:
    return Change(address=f"server.{name}", action="noop", reason="in_sync")


def blocked(name: str = "coder") -> Change:
    return Change(
        address=f"server.{name}",
        action="blocked",
        reason="port_taken",
        cause="port 8082 is held by pid 912 (nginx)",
        cure="stop that process or choose another port",
    )


def kept(name: str = "old-mistral") -> Change:
    return Change(
        address=f"server.{name}",
        action="keep",
        reason="prune_off",
        cause="ours and running as pid 77, but not in models.yaml: kept, since pruning is off",
        cure="remove it with --prune",
    )


def delete(name: str = "old-mistral") -> Change:
    return Change(address=f"server.{name}", action="delete", reason="not_in_config", cause="not in models.yaml")


DISK = Capacity(resource="disk", before=100 * GIB, after=101 * GIB, limit=212 * GIB, fits=True)
MEMORY = Capacity(
    resource="memory:GPU 0", before=19 * GIB, after=21 * GIB + GIB // 3, limit=24 * GIB, fits=True, basis="estimate"
)
PORT = Capacity(resource="port:8083", before=0, after=1, limit=1, fits=True)

FIRST = plan(download(), create(), capacity=(DISK, MEMORY, PORT))
NO_CHANGE = plan(noop("chat"), noop("coder"), noop("embed-small"))
RESTART = plan(restart(), noop("coder"), noop("embed-small"), capacity=(MEMORY,))
BLOCKED = plan(blocked(), capacity=(Capacity(resource="disk", before=1, after=3 * GIB, limit=2 * GIB, fits=False),))
KEPT = plan(noop("chat"), kept())
PRUNED = plan(restart(), restart("coder", None), delete(), prune=True, against=SNAPSHOT)
WARNED = plan(
    Change(address="server.chat", action="update", reason="spec_changed", cause="changes without a restart",
           fields=(Field(path="startTimeoutS", before=300, after=600, effect="live", place=place(9)),), downtime_s=0),
    diagnostics=(
        Diagnostic(code="W0301", severity="warning", summary="slots share one pool", cure="set kvUnified: false",
                   place=place(9), snippet="      slots: 4", address="server.chat"),
    ),
    only=("server.chat",),
    complete=False,
)  # fmt: skip
PLANS = {
    "first": FIRST,
    "no_change": NO_CHANGE,
    "restart_of_three": RESTART,
    "blocked": BLOCKED,
    "kept": KEPT,
    "pruned_from_snapshot": PRUNED,
    "warned_partial": WARNED,
}


def explained() -> Plan:
    values = (
        Value(name="context", value=16384, origin="server", place=place(19)),
        Value(name="flashAttn", value="on", origin="catalog"),
        Value(name="nGpuLayers", value=-1, origin="planner", reason="the whole model fits in GPU 0"),
        Value(name="temp", value=0.6, origin="defaults", place=place(3)),
    )
    notes = ("slots stay at 4: a fifth would cost 4,096 tokens of context",)
    return plan(restart(), decisions=(Decision(address="server.qwen3-8b", values=values, notes=notes),))

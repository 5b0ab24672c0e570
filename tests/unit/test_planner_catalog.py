"""The llama.cpp models of a real catalog on six hosts, planned from the catalog's own figures."""

from __future__ import annotations

from pathlib import Path

import msgspec
from syrupy.assertion import SnapshotAssertion

from gezelctl.catalog.gilde import GildeCatalog
from gezelctl.catalog.types import Model
from gezelctl.catalog.versions import ModelRef
from gezelctl.config.model import Spec
from gezelctl.engines.llama_cpp.planner import HostMemory, LaunchAnswer
from tests.plannermake import GIB, answer, host, question, values

HOSTS: dict[str, tuple[str, HostMemory]] = {
    "8 GiB laptop": ("cpu", host(8)),
    "16 GiB Mac": ("metal", host(16, working_set=10.67)),
    "64 GiB Mac": ("metal", host(64, working_set=48)),
    "24 GiB card + 64": ("cuda", host(64, 24)),
    "2 x 24 GiB + 128": ("cuda", host(128, 24, 24)),
    "141 GiB card + 512": ("cuda", host(512, 141)),
}


def models(gilde: Path) -> list[Model]:
    catalog = GildeCatalog(gilde, "catalog")
    found = [catalog.find(ModelRef(listed.id, "")) for listed in catalog.listing()]
    return [entry[0] for entry in found if entry is not None and "llama-cpp" in entry[0].payloads]


def planned(model: Model, accelerator: str, on: HostMemory, spec: Spec | None = None) -> LaunchAnswer:
    payload = model.payloads["llama-cpp"]
    files = tuple(file for file in payload.files if file.role != "mmproj")
    asked = question(accelerator=accelerator, spec=spec)
    return answer(msgspec.structs.replace(asked, model=model, payload=payload, files=files), on)


def cell(found: LaunchAnswer) -> str:
    if found.refusal is not None or found.estimate is None:
        return "-"
    chosen = values(found)
    parts = [f"{chosen['slots']} x {chosen['context'] // 1024}k", chosen["kvCache"]]
    if chosen.get("cpuMoe"):
        parts.append("cpuMoe")
    elif found.estimate.gpu_bytes and found.estimate.ram_bytes:
        parts.append("engine")
    drafter = ",".join(found.spec.types)
    return " ".join([*parts, *([drafter] if drafter else []), f"{found.estimate.total_bytes / GIB:.1f}G"])


def test_six_hosts(gilde: Path, snapshot: SnapshotAssertion) -> None:
    """Fits, slots, window per slot, KV type, offload (engine = its own fit spills), drafter and bytes."""
    rows = [["model", *HOSTS]]
    rows += [
        [model.id, *(cell(planned(model, *HOSTS[name])) for name in HOSTS)]
        for model in sorted(models(gilde), key=lambda model: model.id)
    ]
    assert len(rows) == 1 + 44
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    text = "\n".join(
        "  ".join(part.ljust(width) for part, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    assert text == snapshot


def test_models_with_a_drafter_on_a_24_gib_card(gilde: Path, snapshot: SnapshotAssertion) -> None:
    """draft-mtp asked for by the catalog: used where it costs nothing, left out with its reason where it does."""
    lines = []
    for model in sorted(models(gilde), key=lambda model: model.id):
        if not model.spec:
            continue
        wanting = msgspec.structs.replace(model, spec={**model.spec, "type": "draft-mtp"})
        found = planned(wanting, *HOSTS["24 GiB card + 64"])
        told = [note for note in found.notes if "left out" in note]
        used = f"{','.join(found.spec.types)} {found.spec.draft_model or 'own head'}" if found.spec.types else "none"
        lines.append(f"{model.id}: {'; '.join([used, *told])}")
    assert "\n".join(lines) == snapshot


def test_nothing_that_is_planned_exceeds_its_host(gilde: Path) -> None:
    for accelerator, on in HOSTS.values():
        for model in models(gilde):
            found = planned(model, accelerator, on).estimate
            if found is not None:
                assert found.ram_bytes <= on.ram_bytes
                assert sum(found.gpu_bytes.values()) <= on.card_bytes

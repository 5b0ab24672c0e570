"""The launch of an MLX server: sidecar command line, configuration file, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from gezelctl.config.model import SecretRef, Spec
from gezelctl.engines.launch import Rendered, render
from gezelctl.engines.mlx.config import SidecarConfig
from gezelctl.observe.types import EngineProbe
from tests.launchmake import payload, request

PROBE = EngineProbe(
    backend="mac",
    engine="mlx",
    program="/opt/mlx/bin/python",
    prefix=("/opt/gezelctl/mlx_sidecar.py",),
    digest="d" * 16,
)

CASES: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "limits": {"server": {"engine_options": {"memoryLimitMib": 8192, "wiredLimitMib": 4096, "cacheLimitMib": 512}}},
    "slots become sequences": {"server": {"slots": 4, "alias": "chat"}},
    "own concurrency": {"server": {"slots": 4, "engine_options": {"decodeConcurrency": 2, "promptCacheMib": 100}}},
    "extra": {
        "backend": {"extraArgs": {"temp": 0.2, "log-level": "DEBUG"}},
        "server": {"extra_args": {"temp": 0.7, "trust_remote_code": False, "kv-bits": 8}},
    },
    "catalog template": {"chat_template": "{{ messages }}"},
}

REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("vision", "E0311", {"server": {"vision": True}}),
    ("drafter", "E0311", {"server": {"spec": Spec(type="draft-simple")}}),
    ("quantised cache", "E0311", {"server": {"kv_cache": "q8_0"}}),
    ("option of llama.cpp", "E0312", {"server": {"engine_options": {"nGpuLayers": -1}}}),
    ("reserved", "E0303", {"server": {"extra_args": {"draft-model": "/d"}}}),
    ("unknown", "E0301", {"server": {"extra_args": {"max-kv-size": 4}}}),
    ("outside the domain", "E0302", {"server": {"extra_args": {"log-level": "LOUD"}}}),
    ("value missing", "E0302", {"server": {"extra_args": {"kv-bits": True}}}),
]


def rendered(**case: Any) -> Rendered:
    template = case.pop("chat_template", "")
    backend = {"engine": "mlx", "python": "/opt/mlx/bin/python", **case.pop("backend", {})}
    base = payload(engine="mlx", chat_template=template)
    return render(request(probe=PROBE, payload=base, files=base.files, backend=backend, gguf=None, **case))


@pytest.mark.parametrize("name", CASES)
def test_config(name: str, snapshot: SnapshotAssertion) -> None:
    spec = rendered(**CASES[name]).spec
    assert spec is not None
    assert (spec.program, spec.argv[:2]) == ("/opt/mlx/bin/python", ("/opt/gezelctl/mlx_sidecar.py", "--config"))
    (file,) = spec.config_files
    assert spec.argv[2] == file.path
    assert file.content == snapshot
    assert msgspec.json.decode(file.content, type=SidecarConfig).alias == spec.expect.model_id


@pytest.mark.parametrize(("name", "code", "case"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_mlx_cannot_do_is_said(name: str, code: str, case: dict[str, Any]) -> None:
    result = rendered(**case)
    assert result.spec is None
    assert [d.code for d in result.diagnostics] == [code]


def test_a_context_is_not_enforced_and_that_is_said() -> None:
    result = rendered(server={"context": 4096})
    assert result.spec is not None
    assert [(d.severity, d.code) for d in result.diagnostics] == [("warning", "E0311")]


def test_the_key_stays_a_reference() -> None:
    spec = rendered(server={"api_key": SecretRef(from_file="/run/secrets/chat")}).spec
    assert spec is not None
    assert [(s.name, s.from_file) for s in spec.secret_env] == [("GEZELCTL_MLX_API_KEY", "/run/secrets/chat")]

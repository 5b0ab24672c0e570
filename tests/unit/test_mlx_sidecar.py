"""The MLX sidecar with the real mlx_lm.server on the CPU."""

from __future__ import annotations

import json
import runpy
import signal
import socket
import subprocess
import sys
import time
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import gezelctl
from gezelctl.engines.launch import render
from gezelctl.engines.loglines import classify
from gezelctl.engines.types import LaunchSpec
from gezelctl.observe.types import EngineProbe
from tests.launchmake import payload, request
from tests.mlxmodel import make_tiny_model
from tests.serving import free_port, started

pytestmark = pytest.mark.engine("mlx")

SIDECAR = str(Path(gezelctl.__file__).parent / "mlx_sidecar.py")


def launch(model: Path, folder: Path, *, template: str = "", **server: Any) -> LaunchSpec:
    probe = EngineProbe(backend="mac", engine="mlx", program=sys.executable, prefix=(SIDECAR,))
    base = payload(engine="mlx", chat_template=template)
    result = render(
        request(
            probe=probe, payload=base, files=base.files, payload_dir=str(model), config_path=str(folder / "chat.json"),
            backend={"engine": "mlx"}, gguf=None, server={"port": free_port(), **server},
        )
    )  # fmt: skip
    assert result.spec is not None, result.diagnostics
    return result.spec


def test_it_serves_one_model_and_stops(mlx_model: Path, tmp_path: Path) -> None:
    options = {"memoryLimitMib": 512, "wiredLimitMib": 256, "promptCacheMib": 64, "maxTokens": 8}
    spec = launch(mlx_model, tmp_path, slots=2, alias="tiny", engine_options=options)
    with started(spec, tmp_path) as served:
        ids = [row["id"] for row in served.ask("/v1/models")["data"]]
        assert spec.expect.model_id in ids
        for name in (None, "tiny", str(mlx_model)):
            assert served.chat(**({"model": name} if name else {}), max_tokens=4)["content"]
        body = {"model": "some/other", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        refused = served.http.post("/v1/chat/completions", json=body)
        assert refused.status_code == 404
        assert "not served here" in refused.text
        began = time.monotonic()
        assert served.stop() == 0
        assert time.monotonic() - began < 5
    assert not [line for line in served.lines if "Traceback" in line or "Fetching" in line]


def test_health_means_loaded(mlx_model: Path, tmp_path: Path) -> None:
    with started(launch(mlx_model, tmp_path), tmp_path) as served:
        loaded = next(i for i, line in enumerate(served.lines) if "[mlx] model loaded" in line)
        bound = next(i for i, line in enumerate(served.lines) if "Starting httpd" in line)
        assert loaded < bound


def test_the_key_is_asked_for(mlx_model: Path, tmp_path: Path) -> None:
    from gezelctl.config.model import SecretRef

    spec = launch(mlx_model, tmp_path, api_key=SecretRef(from_env="K"))
    with started(spec, tmp_path, key="s3cret") as served:
        assert served.chat(max_tokens=2)["content"]
        body = {"messages": [{"role": "user", "content": "hi"}]}
        for wrong in ("Bearer other", ""):
            answer = served.http.post("/v1/chat/completions", json=body, headers={"Authorization": wrong})
            assert answer.status_code == 401
    assert "s3cret" not in "\n".join(served.lines)


def test_the_catalog_template_is_used_when_the_model_has_none(tmp_path: Path) -> None:
    bare = make_tiny_model(tmp_path / "bare", chat_template=False)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with started(launch(bare, tmp_path, template=template), tmp_path) as served:
        assert served.chat(max_tokens=2)["content"]


def break_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def break_type(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "zlama"}), encoding="utf-8")


def break_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}), encoding="utf-8")


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (break_weights, "FILE_MISSING"),
        (break_type, "ARCH_UNSUPPORTED"),
        (break_shape, "MODEL_INCOMPATIBLE"),
        (remove_config, "FILE_MISSING"),
    ],
)
def test_a_model_that_cannot_be_loaded_ends_the_process(damage: Any, code: str, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    damage(model)
    with started(launch(model, tmp_path), tmp_path, ready=False) as served:
        exit_code = served.process.wait(60)
    assert exit_code == 1
    assert classify(served.lines, exit_code).code == code, served.lines
    assert not [line for line in served.lines if "Traceback" in line]


def test_a_taken_port_ends_the_process(mlx_model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        spec = launch(mlx_model, tmp_path, port=taken.getsockname()[1])
        with started(spec, tmp_path, ready=False) as served:
            assert served.process.wait(60) == 1
    assert classify(served.lines, 1).code == "PORT"


def test_kill_leaves_the_port_free(mlx_model: Path, tmp_path: Path) -> None:
    spec = launch(mlx_model, tmp_path)
    with started(spec, tmp_path) as served:
        assert served.stop(signal.SIGKILL) == -signal.SIGKILL
    with socket.create_server(("127.0.0.1", spec.port)):
        pass


def test_it_imports_no_gezelctl_and_is_not_shadowed_by_its_neighbours() -> None:
    """Run by path, its folder would come first on sys.path, where `config` and `store` are ours."""
    done = subprocess.run(
        [sys.executable, SIDECAR, "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(f"version: mlx-lm {metadata.version('mlx-lm')} (mlx ")
    source = Path(SIDECAR).read_text(encoding="utf-8")
    assert "import gezelctl" not in source
    assert "from gezelctl" not in source


def test_the_flag_table_is_the_librarys_own() -> None:
    """Every flag of the table stands in the help of the installed mlx_lm.server."""
    from gezelctl.engines.mlx.flags import MLX_FLAGS

    done = subprocess.run([sys.executable, SIDECAR, "--help"], capture_output=True, text=True, timeout=120, check=True)
    for flag in MLX_FLAGS:
        assert flag.names[0] in done.stdout


class FakeMetal:
    """Stands for mlx.core where Metal is; records what is set."""

    def __init__(self, *, available: bool) -> None:
        self.calls: list[tuple[str, int]] = []
        self.metal = types.SimpleNamespace(is_available=lambda: available)

    def __getattr__(self, name: str) -> Any:
        return lambda limit: self.calls.append((name, limit))


@pytest.mark.parametrize("available", [True, False])
def test_limits_are_set_where_metal_is(available: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would reset the wired limit at every batch; after this its own setter sets ours."""
    sidecar = runpy.run_path(SIDECAR)
    fake = FakeMetal(available=available)
    server = types.SimpleNamespace(maybe_set_recommended_wired_limit=lambda: None)
    generate = types.SimpleNamespace(maybe_set_recommended_wired_limit=lambda: None)
    modules = {"mlx.core": fake, "mlx_lm.generate": generate}
    monkeypatch.setattr(sidecar["importlib"], "import_module", modules.__getitem__)
    sidecar["_set_limits"](server, {"memoryLimitBytes": 3, "wiredLimitBytes": 2, "cacheLimitBytes": 1})
    server.maybe_set_recommended_wired_limit()
    generate.maybe_set_recommended_wired_limit()
    wanted = [("set_memory_limit", 3), ("set_cache_limit", 1), ("set_wired_limit", 2), ("set_wired_limit", 2)]
    assert fake.calls == (wanted if available else [])

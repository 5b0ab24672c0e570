"""What `pip install` gives: the wheel alone, away from the checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gezelctl.cli.schema_command import NAMES
from tests.conftest import REPO
from tests.e2e.lab import Lab


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked as pip would install it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built = subprocess.run(
        [*pip, "wheel", str(REPO), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    wheel = next(folder.glob("gezelctl-*.whl"))
    target = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(target)
    assert not [n for n in names if n.startswith(("tests/", "examples/"))]
    assert {f"gezelctl/_data/schemas/{name}.schema.json" for name in NAMES} <= set(names)
    assert "gezelctl/py.typed" in names
    scripts = next(n for n in names if n.endswith(".dist-info/entry_points.txt"))
    assert "gezelctl = gezelctl.cli.main:main" in (target / scripts).read_text()
    return target


def test_the_installed_wheel_works_outside_the_checkout(lab: Lab, installed: Path) -> None:
    lab.extra_env = {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    where = subprocess.run(
        [sys.executable, "-c", "import gezelctl; print(gezelctl.__file__)"],
        cwd=lab.root,
        env=lab.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(installed)), "the checkout must not be what runs"

    lab.fake("chat")
    for name in NAMES:
        assert lab.ok("schema", name).json()["$schema"].startswith("https://json-schema.org/")
    invalid = lab.root / "invalid.yaml"
    invalid.write_text((lab.root / "models.yaml").read_text().replace("context:", "contxt:"))
    refused = lab.run("validate", "-f", "invalid.yaml")
    assert refused.code == 65
    assert "did you mean context?" in refused.err
    assert lab.run("plan", "--detailed-exitcode").code == 2
    assert lab.ok("plan", "-o", "markdown").out.startswith("<!-- gezelctl:plan")
    done = lab.apply()
    assert "server.chat: done: serving" in done.err
    assert lab.idle()
    lab.ok("destroy", "-f", "models.yaml", "--yes")


@pytest.mark.engine("embedded", "smollm2")
def test_the_embedded_server_of_the_wheel_serves(lab: Lab, installed: Path, smollm2: Path) -> None:
    lab.extra_env = {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    lab.link(smollm2, "m.gguf")
    lab.write(
        lab.fake_server("chat", "path: ./m.gguf"),
        backends="fake: {engine: llama-cpp, accelerator: cpu, embedded: true}",
        head=lab.fake_head(),
    )
    lab.apply()
    assert lab.status()["chat"]["health"] == "Ready"

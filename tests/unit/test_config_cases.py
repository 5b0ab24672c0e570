"""Every bad models.yaml in tests/cases/config against the findings that a person reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from gezelctl.config.diagnostics import InvalidConfig, render_diagnostics
from gezelctl.config.loader import load_models
from gezelctl.errors import ExitCode

CASES = Path(__file__).resolve().parents[1] / "cases" / "config"
PLANTED = "hunter2"
VALID = ("server-on-no-host",)


@pytest.mark.parametrize("name", sorted(path.stem for path in CASES.glob("*.yaml") if path.stem not in VALID))
def test_bad_file_is_explained(name: str, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    monkeypatch.chdir(CASES)
    with pytest.raises(InvalidConfig) as caught:
        load_models([f"{name}.yaml"])
    found = caught.value.diagnostics
    assert caught.value.exit_code is ExitCode.INVALID
    assert all(item.cure and item.code.startswith(("E00", "E01")) and item.place for item in found)
    assert PLANTED not in render_diagnostics(found) + str(caught.value) + repr(found)
    assert render_diagnostics(found) == snapshot


def test_a_server_on_no_host_is_a_warning(monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    monkeypatch.chdir(CASES)
    assert render_diagnostics(load_models(["server-on-no-host.yaml"]).warnings) == snapshot

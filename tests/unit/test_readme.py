"""The README says what is so: its plan, its exit codes, its commands, its models.yaml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gezelctl.cli.main import COMMANDS
from gezelctl.config.loader import load_models
from gezelctl.errors import ExitCode
from gezelctl.plan.render_text import render_text
from tests.conftest import REPO
from tests.plancase import CASES, PlanCase

README = (REPO / "README.md").read_text(encoding="utf-8")


def test_the_plan_in_the_readme_is_what_the_planner_prints(tmp_path: Path) -> None:
    *_, (_, plan, _) = PlanCase(CASES / "readme.yaml").plans(tmp_path)
    shown = "".join(f"    {line}".rstrip() + "\n" for line in render_text(plan, width=100).splitlines())
    assert shown.strip() in README


def test_the_exit_codes_are_all_there_and_no_others() -> None:
    table = README.partition("## Exit codes")[2].partition("\n## ")[0]
    named = {int(n) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for n in row.split(",")}
    assert named == {int(code) for code in ExitCode}


def test_every_command_is_in_the_readme() -> None:
    table = README.partition("## Commands")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([a-z]+)`", table.replace("`apply PLAN`", ""))) >= set(COMMANDS)


def test_the_models_yaml_of_the_readme_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = README.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "models.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert not load_models(["models.yaml"]).warnings

"""Completion scripts in real shells where they are installed, and names from the file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gezelctl.cli.completion import COMPLETE_VARIABLE, SHELLS, complete_address, completion_script, server_names
from gezelctl.errors import UsageFault

PROGRAM = "import sys; from gezelctl.cli.main import main; sys.argv[0] = 'gezelctl'; sys.exit(main())"


@click.group()
def cli() -> None:
    """A group, as the real one is."""


def complete(words: str, tmp_path: Path) -> list[str]:
    environ = {
        **os.environ,
        COMPLETE_VARIABLE: "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    environ.pop("GEZELCTL_FILE", None)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    return [line.partition(",")[2] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("shell", SHELLS)
def test_script_is_accepted_by_its_shell(shell: str, tmp_path: Path) -> None:
    script = completion_script(cli, shell)
    assert COMPLETE_VARIABLE in script
    path = tmp_path / "script"
    path.write_text(script)
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"needs {shell} to check its script")
    subprocess.run([program, "-n", str(path)], check=True, capture_output=True)


def test_an_unknown_shell_is_named() -> None:
    with pytest.raises(UsageFault, match="tcsh"):
        completion_script(cli, "tcsh")


def test_server_names_complete_from_the_file_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text("models: [{name: chat}, {name: coder}]\n")
    (tmp_path / "other.yaml").write_text("models: [{name: third}]\n")
    assert complete("gezelctl plan --only c", tmp_path) == ["chat", "coder"]
    assert complete("gezelctl plan --only server.co", tmp_path) == ["server.coder"]
    assert complete("gezelctl plan -f other.yaml --only t", tmp_path) == ["third"]
    assert complete("gezelctl apply --restart c", tmp_path) == ["chat", "coder"]
    assert complete("gezelctl status server.ch", tmp_path) == ["server.chat"]


@pytest.mark.parametrize("text", ["", "[", "models: 3", "models: [1, {name: 2}, {}]", "\x00", "- a", "models: {a: b}"])
def test_a_file_that_is_not_right_completes_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    assert server_names(path) == []


def test_no_file_and_a_huge_file_complete_nothing(tmp_path: Path) -> None:
    assert server_names(tmp_path / "none.yaml") == []
    assert server_names(tmp_path) == []
    huge = tmp_path / "huge.yaml"
    huge.write_text("models: [{name: chat}]\n" + "#" * (1 << 20))
    assert server_names(huge) == []


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("models: [{name: chat}]\n")
    monkeypatch.setenv("GEZELCTL_FILE", str(path))
    context = click.Context(cli)
    items = complete_address(context, click.Option(["--only"]), "")
    assert [item.value for item in items] == ["server.chat"]

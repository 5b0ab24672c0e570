"""What the documents promise is there: the reference page is the schema's, links lead somewhere, flags exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from gezelctl.cli.main import COMMANDS, cli
from tests import reference
from tests.conftest import REPO

PAGES = (REPO / "README.md", *sorted((REPO / "docs").rglob("*.md")))


def test_the_reference_page_is_the_one_of_the_schema() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.render(), "run: make reference"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(REPO)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    anchors = {reference._anchor(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        assert (page.parent / path).exists(), target
        assert path or anchor in anchors, target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(REPO)))
def test_every_command_line_is_one_that_the_program_takes(page: Path) -> None:
    for line in re.findall(r"gezelctl ([a-z]+(?: [^`\n#|>]+)?)", page.read_text(encoding="utf-8")):
        name, *words = line.split()
        if name not in COMMANDS:
            continue
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for word in words:
            flag = word.partition("=")[0].rstrip(".,;:)'\"")
            assert not flag.startswith("-") or flag in known or flag == "-", f"gezelctl {line}: {flag}"

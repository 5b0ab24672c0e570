"""Chat templates are linted before an engine reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gezelctl.catalog.gilde import GildeCatalog
from gezelctl.catalog.versions import ModelRef
from gezelctl.engines.launch import render
from gezelctl.engines.templatelint import lint_template
from gezelctl.gguf.reader import read_summary
from tests.launchmake import request

CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{% endfor %}"""
TOOLS = "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}" + CHATML


@pytest.mark.parametrize(
    ("text", "line", "severity", "words"),
    [
        ("{{ .System }}", 1, "error", "Go template"),
        ("<s>\n{{ if .Tools }}x{{ end }}", 2, "error", "Go template"),
        ("{{- range .Messages }}{{ .Content }}{{- end }}", 1, "error", "Go template"),
        ("a\n{% for m in messages %}{{ m.content }", 2, "error", "no Jinja: unexpected '}'"),
        ("a\n\n{% if x %}", 3, "error", "no Jinja"),
        ("{% nope %}", 1, "error", "no Jinja"),
        ("a\nb\n{{ messages[0].content + 1 }}", 3, "error", "TypeError"),
        ("{{ messages[9].content.x }}", 1, "error", "UndefinedError"),
        ("{{ messages[0].content }}", 0, "error", "a message of the user is lost"),
        ("{{ raise_exception('never') }}", 1, "error", "refuses it: never"),
        ("{{ ''.__class__.__mro__ }}", 1, "error", "SecurityError"),
        (
            "\n{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
            2,
            "error",
            "loops more than 100000 times",
        ),
        ("{{ 'x' * 10 ** 9 }}", 1, "error", "beyond what a template needs"),
        ("{{ 'x' * 1000000000 }}", 1, "error", "beyond what a template needs"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", 1, "error", "RecursionError"),
        ("{% for m in messages * 90000 %}{{ 'x' * 99999 }}{% endfor %}", 0, "error", "renders without an end"),
        (CHATML, 0, "warning", "tools are not shown"),
        (
            TOOLS + "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}",
            3,
            "warning",
            "a system message fails",
        ),
        (TOOLS + "{% if tools %}{{ raise_exception('no tools') }}{% endif %}", 3, "warning", "a tool call fails"),
    ],
)
def test_findings(text: str, line: int, severity: str, words: str) -> None:
    first = lint_template(text)[0]
    assert words in first.summary
    assert (first.line, first.severity) == (line, severity)
    assert first.cure


@pytest.mark.parametrize(
    "text",
    [
        TOOLS,
        TOOLS + "{% generation %}{% endgeneration %}",
        TOOLS + "{{ strftime_now('%d %b %Y') }}",
        TOOLS + "{% for m in messages %}{% if loop.last %}{{ loop.length }}{% break %}{% endif %}{% endfor %}",
        TOOLS + "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    ],
)
def test_what_templates_do_is_not_complained_of(text: str) -> None:
    assert lint_template(text) == ()


def test_a_template_that_is_too_large_is_not_parsed() -> None:
    assert "larger than 1 MiB" in lint_template("x" * ((1 << 20) + 1))[0].summary


def test_templates_of_a_real_catalog(gilde: Path) -> None:
    catalog = GildeCatalog(gilde, "catalog")
    texts = []
    for listed in catalog.listing():
        found = catalog.find(ModelRef(listed.id, ""))
        assert found is not None
        option = found[0].engine_options.get("chatTemplate")
        texts += [option] if isinstance(option, str) else []
        texts += [payload.chat_template for payload in found[0].payloads.values() if payload.chat_template]
    assert texts
    for text in texts:
        assert [finding for finding in lint_template(text) if finding.severity == "error"] == []


@pytest.mark.engine("smollm2")
def test_the_template_of_a_real_model(smollm2: Path) -> None:
    template = read_summary(smollm2).chat_template
    assert template
    assert [finding.severity for finding in lint_template(template)] in ([], ["warning"])


def test_jinja2_is_imported_only_when_a_template_is_linted() -> None:
    code = "import sys, gezelctl.engines.templatelint; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("template", "severity", "words"),
    [
        ("chatml", None, ""),
        ("{% for m in messages %}{{ m.content }}", "error", "line 1 of the template"),
        ("{{ .System }}{{ .Prompt }}", "error", "Go template"),
    ],
)
def test_a_template_given_as_text_is_checked_at_plan_time(template: str, severity: str | None, words: str) -> None:
    found = render(request(server={"engine_options": {"chatTemplate": template}})).diagnostics
    errors = [d for d in found if d.code == "E0313" and d.severity == "error"]
    assert bool(errors) == (severity == "error")
    assert all(words in d.summary for d in errors)

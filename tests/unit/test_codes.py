"""docs/codes.md has every code of the source, and no other."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
FINDING = re.compile(r"E0\d{3}")
FAILURE = re.compile(r"[A-Z][A-Z0-9_]{2,}")


def _parameters(node: ast.AST) -> list[str]:
    """The positional parameters of a function or struct, `self` apart."""
    if isinstance(node, ast.FunctionDef):
        return [argument.arg for argument in node.args.args if argument.arg not in {"self", "cls"}]
    fields = node.body if isinstance(node, ast.ClassDef) else []
    return [f.target.id for f in fields if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]


def _texts(node: ast.expr) -> Iterator[str]:
    """The strings that an expression can be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))


def _codes_of_call(call: ast.Call, positions: dict[str, set[int]]) -> Iterator[str]:
    """What a call passes as a parameter `code`, by name or by position."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    for index in positions.get(name, ()):
        if index < len(call.args):
            yield from _texts(call.args[index])
    for keyword in call.keywords:
        if keyword.arg == "code":
            yield from _texts(keyword.value)


def _assigned(node: ast.AST) -> Iterator[str]:
    """What is assigned to a variable `code`."""
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "code" for t in node.targets):
        yield from _texts(node.value)


def _codes() -> set[str]:
    nodes = [n for path in sorted((REPO / "gezelctl").rglob("*.py")) for n in ast.walk(ast.parse(path.read_text()))]
    positions: dict[str, set[int]] = defaultdict(set)
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and "code" in (names := _parameters(node)):
            positions[node.name].add(names.index("code"))
    strings = (str(n.value) for n in nodes if isinstance(n, ast.Constant))
    passed = (code for n in nodes if isinstance(n, ast.Call) for code in _codes_of_call(n, positions))
    given = (code for n in nodes for code in _assigned(n))
    findings = {text for text in strings if FINDING.fullmatch(text)}
    return findings | {code for code in (*passed, *given) if FAILURE.fullmatch(code)}


def test_the_page_and_the_source_have_the_same_codes() -> None:
    page = Counter(re.findall(r"^\| ([A-Z][A-Z0-9_]+) \|", (REPO / "docs" / "codes.md").read_text(), re.MULTILINE))
    assert [code for code, times in page.items() if times > 1] == []
    codes = _codes()
    assert {"missing": sorted(codes - page.keys()), "unknown": sorted(page.keys() - codes)} == {
        "missing": [],
        "unknown": [],
    }


def test_rows_are_in_order() -> None:
    for table in re.split(r"^## ", (REPO / "docs" / "codes.md").read_text(), flags=re.MULTILINE):
        rows = re.findall(r"^\| ([A-Z][A-Z0-9_]+) \|", table, re.MULTILINE)
        assert rows == sorted(rows)

"""YAML 1.2 core scalars, places, and the bounds that keep a hostile file cheap."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, Place
from gezelctl.config.yaml12 import MAX_DEPTH, load


def attempt(text: str) -> tuple[Diagnostic, ...]:
    try:
        load(text, "f")
    except InvalidConfig as error:
        return error.diagnostics
    return ()


def codes(text: str) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        load(text, "f.yaml")
    return [found.code for found in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("true", True),
        ("FALSE", False),
        ("tRue", "tRue"),
        ("~", None),
        ("", None),
        ("Null", None),
        ("012", 12),
        ("-7", -7),
        ("+7", 7),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b1", "0b1"),
        ("1_000", "1_000"),
        ("22:22", "22:22"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("1.2.3", "1.2.3"),
        ("2026-12-01", "2026-12-01"),
        ("=", "="),
        ("- ", [None]),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("!!float 12", 12.0),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_scalars_are_yaml_1_2_core(text: str, value: object) -> None:
    data = load(text, "f").data
    assert data == value
    assert type(data) is type(value)


@pytest.mark.parametrize("text", ["9223372036854775808", "9" * 5000, "0x" + "f" * 17, "1e400", ".inf", "-.INF", ".nan"])
def test_numbers_out_of_range_are_refused(text: str) -> None:
    assert codes(text) == ["E0013"]


def test_every_value_and_key_has_its_place() -> None:
    document = load("a: 1\nb:\n  - c: x\n    d: {e: 'y'}\n", "f.yaml")
    assert document.place(("a",)) == Place("f.yaml", 1, 4, 5)
    assert document.key_place(("a",)) == Place("f.yaml", 1, 1, 2)
    assert document.place(("b", 0, "d", "e")) == Place("f.yaml", 4, 12, 15)
    assert document.key_place(("b", 0, "d", "e")) == Place("f.yaml", 4, 9, 10)
    assert document.place(("b", 0, "missing", "deeper")) == document.place(("b", 0)) == Place("f.yaml", 3, 5)
    assert document.key_place(("b", 0, "missing")) == document.place(("b", 0))
    assert document.place(("b", 7)) == document.place(("b",))


def test_columns_count_characters_and_a_byte_order_mark_is_no_character() -> None:
    document = load("\ufeffé: {ü: 1}\n", "f")
    assert document.key_place(("é", "ü")) == Place("f", 1, 5, 6)


def test_an_alias_has_the_value_and_place_of_its_anchor() -> None:
    document = load("a: &x {k: 1}\nb: *x\nc: &y s\nd: *y\n", "f")
    assert document.data == {"a": {"k": 1}, "b": {"k": 1}, "c": "s", "d": "s"}
    assert document.place(("b", "k")) == document.place(("a", "k"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: 1\na: 2", "E0005"),
        ("{a: {b: 1, b: 2}}", "E0005"),
        ("1: a", "E0006"),
        ("? [a]\n: b", "E0006"),
        ("? {a: b}\n: c", "E0006"),
        ("a: !!python/object:os.system x", "E0007"),
        ("!!omap [a: 1]", "E0007"),
        ("!!int x", "E0007"),
        ("!!map [a]", "E0007"),
        ("*a", "E0008"),
        ("&a [*a]", "E0008"),
        ("&a {b: {c: *a}}", "E0008"),
        ("a\n---\nb", "E0011"),
        ("x: &x {a: 1}\ny: {<<: *x}", "E0012"),
        ("a: \x07", "E0002"),
        ("a: \ud800", "E0002"),
        ("a: 'x", "E0003"),
        ("%YAML 3.0\n---\na", "E0003"),
    ],
)
def test_what_is_refused(text: str, code: str) -> None:
    assert codes(text) == [code]


def test_the_place_of_a_control_character_is_exact() -> None:
    with pytest.raises(InvalidConfig) as caught:
        load("é: 1\nb: é\x00", "f")
    assert caught.value.diagnostics[0].place == Place("f", 2, 5)


def test_findings_of_one_file_come_together() -> None:
    assert codes("a: 1\na: !x 2\n3: 4\nb: .inf") == ["E0005", "E0007", "E0006", "E0013"]


def _bomb(levels: int) -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (_bomb(30), "E0009"),
        ("[" * 500_000, "E0010"),
        ("- " * 500_000, "E0010"),
        ("a: " + "{a: " * 400, "E0010"),
        ("\n".join(["- &a0 [x]", *(f"- &a{i} [*a{i - 1}]" for i in range(1, 5000))]), "E0010"),
        ("[" + "x," * 200_000 + "]", "E0009"),
        ("#" * (1 << 20) + "\n", "E0004"),
        ("é" * (1 << 19) + "\n", "E0004"),
    ],
    ids=["billion-laughs", "flow-depth", "block-depth", "map-depth", "alias-depth", "nodes", "bytes", "wide-bytes"],
)
def test_hostile_files_are_refused_in_bounded_time(text: str, code: str) -> None:
    start = time.process_time()
    assert codes(text) == [code]
    assert time.process_time() - start < 5


def test_the_depth_limit_is_exact() -> None:
    assert load("[" * MAX_DEPTH + "]" * MAX_DEPTH, "f").data is not None
    assert codes("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)) == ["E0010"]


@given(st.text(max_size=300))
def test_any_text_is_a_document_or_a_finding(text: str) -> None:
    for found in attempt(text):
        assert found.code.startswith("E00")
        assert found.place is not None
        assert found.place.line >= 1
        assert found.place.column >= 1


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@,? \n\t~<0.", max_size=80))
def test_any_yaml_like_text_is_a_document_or_a_finding(text: str) -> None:
    assert all(found.cure for found in attempt(text))


_SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text("abc xyz'\":-#é", max_size=8)
_TREES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc-_", min_size=1), inner, max_size=4),
)


@given(_TREES)
def test_what_a_yaml_writer_wrote_is_read_back(tree: Any) -> None:
    quoted = yaml.safe_dump(tree, default_style='"', allow_unicode=True)
    assert load(quoted, "f").data == tree
    plain = yaml.safe_dump(tree, default_flow_style=False, allow_unicode=True)
    if "<<" not in plain:
        assert load(plain, "f").data == tree

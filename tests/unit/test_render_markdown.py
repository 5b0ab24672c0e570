"""The pull-request view, judged by a CommonMark parser: whatever a name holds, the document keeps its shape."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from syrupy.assertion import SnapshotAssertion

from gezelctl.catalog.types import Origin
from gezelctl.config.diagnostics import Diagnostic, Place
from gezelctl.plan.markdown import code, comment, fence, prose
from gezelctl.plan.render_markdown import render_markdown
from gezelctl.plan.types import Against, Capacity, Change, Field, FileAction, Plan
from tests import planmake

replace = msgspec.structs.replace
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
MARKUP = "`|\\<>&*_[]()#!~@$^=\"'-+.:/ \n\r\t\u2028\x00aB1"
hostile = st.text(alphabet=MARKUP, max_size=25) | st.text(max_size=15)
attacks = (
    "a | b",
    "`a` | ``b``",
    "\\| x |",
    "a\n\n# heading\n\n| x |",
    "```\n````\nend",
    "````````",
    "--> <script>alert(1)</script>",
    "</details></code></td>",
    "<!-- x",
    "[link](http://evil.example)",
    "![img](http://evil.example/x.png)",
    "@everyone #1 http://evil.example www.evil.example",
    "&lt;&#124;",
    " leading and trailing ",
    "`",
    "\\",
    "\r\n- item",
    "    code",
    "~~x~~ **y** __z__",
)


def test_parser_sees_a_table() -> None:
    """Guards the tests below: without the table extension they would prove nothing."""
    assert "table_open" in shape(render_markdown(planmake.FIRST))


@pytest.mark.parametrize("name", planmake.PLANS)
def test_markdown(name: str, snapshot: SnapshotAssertion) -> None:
    assert render_markdown(planmake.PLANS[name]) == snapshot


def hostile_plan(text: str) -> Plan:
    """Every place of a plan that can hold foreign text holds this one."""
    fields = (
        Field(path=f"p{text}", before=f"b{text}", after=f"a{text}", origin=text, place=Place(f"f{text}", 1, 1)),
        Field(path="apiKey", sensitive=True, reason=f"r{text}"),
    )
    launch = replace(planmake.launch("x", 1), program=f"/p{text}", argv=("--a", f"v{text}", f"--b{text}", "w"))
    file = planmake.file(f"n{text}", 1, origin=Origin(kind="path", path=f"/{text}"))
    changes = (
        Change(address=f"payload.{text}", action="fetch", reason=text, cause=f"c{text}", download_bytes=1,
               files=(FileAction(file=file, how="download"),)),
        Change(address=f"server.1{text}", action="restart", reason=text, cause=f"c{text}", fields=fields, downtime_s=1,
               launch=launch, argv_before=("--a", f"o{text}")),
        Change(address=f"server.2{text}", action="create", reason=text, cause=f"c{text}", launch=launch),
        Change(address=f"server.3{text}", action="blocked", reason=text, cause=f"c{text}", cure=f"d{text}"),
        Change(address=f"server.4{text}", action="keep", reason=text, cause=f"c{text}"),
        Change(address=f"server.5{text}", action="delete", reason=text, cause=f"c{text}"),
    )  # fmt: skip
    found = Diagnostic(code=f"E{text}", summary=f"s{text}", cure=f"u{text}", place=Place(f"f{text}", 1, 1))
    return planmake.plan(
        *changes,
        capacity=(Capacity(resource=f"memory:m{text}", before=0, after=1, limit=2, fits=True),),
        diagnostics=(found,),
        host=f"h{text}",
        stack=f"t{text}",
        against=Against(kind="snapshot", seen=f"s{text}", path=f"p{text}"),
        only=(f"o{text}",),
        complete=False,
    )


def shape(markdown: str) -> list[str]:
    """What a reader's browser gets: blocks, and inside them every inline element that is not text or code."""
    found: list[str] = []
    for token in PARSER.parse(markdown):
        if token.type == "html_block":
            found.append(f"html:{re.sub(r'=[^ ]*', '=', token.content)}")
        elif token.type != "inline":
            found.append(f"{token.type}{token.markup if token.type != 'fence' else token.info}")
        else:
            found += [_inline(child) for child in token.children or [] if _inline(child)]
    return found


def _inline(token: Any) -> str:
    if token.type == "html_inline":
        return "" if token.content in {"<code>", "</code>"} else f"html:{token.content}"
    return "" if token.type in {"text", "code_inline", "softbreak", "text_special"} else str(token.type)


@given(text=hostile)
@example(text="```")
def test_no_name_breaks_out_of_its_place(text: str) -> None:
    assert shape(render_markdown(hostile_plan(text))) == shape(render_markdown(hostile_plan("plain")))


@pytest.mark.parametrize("text", attacks)
def test_known_attacks(text: str) -> None:
    markdown = render_markdown(hostile_plan(text))
    assert shape(markdown) == shape(render_markdown(hostile_plan("plain")))
    outside = re.sub(r"^(`{3,})diff\n.*?^\1$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    spoken = re.sub(r"`[^`\n]*`", "", outside)
    assert not re.search(r"@\w", spoken), "a mention outside code would notify people"
    assert "http://" not in spoken


@given(text=hostile)
def test_text_survives_its_escaping(text: str) -> None:
    """What the reader sees is what the data says (control characters escaped), in prose and in code."""
    from gezelctl.plan.units import printable

    for escape in (prose, code):
        rows = PARSER.parse(f"| a |\n|---|\n| {escape(text)} |\n")
        cells = [t for t in rows if t.type == "inline"][1].children or []
        seen = "".join(child.content for child in cells if child.type != "html_inline")
        assert seen.replace("\u200b", "").strip() == printable(text).strip()


@given(lines=st.lists(hostile, max_size=4))
def test_a_fence_holds_its_lines(lines: list[str]) -> None:
    tokens = PARSER.parse("\n".join([*fence(lines, "diff"), "", "after"]))
    assert [t.type for t in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert tokens[0].content.count("\n") == len(lines)


@given(text=hostile)
def test_a_marker_comment_cannot_be_closed(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._%-]*", comment(text))
    assert "--" not in comment(text)
    assert not comment(text).startswith("->")


def test_marker_is_the_first_line_and_depends_on_stack_and_host_only() -> None:
    first = render_markdown(planmake.FIRST).splitlines()[0]
    assert first == "<!-- gezelctl:plan stack=lab host=lab-gpu-03 -->"
    assert render_markdown(planmake.BLOCKED).splitlines()[0] == first


def test_the_time_of_a_live_look_is_not_in_the_comment() -> None:
    later = replace(planmake.FIRST, against=Against(kind="live", seen="2027-05-05T05:05:05Z"), serial=99)
    assert render_markdown(later) == render_markdown(planmake.FIRST)


def test_the_age_of_a_snapshot_is_not_in_the_comment() -> None:
    older = replace(planmake.PRUNED, against=replace(planmake.SNAPSHOT, age_s=999_999))
    assert render_markdown(older) == render_markdown(planmake.PRUNED)


def many(count: int) -> Plan:
    def with_fields(index: int) -> Change:
        long = Field(path="chatTemplate", before="a" * index * 10, after="b" * index * 10)
        return replace(planmake.restart(f"server-{index:03}"), fields=(long,))

    return planmake.plan(*(with_fields(i) for i in range(count)))


def test_details_go_first_and_the_largest_of_them() -> None:
    plan = many(40)
    whole = render_markdown(plan)
    limited = render_markdown(plan, max_chars=len(whole) - 100)
    assert "the details of 1 change." in limited
    assert "! server.server-039 (restart)" not in limited
    assert "! server.server-038 (restart)" in limited
    assert limited.count("\n| `-/+` |") == 40


@pytest.mark.parametrize("limit", [60_000, 30_000, 8_000, 5_000])
def test_the_limit_is_kept_and_what_went_is_said(limit: int) -> None:
    text = render_markdown(many(100), max_chars=limit)
    assert len(text) <= limit
    assert "**Cut for length:**" in text
    assert "**Restarts:**" in text
    rows = text.count("\n| `-/+` |")
    assert rows == 100 or f"{100 - rows} rows of the table" in text


def test_no_row_is_cut_while_a_detail_stays() -> None:
    plan = many(60)
    for limit in range(9_000, 60_000, 5_000):
        text = render_markdown(plan, max_chars=limit)
        assert text.count("\n| `-/+` |") == 60 or "<details>" not in text


def test_secrets_show_no_value() -> None:
    field = Field(path="apiKey", before="planted", after="planted", sensitive=True, reason="planted")
    text = render_markdown(planmake.plan(replace(planmake.restart(), fields=(field,))))
    assert "apiKey (secret, changed)" in text
    assert "planted" not in text


def test_without_the_old_command_line_only_fields_are_compared() -> None:
    change = replace(planmake.restart(), argv_before=())
    text = render_markdown(planmake.plan(change))
    assert "--parallel" not in text
    assert "+   context" in text

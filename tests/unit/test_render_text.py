"""The terminal view: snapshots of what people read, and what must hold for every plan."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from gezelctl.config.diagnostics import Diagnostic
from gezelctl.engines.types import SecretEnv, Value
from gezelctl.errors import UsageFault
from gezelctl.plan.explain import render_explain
from gezelctl.plan.render_json import seal
from gezelctl.plan.render_text import Palette, render_text
from gezelctl.plan.types import Capacity, Change, Field
from gezelctl.plan.units import count, format_bytes, format_duration, format_pair, format_time, printable
from tests import planmake

SGR = re.compile(r"\x1b\[[0-9;]*m")
hostile = st.text(max_size=30) | st.sampled_from(["\x1b[2J", "a\nb", "a\rb", "\u202eevil", "\x9b31m", "\ud800", "é"])


@pytest.mark.parametrize("name", planmake.PLANS)
def test_text(name: str, snapshot: SnapshotAssertion) -> None:
    assert render_text(planmake.PLANS[name]) == snapshot


def test_text_of_a_saved_plan_names_its_digest(snapshot: SnapshotAssertion) -> None:
    assert render_text(seal(planmake.FIRST)) == snapshot


def test_wide_and_unchanged(snapshot: SnapshotAssertion) -> None:
    assert render_text(planmake.RESTART, show_unchanged=True, wide=True) == snapshot


def test_explain(snapshot: SnapshotAssertion) -> None:
    plan = planmake.explained()
    assert render_explain(plan, "server.qwen3-8b") == snapshot
    assert render_explain(plan, "qwen3-8b") == render_explain(plan, "server.qwen3-8b")
    with pytest.raises(UsageFault) as caught:
        render_explain(plan, "server.qwen3-8")
    assert caught.value.cure == "Did you mean server.qwen3-8b?"


def test_the_addresses_wrap_at_the_width() -> None:
    plan = planmake.plan(*(planmake.create(f"server-number-{n}", 8000 + n) for n in range(40)))
    lines = render_text(plan, width=60).splitlines()
    wrapped = [line for line in lines if line.startswith("          + ")]
    assert len(wrapped) > 10
    assert max(map(len, wrapped)) <= 60
    assert sum(line.count("+ server.") for line in wrapped) == 40


def test_a_finding_that_blocks_a_server_is_told_once() -> None:
    cause = "cuda has no --tempp"
    found = Diagnostic("E0301", cause, cure="Remove it.", place=planmake.place(27), address="server.coder")
    other = Diagnostic("E0301", "cuda has no --other", cure="Remove it.", address="server.coder")
    plan = planmake.plan(msgspec.structs.replace(planmake.blocked(), cause=cause), diagnostics=(found, other))
    text = render_text(plan)
    assert text.count(cause) == 1
    assert f"blocked: {cause} (models.yaml:27, E0301)" in text
    assert "cuda has no --other" in text
    assert "cannot be applied: 1 blocked, 2 errors." in text


def test_what_waits_for_something_blocked_only_names_it() -> None:
    payload = msgspec.structs.replace(planmake.blocked(), address="payload.llama-cpp.x", cause="/x does not exist")
    server = msgspec.structs.replace(planmake.blocked("x"), cause="payload.llama-cpp.x is blocked: /x does not exist")
    text = render_text(planmake.plan(payload, server))
    assert text.count("/x does not exist") == 1
    assert re.search(r"! server\.x +blocked by payload\.llama-cpp\.x$", text, re.MULTILINE)


def test_a_field_of_which_only_the_reason_is_known_shows_no_values() -> None:
    change = msgspec.structs.replace(planmake.restart(), fields=(Field("config.x", reason="content differs"),))
    text = render_text(planmake.plan(change))
    assert "content differs" in text
    assert "not set" not in text


def test_no_changes_is_one_line_that_says_what_was_compared() -> None:
    text = render_text(planmake.NO_CHANGE)
    assert text.count("\n") == 1
    assert "3 servers as wanted" in text
    assert "seen 2026-01-12 14:02:11 UTC" in text
    assert "models.yaml" in text


@pytest.mark.parametrize("name", [n for n in planmake.PLANS if n not in {"no_change", "kept"}])
def test_the_five_questions_are_answered(name: str) -> None:
    text = render_text(planmake.PLANS[name])
    for label in ("Restarts: ", "Download: ", "Fits:     ", "Deletes:  "):
        assert re.search(rf"^{label}\S", text, re.MULTILINE), label


def test_restart_without_known_time_is_not_added_up_as_if_it_were_known() -> None:
    assert "server.coder (unknown time); at least 40 s in all" in render_text(planmake.PRUNED)


def test_fits_says_yes_only_when_memory_and_disk_were_planned() -> None:
    assert "Fits:     yes: " in render_text(planmake.FIRST)
    assert "Fits:     yes: nothing is written to disk; memory GPU 0" in render_text(planmake.RESTART)
    assert "Fits:     nothing is written to disk; memory is not planned" in render_text(planmake.PRUNED)
    assert "Fits:     NO: disk 3.0 of 2.0 GiB" in render_text(planmake.BLOCKED)


@pytest.mark.parametrize("name", planmake.PLANS)
def test_colour_only_adds_escapes(name: str) -> None:
    plan = planmake.PLANS[name]
    colored = render_text(plan, color=Palette())
    assert SGR.sub("", colored) == render_text(plan)


@given(text=hostile, ascii_only=st.booleans())
def test_foreign_text_cannot_steer_the_terminal_or_add_lines(text: str, ascii_only: bool) -> None:
    def with_text(value: str) -> str:
        change = Change(
            address=f"server.{value}",
            action="restart",
            reason="needs_restart",
            cause=value or "x",
            cure=value or "x",
            downtime_s=1,
            fields=(Field(path=f"p{value}", before=value, after=value, origin=value, reason=value or "x"),),
        )
        capacity = Capacity(resource=f"memory:{value}", before=0, after=1, limit=2, fits=False)
        plan = planmake.plan(change, planmake.noop(value), capacity=(capacity,), host=value, stack=value)
        return render_text(plan, ascii_only=ascii_only, show_unchanged=True, wide=True)

    shown = with_text(text)
    assert shown.count("\n") == with_text("plain").count("\n")
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.isascii() or not ascii_only
    shown.encode()


def test_a_value_of_a_secret_field_is_never_shown() -> None:
    field = Field(path="apiKey", before="planted-old", after="planted-new", sensitive=True, reason="planted-reason")
    change = msgspec.structs.replace(planmake.restart(), fields=(field,))
    assert "planted" not in render_text(planmake.plan(change), wide=True)


def test_credentials_of_a_url_are_not_shown() -> None:
    origin = msgspec.structs.replace(
        planmake.file("a", 1).origin, kind="url", url="https://me:planted@host.example:8443/a.gguf?sig=planted#planted"
    )
    change = planmake.download()
    action = msgspec.structs.replace(change.files[0], file=planmake.file("a", 1, origin=origin))
    text = render_text(planmake.plan(msgspec.structs.replace(change, files=(action,))), wide=True)
    assert "from https://host.example:8443/a.gguf" in text
    assert "planted" not in text


def test_a_new_server_shows_what_it_is_launched_with() -> None:
    change = planmake.create()
    assert change.launch is not None
    values = (Value(name="context", value=4096, origin="server", place=planmake.place(7)),)
    launch = msgspec.structs.replace(
        change.launch, values=values, secret_env=(SecretEnv(name="LLAMA_API_KEY", from_file="/run/key"),)
    )
    text = render_text(planmake.plan(msgspec.structs.replace(change, fields=(), launch=launch)))
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "port 8083 server" in rows
    assert "context 4096 models.yaml:7" in rows
    assert "secret.LLAMA_API_KEY (secret, set)" in rows


def test_long_values_are_cut_unless_wide() -> None:
    field = Field(path="chatTemplate", before="a" * 500, after="b" * 500, place=planmake.place(3))
    plan = planmake.plan(msgspec.structs.replace(planmake.restart(), fields=(field,)))
    narrow = render_text(plan, width=100)
    row = next(line for line in narrow.splitlines() if "chatTemplate" in line)
    assert len(row) <= 100
    assert "b" * 500 in render_text(plan, width=100, wide=True)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1075, "1.0 KiB"),
        (1076, "1.1 KiB"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (1024**3 - 1, "1.0 GiB"),
        (9_019_431_322, "8.4 GiB"),
        (8 * 1024**4, "8192.0 GiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(min_value=0, max_value=1 << 60))
def test_format_bytes_is_within_half_a_tenth(size: int) -> None:
    number, _, unit = format_bytes(size).partition(" ")
    scale = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}[unit]
    if unit == "B":
        assert int(number) == size
        return
    whole, _, tenth = number.partition(".")
    shown = int(whole) * 10 + int(tenth)
    assert abs(shown * scale - size * 10) * 2 <= scale
    assert unit == "GiB" or shown < 10240


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (150, "2 min 30 s"), (3900, "1 h 5 min"), (273_600, "3 d 4 h")],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_small_words() -> None:
    assert count(1, "server") == "1 server"
    assert count(2, "entry", "entries") == "2 entries"
    assert format_pair(planmake.GIB, 2 * planmake.GIB) == "1.0 of 2.0 GiB"
    assert format_pair(5, 2 * planmake.GIB) == "5 B of 2.0 GiB"
    assert format_time("2026-01-12T14:02:11Z") == "2026-01-12 14:02:11 UTC"
    assert format_time("2026-01-12T14:02:11.096Z") == "2026-01-12 14:02:11 UTC"
    assert format_time("yesterday\x1b") == "yesterday\\x1b"
    assert printable("é\u202e\n", ascii_only=True) == "\\xe9\\u202e\\n"

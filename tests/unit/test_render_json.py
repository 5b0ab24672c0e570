"""The plan as data: round trip, named errors, seal, and a digest that covers what apply does and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gezelctl.engines.types import LaunchSpec, Value
from gezelctl.errors import ExitCode, GezelctlError, RefusedError, StalePlan, UsageFault
from gezelctl.plan.render_json import plan_digest, plan_from_json, plan_json, plan_names, plan_yaml, seal, verify
from gezelctl.plan.render_markdown import render_markdown
from gezelctl.plan.render_text import render_text
from gezelctl.plan.types import Change, Field
from tests import planmake
from tests.plancase import CASES, PlanCase

replace = msgspec.structs.replace


@pytest.mark.parametrize("name", planmake.PLANS)
@pytest.mark.parametrize("pretty", [True, False])
def test_round_trip(name: str, pretty: bool) -> None:
    plan = seal(planmake.PLANS[name])
    text = plan_json(plan, pretty)
    again = plan_from_json(text)
    assert again == plan
    assert plan_json(again, pretty) == text
    verify(again)


def test_yaml_says_the_same_as_json() -> None:
    assert yaml.safe_load(plan_yaml(planmake.FIRST)) == json.loads(plan_json(planmake.FIRST))


def test_names_are_addresses_in_order() -> None:
    assert plan_names(planmake.FIRST) == "payload.llama-cpp.embed-small\nserver.embed-small\n"
    assert plan_names(planmake.NO_CHANGE) == ""
    assert plan_names(planmake.NO_CHANGE, show_unchanged=True).count("\n") == 3


def test_unknown_keys_of_a_later_minor_are_ignored() -> None:
    document = json.loads(plan_json(planmake.FIRST)) | {"formatVersion": "1.7", "invented": [1]}
    document["changes"][0]["invented"] = {}
    assert plan_from_json(json.dumps(document)).changes == planmake.FIRST.changes


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("", UsageFault, "PLAN_BROKEN"),
        ("{", UsageFault, "PLAN_BROKEN"),
        (b"\xff\xfe", UsageFault, "PLAN_BROKEN"),
        ("[" * 100_000, UsageFault, "PLAN_BROKEN"),
        ("[]", UsageFault, "NOT_A_PLAN"),
        ('{"kind": "Snapshot", "formatVersion": "1.0"}', UsageFault, "NOT_A_PLAN"),
        ('{"kind": "Plan", "formatVersion": "2.0"}', StalePlan, "PLAN_OTHER_MAJOR"),
        ('{"kind": "Plan"}', StalePlan, "PLAN_OTHER_MAJOR"),
        ('{"kind": "Plan", "formatVersion": "1.0"}', UsageFault, "PLAN_BROKEN"),
    ],
)
def test_named_errors(text: str | bytes, kind: type[GezelctlError], code: str) -> None:
    with pytest.raises(kind) as caught:
        plan_from_json(text, name="plan.json")
    assert caught.value.code == code
    assert caught.value.message.startswith("plan.json ")
    assert caught.value.cure


def test_a_wrong_type_is_named_with_its_place() -> None:
    document = json.loads(plan_json(planmake.FIRST))
    document["changes"][0]["downtimeS"] = "soon"
    with pytest.raises(UsageFault, match=r"\$\.changes\[0\]\.downtimeS"):
        plan_from_json(json.dumps(document))


def test_a_plan_that_was_only_printed_is_refused() -> None:
    with pytest.raises(RefusedError) as caught:
        verify(planmake.FIRST)
    assert caught.value.exit_code == ExitCode.REFUSED


@given(data=st.data())
def test_any_edit_of_a_saved_plan_is_seen(data: st.DataObject) -> None:
    document = json.loads(plan_json(seal(planmake.RESTART)))
    holder, key = data.draw(st.sampled_from(list(_leaves(document))))
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = value + data.draw(st.integers(1, 9))
    else:
        holder[key] = f"{value}x"
    try:
        edited = plan_from_json(json.dumps(document))
    except (UsageFault, StalePlan):
        return
    with pytest.raises((StalePlan, RefusedError)):
        verify(edited)


def _leaves(node: Any) -> Any:
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from _leaves(value)
        elif value is not None and key != "formatVersion":
            yield node, key


def _launched(change: Change, **more: Any) -> Change:
    assert change.launch is not None
    return replace(change, launch=replace(change.launch, **more))


BASE = planmake.restart()
SAME: dict[str, Change] = {
    "downtime": replace(BASE, downtime_s=7),
    "cause": replace(BASE, cause="in other words"),
    "memory": replace(BASE, memory_after_bytes=1, memory_before_bytes=2),
    "observed": replace(BASE, observed_fingerprint="00"),
    "old value": replace(BASE, fields=tuple(replace(f, before="other", drift=not f.drift) for f in BASE.fields)),
    "place": replace(BASE, fields=tuple(replace(f, place=planmake.place(99)) for f in BASE.fields)),
    "field order": replace(BASE, fields=BASE.fields[::-1]),
    "named values": _launched(BASE, values=(Value(name="context", value=1, origin="server"),)),
}
OTHER: dict[str, Change] = {
    "address": replace(BASE, address="server.other"),
    "action": replace(BASE, action="create"),
    "new value": replace(BASE, fields=(replace(BASE.fields[1], after=16385), *BASE.fields[2:])),
    "secret": replace(BASE, fields=(replace(BASE.fields[0], reason="removed"), *BASE.fields[1:])),
    "argv": _launched(BASE, argv=("--model", "x")),
    "env": _launched(BASE, env={"CUDA_VISIBLE_DEVICES": "1"}),
    "engine build": _launched(BASE, engine_digest="other"),
    "payload": _launched(BASE, payload={"a.gguf": "00"}),
}


@pytest.mark.parametrize("what", SAME)
def test_digest_ignores(what: str) -> None:
    assert plan_digest([SAME[what]]) == plan_digest([BASE])


@pytest.mark.parametrize("what", OTHER)
def test_digest_covers(what: str) -> None:
    assert plan_digest([OTHER[what]]) != plan_digest([BASE])


def test_digest_of_files_is_over_their_bytes_not_over_how_they_come() -> None:
    change = planmake.download()
    linked = replace(change, files=tuple(replace(f, how="link", source="/x") for f in change.files))
    other = replace(change.files[0], file=replace(change.files[0].file, sha256="ff" * 32))
    assert plan_digest([linked]) == plan_digest([change])
    assert plan_digest([replace(change, files=(other, change.files[1]))]) != plan_digest([change])


def test_digest_ignores_order_and_what_apply_does_not_act_on() -> None:
    changes = [planmake.download(), planmake.create(), planmake.restart()]
    more = [planmake.noop("a"), *changes[::-1], planmake.kept()]
    assert plan_digest(more) == plan_digest(changes)
    assert plan_digest(changes).startswith("sha256:")


def test_every_field_of_a_launch_is_covered_but_the_named_values() -> None:
    """A field that is added to LaunchSpec later is in the digest unless someone decides otherwise here."""
    covered = {f.name for f in msgspec.structs.fields(LaunchSpec)} - {"values"}
    launch = planmake.launch("a", 1)
    for name in covered:
        kind = type(getattr(launch, name))
        changed: Any = {str: "zz", int: 987, dict: {"z": "z"}, tuple: ("z",)}.get(kind)
        if changed is None or name in {"secret_env", "config_files"}:
            continue
        edited = replace(BASE, launch=replace(launch, **{name: changed}))
        assert plan_digest([edited]) != plan_digest([replace(BASE, launch=launch)]), name


def test_names_that_are_not_utf8_do_not_break_the_json() -> None:
    change = replace(
        planmake.blocked(), cause="held by pid 9 (bad\udcffname)", fields=(Field(path="a", after="\udcfe"),)
    )
    plan = seal(planmake.plan(change))
    again = plan_from_json(plan_json(plan))
    verify(again)
    assert again.changes[0].cause == "held by pid 9 (bad\\udcffname)"


def test_a_signed_address_is_in_no_rendering(tmp_path: Path) -> None:
    _, plan, _ = next(PlanCase(CASES / "disk-full.yaml").plans(tmp_path))
    signed = "https://user:pass@models.lab.example/big.gguf?X-Amz-Signature=SECRET123#frag"
    action = plan.changes[0].files[0]
    file = replace(action.file, origin=replace(action.file.origin, url=signed))
    change = replace(plan.changes[0], files=(replace(action, file=file),))
    told = replace(plan, changes=(change, *plan.changes[1:]))
    for text in (plan_json(told), plan_yaml(told), render_text(told), render_markdown(told), plan_json(seal(told))):
        assert not [secret for secret in ("SECRET123", "pass@") if secret in text]
    assert "https://models.lab.example/big.gguf" in plan_json(told)
    verify(plan_from_json(plan_json(seal(told))))

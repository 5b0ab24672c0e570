"""Values that llama-server takes wrongly, one by one: each is refused, or told, before anything starts.

Measured on b11434: it aborts on some, runs with nonsense on others, and says nothing about most.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gezelctl.config.diagnostics import InvalidConfig
from gezelctl.config.loader import load_models
from gezelctl.config.model import Spec
from gezelctl.engines.launch import render
from gezelctl.errors import GgufError
from gezelctl.gguf.numbers import check_numbers
from gezelctl.gguf.reader import read_summary
from gezelctl.gguf.types import GgufSummary
from tests import ggufmake as make
from tests.bench.memory_runs import Measurements
from tests.launchmake import gguf, request
from tests.plannermake import answer, host, probe, question
from tests.serving import free_port

SERVER: dict[str, Any] = {"name": "chat", "port": 8081, "model": "m", "backend": "cpu"}


def loaded(tmp_path: Path, **fields: Any) -> list[str]:
    """The codes of what loading a file with such a server finds."""
    document = {
        "apiVersion": "gezelctl/v1",
        "stack": "lab",
        "backends": {"cpu": {"engine": "llama-cpp", "embedded": True}},
        "models": [SERVER | fields],
    }
    path = tmp_path / "models.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    try:
        load_models([str(path)])
    except InvalidConfig as error:
        return [found.code for found in error.diagnostics]
    return []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", 99999),
        ("port", 65536),
        ("port", 0),
        ("port", -1),
        ("context", -5),
        ("context", 0),
        ("slots", -2),
        ("slots", 0),
        ("slots", 257),
        ("engineOptions", {"batchSize": 0}),
        ("engineOptions", {"ubatchSize": -1}),
        ("engineOptions", {"threads": 0}),
        ("engineOptions", {"threadsBatch": -4}),
        ("engineOptions", {"cacheRamMib": -5}),
        ("engineOptions", {"nGpuLayers": -2}),
        ("engineOptions", {"nCpuMoe": -1}),
        ("engineOptions", {"mainGpu": -1}),
        ("engineOptions", {"cacheReuse": -1}),
        ("engineOptions", {"reasoningBudget": -2}),
        ("engineOptions", {"tensorSplit": "3;1"}),
        ("engineOptions", {"device": "CUDA0, CUDA1"}),
        ("engineOptions", {"rpc": "10.0.0.1"}),
        ("spec", {"type": "draft-simple", "nMax": 0}),
        ("spec", {"type": "draft-simple", "nMin": -1}),
        ("startTimeoutS", 0),
    ],
)
def test_a_value_that_no_engine_takes_is_refused_when_the_file_is_read(field: str, value: Any, tmp_path: Path) -> None:
    assert loaded(tmp_path) == []
    assert loaded(tmp_path, **{field: value}) != []


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ({"port": 99999}, "E0303"),
        ({"parallel": -2}, "E0303"),
        ({"ctx-size": -5}, "E0303"),
        ({"model": "/x.gguf"}, "E0303"),
        ({"hf": "lab/none"}, "E0303"),
        ({"md": "/d.gguf"}, "E0303"),
        ({"spec-type": "draft-simple"}, "E0303"),
        ({"models-preset": "/nope"}, "E0303"),
        ({"log-file": "/nonexistent/x"}, "E0303"),
        ({"alias": "a,b"}, "E0303"),
        ({"host": "a,b"}, "E0303"),
        ({"chat-template": "gemma"}, "E0303"),
        ({"chat-template-file": "/x.jinja"}, "E0303"),
        ({"batch-size": 0}, "E0304"),
        ({"cache-ram": -5}, "E0304"),
        ({"threads": 0}, "E0304"),
        ({"poll": 101}, "E0304"),
        ({"prio": 4}, "E0304"),
        ({"n-predict": -7}, "E0304"),
        ({"lora-scaled": "/a,b.gguf:1"}, "E0304"),
        ({"lora-scaled": "/a:b.gguf:1"}, "E0304"),
        ({"control-vector-scaled": "/v.gguf"}, "E0304"),
        ({"main-gpu": -1}, "E0304"),
        ({"cd": 512}, "E0301"),
        ({"ctx-size-draft": 512}, "E0301"),
    ],
)
def test_extra_arguments_are_held_to_the_same_rules(extra: dict[str, Any], code: str) -> None:
    found = render(request(server={"extra_args": extra}))
    assert found.spec is None
    assert code in {d.code for d in found.diagnostics}


@pytest.mark.parametrize("name", ["zzz", "gemma", "llama3"])
def test_the_name_of_a_template_is_no_template(name: str) -> None:
    """With --jinja every prompt would read `gemma`; chatml alone is known by name."""
    assert [d.code for d in render(request(server={"engine_options": {"chatTemplate": name}})).diagnostics] == ["E0313"]
    assert render(request(server={"engine_options": {"chatTemplate": "chatml"}})).spec is not None
    old_way = {"engine_options": {"chatTemplate": "gemma"}, "extra_args": {"no-jinja": True}}
    assert render(request(server=old_way)).spec is not None


@pytest.mark.engine("llama-server", "smollm2")
@pytest.mark.parametrize(("name", "literal"), [("gemma", True), ("chatml", False)])
def test_what_the_engine_makes_of_a_template_name(name: str, literal: bool, llama_server: Path, smollm2: Path) -> None:
    port = free_port()
    argv = [str(llama_server), "-m", str(smollm2), "-c", "256", "--port", str(port), "--chat-template", name]
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}]}).encode()
    with Popen([*argv, "--offline"], stdout=DEVNULL, stderr=DEVNULL) as process:
        try:
            prompt = _asked(f"http://127.0.0.1:{port}/apply-template", body)
        finally:
            process.terminate()
    assert (prompt == name) is literal
    assert ("Hello" in prompt) is not literal


def _asked(url: str, body: bytes) -> str:
    for _ in range(150):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=30) as answered:
                return str(json.load(answered)["prompt"])
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError(f"{url} does not answer")


@pytest.mark.parametrize("draft", ["draft-eagle3", "draft-dflash", "draft-simple"])
def test_an_algorithm_that_needs_a_drafter_and_has_none(draft: str) -> None:
    assert {d.code for d in render(request(server={"spec": Spec(type=draft)})).diagnostics} <= {"E0306", "E0302"}
    assert render(request(server={"spec": Spec(type=draft)})).spec is None


def test_a_drafter_without_an_algorithm_is_never_passed() -> None:
    """llama-server loads --model-draft, and dies when it is missing, even where nothing uses it."""
    found = render(request(roles=("draft",)))
    assert found.spec is not None
    assert not [word for word in found.spec.argv if "draft" in word]


def test_a_model_is_always_named_and_no_download_is_asked_for() -> None:
    """Without --model llama-server becomes a router that answers /health with 200."""
    for build in ("b11434", "b10434", "embedded", "ancient"):
        found = render(request(build))
        assert found.spec is not None
        assert found.spec.argv.count("--model") == 1
        assert found.spec.argv.count("--port") == 1
        assert build == "ancient" or "--offline" in found.spec.argv


def test_a_huge_context_never_reaches_the_engine() -> None:
    """On a CPU it would take memory page by page until the kernel ends it."""
    found = answer(question(size=1, gguf=gguf(context_length=1 << 30), server={"context": 200_000_000}), host(64))
    assert found.refusal is not None
    assert found.refusal.field == "context"
    capped = render(request(header=gguf(context_length=8192), server={"context": 200_000_000}))
    assert capped.spec is not None
    assert capped.spec.argv[capped.spec.argv.index("--ctx-size") + 1] == "8192"


def test_one_flag_stands_once_and_the_last_spelling_wins() -> None:
    found = render(request(server={"extra_args": {"temp": 0.1, "temperature": 0.9}, "engine_options": {"threads": 4}}))
    assert found.spec is not None
    assert [word for word in found.spec.argv if word.startswith("--temp")] == ["--temp"]
    assert found.spec.argv[found.spec.argv.index("--temp") + 1] == "0.9"
    assert [d.code for d in found.diagnostics] == ["E0310"]


SUMMARIES: dict[str, GgufSummary] = msgspec.json.decode(
    (Path(__file__).parents[1] / "cases" / "memory" / "measured.json").read_bytes(), type=Measurements
).summaries


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 0),
        ("llama.block_count", 513),
        ("llama.block_count", 1),
        ("llama.block_count", 1 << 31),
        ("llama.embedding_length", 1 << 32),
        ("llama.attention.head_count_kv", -1),
        ("llama.attention.head_count_kv", [8, -8]),
        ("llama.context_length", 1 << 62),
    ],
)
def test_a_header_whose_numbers_no_model_has(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    typed = (make.I64, value) if isinstance(value, int) else (make.ARRAY, (make.I64, value))
    path.write_bytes(make.gguf_bytes(make.LLAMA | {key: typed}, make.LLAMA_TENSORS))
    with pytest.raises(GgufError) as caught:
        read_summary(path)
    assert caught.value.code == "GGUF_CORRUPT"
    assert key in str(caught.value)


def test_a_header_without_a_layer_count_is_planned_for_and_not_launched() -> None:
    bare = gguf(block_count=0)
    assert answer(question(gguf=bare), host(64)).estimate is not None
    assert [d.code for d in render(request(header=bare)).diagnostics] == ["E0314"]


def test_every_measured_header_passes() -> None:
    for name, summary in SUMMARIES.items():
        check_numbers(name, summary)


NONSENSE = st.sampled_from([0, 1, -1, 3, 513, 1 << 31, 1 << 63, 0.5, "x", True])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_header_of_nonsense_is_refused_or_planned_for(data: st.DataObject) -> None:
    """Never a fault of the planner, and never memory that grows with a number in a file."""
    name = data.draw(st.sampled_from(sorted(SUMMARIES)))
    summary = SUMMARIES[name]
    numbers = sorted(key for key, value in summary.values.items() if isinstance(value, int | float))
    changed = data.draw(st.dictionaries(st.sampled_from(numbers), NONSENSE, min_size=1, max_size=2))
    arrays = dict(summary.arrays)
    for key in data.draw(st.lists(st.sampled_from(sorted(arrays)), max_size=1)) if arrays else ():
        arrays[key] = data.draw(st.sampled_from([(), (0,), (1, 2, 3), (*arrays[key], 9), (-5,) * 50]))
    damaged = msgspec.structs.replace(summary, values={**summary.values, **changed}, arrays=arrays)
    try:
        check_numbers(name, damaged)
    except GgufError:
        return
    accelerator = data.draw(st.sampled_from(["cuda", "cpu"]))
    found = answer(question(gguf=damaged, probe=probe(24), accelerator=accelerator), host(64, 24))
    assert (found.refusal is None) == (found.estimate is not None)

"""The command line of llama-server: right for the build at hand, with every value explained."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from gezelctl.config.model import SecretRef, Spec
from gezelctl.engines.launch import LaunchRequest, Rendered, render
from gezelctl.engines.llama_cpp.extra import RESERVED
from gezelctl.engines.llama_cpp.flags import FlagSet, load_mode_of, load_mode_tokens
from gezelctl.engines.types import LaunchSpec, Value
from gezelctl.observe.types import Device, EngineProbe
from tests.launchmake import gguf, probe, request

BUILDS = ("b11434", "b10434", "embedded", "ancient")

CASES: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "two slots of 16384": {"server": {"context": 16384, "slots": 2, "alias": "chat"}},
    "gemma": {"header": gguf("gemma3"), "model": {"id": "gemma-3-4b-q4"}},
    "all layers, experts on the host, dio": {
        "server": {"engine_options": {"nGpuLayers": -1, "nCpuMoe": 12, "loadMode": "dio", "threads": 8}}
    },
    "mlock": {"server": {"engine_options": {"loadMode": "mlock"}}},
    "one pool": {"server": {"slots": 3, "context": 4096, "engine_options": {"kvUnified": True}}},
    "vision with a budget": {
        "roles": ("mmproj",), "server": {"vision": True}, "model": {"thinking_budget": 4096},
    },
    "catalog tuning": {
        "model": {"engine_options": {"contextSize": 12000, "cacheReuse": 0, "ubatchSize": 1024, "swaFull": True}}
    },
    "backend under server": {
        "backend": {"engineOptions": {"threads": 4, "batchSize": 1024}, "extraArgs": {"temp": 0.1, "top-k": 20}},
        "server": {"engine_options": {"threads": 6}, "extra_args": {"temp": 0.6, "no_webui": True}},
    },
    "own drafter": {"roles": ("draft",), "server": {"spec": Spec(type="draft-simple", n_max=8, n_min=2)}},
    "ngram": {"server": {"spec": Spec(type="ngram-mod", n_max=32)}},
    "flash attention off": {"server": {"engine_options": {"flashAttn": "off"}}},
    "odd head size": {"header": gguf(embedding_length=320)},
    "embeddings": {"server": {"engine_options": {"embeddings": True}, "extra_args": {"pooling": "mean"}}},
}  # fmt: skip


def rendered(build: str, **case: Any) -> LaunchSpec:
    result = render(request(build, **case))
    assert result.spec is not None, result.diagnostics
    return result.spec


def codes(result: Rendered) -> list[str]:
    return [d.code for d in result.diagnostics]


def value_after(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", CASES)
def test_argv(name: str, build: str, snapshot: SnapshotAssertion) -> None:
    result = render(request(build, **CASES[name]))
    words = " ".join(result.spec.argv).replace(" -", "\n-") if result.spec else "(refused)"
    findings = [f"{d.severity} {d.code} {d.summary} | {d.cure}" for d in result.diagnostics]
    assert "\n".join([words, *findings, *(f"note: {n}" for n in result.notes)]) == snapshot


def test_golden_dense_two_slots() -> None:
    """Reference behaviour 19.1, with alias, pool and log level said explicitly."""
    argv = rendered("b11434", header=gguf(context_length=131072), server={"context": 65536, "slots": 2}).argv
    model = "/store/models/llama-cpp/tiny-q4/w.gguf"
    assert argv == (
        "--model", model, "--host", "127.0.0.1", "--port", "8081", "--alias", "tiny-q4",
        "--ctx-size", "131072", "--parallel", "2", "--no-kv-unified", "--slot-save-path", "/state/lab/slots/chat",
        "--cache-type-k", "q8_0", "--cache-type-v", "q8_0", "--flash-attn", "on", "--cache-reuse", "256",
        "--offline", "--log-verbosity", "4",
    )  # fmt: skip


def test_every_value_has_its_origin() -> None:
    spec = rendered("b11434", **CASES["backend under server"])
    values = {v.name: v for v in spec.values}
    assert (values["threads"].value, values["threads"].origin) == (6, "server")
    assert (values["batchSize"].value, values["batchSize"].origin) == (1024, "backend")
    assert values["context"].origin == "planner"
    assert values["context"].reason
    assert value_after(spec.argv, "--temp") == "0.6"
    assert value_after(spec.argv, "--top-k") == "20"
    assert values["extraArgs.temp"].origin == "server"


def test_planner_values_stand_below_what_is_written() -> None:
    planned = (
        Value("context", 4096, "planner", "fits"),
        Value("slots", 3, "planner", "fits"),
        Value("nGpuLayers", 7, "planner"),
    )
    spec = rendered("b11434", planned=planned, server={"slots": 2})
    assert value_after(spec.argv, "--ctx-size") == "8192"
    assert value_after(spec.argv, "--parallel") == "2"
    assert value_after(spec.argv, "--n-gpu-layers") == "7"


@pytest.mark.parametrize(
    ("build", "mode", "expected"),
    [
        ("b11434", "mlock", ("--load-mode", "mlock")),
        ("b10434", "none", ("--load-mode", "none")),
        ("ancient", "mlock", ("--mlock",)),
        ("ancient", "none", ("--no-mmap",)),
        ("ancient", "mmap", ("--mmap",)),
        ("ancient", "mmap+mlock", ("--mmap", "--mlock")),
        ("ancient", "dio", ("--direct-io",)),
        ("ancient", "auto", ()),
    ],
)
def test_load_modes_of_old_and_new_builds(build: str, mode: str, expected: tuple[str, ...]) -> None:
    assert load_mode_tokens(FlagSet(probe(build)), mode) == expected
    if build == "ancient":
        assert load_mode_of(expected) == mode


PAIRS = [
    ("mlock", True, ("--load-mode", "mlock"), ("--mlock",)),
    ("no-mmap", True, ("--load-mode", "none"), ("--no-mmap",)),
    ("mmap", True, ("--load-mode", "mmap"), ("--mmap",)),
    ("dio", True, ("--load-mode", "dio"), ("-dio",)),
    ("draft-p-min", 0.5, ("--spec-draft-p-min", "0.5"), None),
    ("cpent", 64, ("--checkpoint-min-step", "64"), ("--checkpoint-every-n-tokens", "64")),
    ("checkpoint-min-step", 64, ("--checkpoint-min-step", "64"), ("--checkpoint-every-n-tokens", "64")),
    ("ngld", 3, ("--spec-draft-ngl", "3"), ("--n-gpu-layers-draft", "3")),
    ("spec-draft-ngl", 3, ("--spec-draft-ngl", "3"), ("--n-gpu-layers-draft", "3")),
    ("swa-checkpoints", 4, ("--ctx-checkpoints", "4"), ("--ctx-checkpoints", "4")),
    ("no-webui", True, ("--no-ui",), ("--no-webui",)),
    ("no-ui", True, ("--no-ui",), ("--no-webui",)),
]


@pytest.mark.parametrize(("key", "value", "new", "old"), PAIRS, ids=[p[0] for p in PAIRS])
def test_a_flag_written_for_one_build_renders_for_the_other(
    key: str, value: bool | float, new: tuple[str, ...], old: tuple[str, ...] | None
) -> None:
    for build, expected in (("b11434", new), ("ancient", old)):
        result = render(request(build, server={"extra_args": {key: value}}))
        if expected is None:
            assert codes(result) == ["E0301"]
        else:
            assert result.spec is not None, result.diagnostics
            at = result.spec.argv.index(expected[0])
            assert result.spec.argv[at : at + len(expected)] == expected


@pytest.mark.parametrize(
    ("build", "flags"),
    [
        ("b11434", ("--spec-draft-model", "--spec-draft-n-max", "--spec-draft-n-min")),
        ("ancient", ("--model-draft", "--draft-max", "--draft-min")),
    ],
)
def test_drafter_flags_by_build(build: str, flags: tuple[str, ...]) -> None:
    argv = rendered(build, **CASES["own drafter"]).argv
    assert [value_after(argv, flag) for flag in flags] == ["/store/models/llama-cpp/tiny-q4/draft.gguf", "8", "2"]


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("unknown flag", "E0301", {"server": {"extra_args": {"flash-atn": "on"}}}),
    ("flag of another build", "E0301", {"server": {"engine_options": {"device": "CUDA0"}}, "build": "embedded"}),
    ("word outside the domain", "E0302", {"server": {"extra_args": {"numa": "sideways"}}}),
    ("not a number", "E0302", {"server": {"extra_args": {"top-k": "many"}}}),
    ("switch with a value", "E0302", {"server": {"extra_args": {"check-tensors": 3}}}),
    ("value missing", "E0302", {"server": {"extra_args": {"top-k": True}}}),
    ("one value of two", "E0302", {"server": {"extra_args": {"control-vector-layer-range": "3"}}}),
    ("scale missing", "E0304", {"server": {"extra_args": {"lora-scaled": "/a.gguf"}}}),
    ("poll above 100", "E0304", {"server": {"extra_args": {"poll": 101}}}),
    ("no threads", "E0304", {"server": {"extra_args": {"threads": 0}}}),
    ("batch 0", "E0304", {"model": {"engine_options": {"batchSize": 0}}}),
    ("cache-ram -5", "E0304", {"model": {"engine_options": {"cacheRamMib": -5}}}),
    ("GPU 3 of none", "E0304", {"server": {"engine_options": {"mainGpu": 3}}}),
    ("device that is not there", "E0302", {"server": {"engine_options": {"device": "CUDA0"}}}),
    ("quantised V without flash attention", "E0305",
     {"server": {"kv_cache": "q8_0", "engine_options": {"flashAttn": "off"}}}),
    ("block does not divide the head", "E0305", {"server": {"kv_cache": "q4_0"}, "header": gguf(embedding_length=320)}),
    ("comma in alias", "E0304", {"server": {"alias": "a,b"}}),
    ("comma in host", "E0304", {"server": {"host": "127.0.0.1,::1"}}),
    ("Unix socket", "E0311", {"server": {"host": "/run/x.sock"}}),
    ("n-max below n-min", "E0304",
     {"roles": ("draft",), "server": {"spec": Spec(type="draft-simple", n_max=2, n_min=3)}}),
    ("eagle3 without a drafter", "E0306", {"server": {"spec": Spec(type="draft-eagle3")}}),
    ("none mixed with a type", "E0306", {"roles": ("draft",), "server": {"spec": Spec(type="none,draft-simple")}}),
    ("two drafters", "E0306", {"roles": ("draft",), "server": {"spec": Spec(type="draft-simple,draft-mtp")}}),
    ("a drafter that nothing uses", "E0306", {"server": {"spec": Spec(type="ngram-mod", draft_model="/d.gguf")}}),
    ("unknown speculative type", "E0302", {"server": {"spec": Spec(type="draft-psychic", n_max=2)}}),
    ("MTP without MTP layers", "E0306", {"server": {"spec": Spec(type="draft-mtp")}}),
    ("drafter by unknown id", "E0306", {"server": {"spec": Spec(type="draft-simple", draft_model="other")}}),
    ("projector that the model lacks", "E0307", {"server": {"vision": True}}),
    ("environment behind the plan", "E0308", {"server": {"env": {"LLAMA_ARG_CTX_SIZE": "4"}}}),
    ("secret in env", "E0308", {"backend": {"env": {"LLAMA_API_KEY": "x"}}}),
    ("option of MLX", "E0312", {"server": {"engine_options": {"maxTokens": 5}}}),
    ("contradicting load switches", "E0304", {"server": {"extra_args": {"mmap": True, "no-mmap": True}}}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code", "case"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_the_engine_would_take_wrongly_is_refused(
    name: str, code: str, case: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    case = dict(case)
    result = render(request(case.pop("build", "b11434"), **case))
    assert result.spec is None
    assert codes(result) == [code]
    (finding,) = result.diagnostics
    assert f"{finding.summary}\n{finding.cure}" == snapshot


@pytest.mark.parametrize("flag", sorted(RESERVED))
@pytest.mark.parametrize("build", ["b11434", "b10434"])
def test_reserved_flags_are_refused_under_every_spelling(flag: str, build: str) -> None:
    match = FlagSet(probe(build)).find(flag)
    for name in (flag, *((*match.flag.names, *match.flag.negations) if match else ())):
        result = render(request(build, server={"extra_args": {name.lstrip("-").replace("-", "_"): "1"}}))
        assert "E0303" in codes(result), name


def test_an_unknown_flag_names_the_nearest_and_the_build() -> None:
    (finding,) = render(request(server={"extra_args": {"cache-resue": 3}})).diagnostics
    assert "b11434" in finding.summary
    assert "--cache-reuse" in finding.cure


def test_a_removed_flag_says_what_the_build_says() -> None:
    (finding,) = render(request(server={"extra_args": {"spec-ngram-size-n": 3}})).diagnostics
    assert finding.code == "E0301"
    assert "--spec-ngram-mod-n-match" in finding.cure


def test_context_above_training_is_capped_and_said() -> None:
    result = render(request(server={"context": 65536}))
    assert codes(result) == ["E0309"]
    assert result.spec is not None
    assert value_after(result.spec.argv, "--ctx-size") == "32768"
    assert result.spec.expect.context_tokens == 32768


@pytest.mark.parametrize(
    ("context", "slots", "unified", "reported"),
    [
        (1000, 1, False, 1024),
        (1024, 2, False, 1024),
        (1500, 2, False, 1536),
        (4096, 3, True, 12288),
        (20000, 2, True, 32768),
    ],
)
def test_expected_context_is_what_the_engine_reports(context: int, slots: int, unified: bool, reported: int) -> None:
    """Measured with b11434: padding to 256, split or one pool, capped at the training context."""
    server = {"context": context, "slots": slots, "engine_options": {"kvUnified": unified}}
    assert rendered("b11434", server=server).expect.context_tokens == reported


def test_the_key_is_a_reference_and_nowhere_else() -> None:
    spec = rendered("b11434", server={"api_key": SecretRef(from_env="CHAT_KEY")})
    assert [(s.name, s.from_env) for s in spec.secret_env] == [("LLAMA_API_KEY", "CHAT_KEY")]
    assert not spec.env
    assert "--api-key" not in spec.argv


def test_an_archive_that_is_not_unpacked_gets_the_newest_names() -> None:
    pending = EngineProbe(backend="cuda", engine="llama-cpp", program="", pending=True)
    result = render(request(probe=pending, server={"engine_options": {"loadMode": "mlock", "nGpuLayers": -1}}))
    assert result.spec is not None
    assert value_after(result.spec.argv, "--load-mode") == "mlock"
    assert value_after(result.spec.argv, "--n-gpu-layers") == "all"
    assert any("unpacked" in note for note in result.notes)


def test_a_broken_build_is_one_finding() -> None:
    broken = EngineProbe(
        backend="cpu", engine="llama-cpp", program="/x", error="ENGINE_MISSING", message="/x is not there\nset binary"
    )
    result = render(request(probe=broken))
    assert [(d.code, d.summary, d.cure) for d in result.diagnostics] == [("E0300", "/x is not there", "set binary")]


def test_a_thinking_budget_of_the_catalog_does_not_block_an_older_build() -> None:
    flags = tuple(f for f in probe("b11434").flags if "--reasoning-budget" not in f.names)
    older = EngineProbe(backend="c", engine="llama-cpp", program="/p", flags=flags)
    result = render(request(probe=older, model={"thinking_budget": 64}))
    assert result.spec is not None
    assert any("64 tokens" in note for note in result.notes)
    (finding,) = render(request(probe=older, server={"engine_options": {"reasoningBudget": 64}})).diagnostics
    assert finding.code == "E0301"


def test_devices_that_are_there_are_taken() -> None:
    gpus = tuple(Device(f"CUDA{i}", "card", 1 << 34, 1 << 34) for i in range(2))
    two = EngineProbe(backend="c", engine="llama-cpp", program="/p", flags=probe("b11434").flags, devices=gpus)
    argv = rendered("b11434", probe=two, server={"engine_options": {"device": "CUDA1", "mainGpu": 1}}).argv
    assert value_after(argv, "--device") == "CUDA1"


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "nGpuLayers": st.integers(-1, 99),
        "cpuMoe": st.booleans(),
        "nCpuMoe": st.integers(0, 9),
        "flashAttn": st.sampled_from(["on", "off", "auto"]),
        "cacheReuse": st.integers(0, 512),
        "swaFull": st.booleans(),
        "kvUnified": st.booleans(),
        "kvOffload": st.booleans(),
        "threads": st.integers(1, 64),
        "batchSize": st.integers(1, 4096),
        "loadMode": st.sampled_from(["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]),
        "reasoningBudget": st.integers(-1, 9),
        "metrics": st.booleans(),
        "chatTemplate": st.text(min_size=1, max_size=9),
    },
)
EXTRAS = st.dictionaries(
    st.sampled_from(["temp", "--top-k", "threads", "batch_size", "cache-reuse", "no-webui", "mlock", "no-mmap"]),
    st.one_of(st.booleans(), st.integers(-3, 9), st.sampled_from(["on", "off"])),
    max_size=4,
)


SERVERS = st.fixed_dictionaries(
    {
        "context": st.integers(1, 40000),
        "slots": st.integers(1, 16),
        "engine_options": OPTIONS,
        "extra_args": EXTRAS,
        "spec": st.sampled_from(
            [None, Spec(type="draft-simple", n_max=4), Spec(type="ngram-mod"), Spec(type="ngram-cache")]
        ),
    }
)


@given(build=st.sampled_from(BUILDS), server=SERVERS)
def test_properties_of_every_command_line(build: str, server: dict[str, Any]) -> None:
    wanted: LaunchRequest = request(build, roles=("draft",), server=server)
    result = render(wanted)
    assert result == render(wanted)
    assert (result.spec is None) == any(d.severity == "error" for d in result.diagnostics)
    if result.spec is None:
        return
    known = {name: flag for flag in wanted.probe.flags for name in (*flag.names, *flag.negations)}
    argv = list(result.spec.argv[len(wanted.probe.prefix) :])
    idents = []
    while argv:
        flag = known[argv.pop(0)]
        idents.append(flag.names[0])
        del argv[: flag.arity]
    assert len(idents) == len(set(idents))
    total = int(value_after(result.spec.argv, "--ctx-size"))
    assert total == min(server["context"], 32768) * server["slots"]

"""What real engines print about themselves, parsed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from gezelctl.observe.helptext import HelpText, parse_devices, parse_help, parse_version
from gezelctl.observe.types import Flag

CASES = Path(__file__).resolve().parents[1] / "cases" / "observe"
BUILDS = ["b10434", "b11434"]
_MIB = 1024 * 1024


def _help(build: str) -> HelpText:
    return parse_help((CASES / f"llama-server-{build}-help.txt").read_text())


def _find(text: HelpText, name: str) -> Flag:
    return next(flag for flag in text.flags if name in (*flag.names, *flag.negations))


@pytest.mark.parametrize("build", BUILDS)
def test_every_spelling_of_a_help_text_is_known(build: str) -> None:
    text = (CASES / f"llama-server-{build}-help.txt").read_text()
    parsed = parse_help(text)
    heads = [line for line in text.splitlines() if re.match(r"-(?!----)", line)]
    # only what stands before the metavar: the spellings are comma-separated, and the last one ends at a space
    printed = {name for head in heads for name in re.findall(r"(?:^|, +)(--?[A-Za-z][^\s,]*)", head[:120])}
    known = {name for flag in parsed.flags for name in (*flag.names, *flag.negations)} | set(parsed.removed)
    assert printed <= known
    assert len(parsed.flags) + len(set(parsed.removed.values())) == len(heads)


@pytest.mark.parametrize("build", BUILDS)
def test_flags_of_a_build(build: str, snapshot: SnapshotAssertion) -> None:
    lines = []
    for flag in _help(build).flags:
        negations = f" / {' '.join(flag.negations)}" if flag.negations else ""
        facts = [f"arity {flag.arity}", f"values {','.join(flag.values)}" if flag.values else ""]
        facts += [f"default {flag.default}" if flag.default else "", flag.env]
        lines.append(f"{' '.join(flag.names)}{negations}: {'; '.join(fact for fact in facts if fact)}")
    assert "\n".join(lines) == snapshot


def test_what_changed_between_the_builds_shows() -> None:
    old, new = _help("b10434"), _help("b11434")
    old_names = {name for flag in old.flags for name in flag.names}
    new_names = {name for flag in new.flags for name in flag.names}
    assert {"--mlock", "--mmap", "--direct-io", "-dio"} <= old_names - new_names
    assert {"--lazy-mode", "--n-cpu-ffn", "--spec-synth-len"} <= new_names - old_names
    assert (len(old.flags), len(new.flags)) == (243, 251)


def test_a_flag_that_is_listed_only_to_be_refused_is_not_offered() -> None:
    parsed = _help("b11434")
    assert not any("--draft-max" in flag.names for flag in parsed.flags)
    assert parsed.removed["--draft-max"] == "use --spec-draft-n-max or --spec-ngram-mod-n-max"


def test_kinds_of_flags() -> None:
    parsed = _help("b11434")
    assert _find(parsed, "--metrics") == Flag(
        names=("--metrics",), arity=0, default="disabled", env="LLAMA_ARG_ENDPOINT_METRICS"
    )
    pair = _find(parsed, "--no-kv-offload")
    assert (pair.names, pair.negations) == (("-kvo", "--kv-offload"), ("-nkvo", "--no-kv-offload"))
    assert (_find(parsed, "--no-host").names, _find(parsed, "--no-host").negations) == (("--no-host",), ())
    assert _find(parsed, "--control-vector-layer-range").arity == 2
    assert _find(parsed, "--override-tensor").arity == 1
    assert _find(parsed, "--load-mode").values == ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")
    assert _find(parsed, "--flash-attn").values == ("on", "off", "auto")
    assert _find(parsed, "--split-mode").default == "layer"
    assert _find(parsed, "--reasoning-format").values == ("none", "deepseek", "deepseek-legacy", "auto")
    assert "draft-dspark" in _find(parsed, "--spec-type").values
    assert _find(parsed, "--device").values == ()


@pytest.mark.engine("llama-server")
def test_the_stored_help_is_what_the_real_build_prints(llama_server: Path) -> None:
    printed = subprocess.run([llama_server, "--help"], capture_output=True, text=True, check=True).stdout
    assert parse_help(printed) == _help("b11434")


@pytest.mark.engine("embedded")
def test_our_own_help_is_read_like_the_engines() -> None:
    import sys

    command = [sys.executable, "-m", "gezelctl.embedded", "--help"]
    parsed = parse_help(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for name in ("--model", "--ctx-size", "--parallel", "--flash-attn", "--alias"):
        assert _find(parsed, name).arity == 1
    assert _find(parsed, "--kv-unified").negations == ("-no-kvu", "--no-kv-unified")


def test_text_without_options_gives_none() -> None:
    assert parse_help("no such file\n  --looks-like a flag, but is indented\n") == HelpText((), {})
    assert parse_help("") == HelpText((), {})


@pytest.mark.parametrize(
    ("text", "version", "build"),
    [
        ("version: 4589 (eb7cf15a)\nbuilt with cc for x86_64\n", "4589 (eb7cf15a); built with cc for x86_64", 4589),
        ("version: 0.6.0-dev (build 11434, commit abc1234)\n", "0.6.0-dev (build 11434, commit abc1234)", 11434),
        ("ggml_cuda_init: found 1 CUDA devices:\nversion: 0 (unknown)\n", "0 (unknown)", 0),
        ("my server 1.2\nmore\n", "my server 1.2", 0),
        ("", "", 0),
    ],
)
def test_versions(text: str, version: str, build: int) -> None:
    assert parse_version(text) == (version, build)


def test_devices() -> None:
    cuda = parse_devices((CASES / "devices-cuda.txt").read_text())
    assert [(d.id, d.name) for d in cuda] == [("CUDA0", "NVIDIA GeForce RTX 3090"), ("CUDA1", "NVIDIA GB10")]
    assert (cuda[0].total_bytes, cuda[0].free_bytes) == (24124 * _MIB, 23571 * _MIB)
    assert [d.name for d in parse_devices((CASES / "devices-rpc.txt").read_text())] == ["127.0.0.1:50052"]
    assert parse_devices("Available devices:\n  (none)\n") == ()

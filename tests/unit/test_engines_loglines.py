"""Failures are named from real log lines, and lines that only look fatal are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gezelctl.engines.failures import EXITS, LAST_RESORT, RULES
from gezelctl.engines.loglines import bare, classify, degraded

CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "engines" / "loglines.yaml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_named(case: dict[str, Any]) -> None:
    failure = classify(case["lines"], case["exit"], stop_requested=case.get("stop", False))
    assert failure.code == case["code"], failure
    assert failure.retry == case.get("retry", "no")
    assert failure.summary
    assert failure.cure.endswith(".")
    assert failure.line == "" or any(failure.line in line for line in case["lines"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_old_builds_print_no_prefix(case: dict[str, Any]) -> None:
    lines = [bare(line) for line in case["lines"]]
    assert classify(lines, case["exit"], stop_requested=case.get("stop", False)).code == case["code"]


def test_every_class_has_a_case() -> None:
    named = {case["code"] for case in CASES}
    untested = {rule.code for rule in (*RULES, *LAST_RESORT)} | {rule.code for rule in EXITS.values()}
    assert untested - named <= {
        "GGUF_VERSION", "GGUF_CORRUPT", "GRAMMAR", "ASSERTION", "NOT_EXECUTABLE", "ABORTED", "TERMINATED", "MODEL_LOAD",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("gguf_init_from_reader: duplicate key 'general.name' for tensors 0 and 1", "GGUF_CORRUPT"),
        ("gguf_init_from_file: GGUFv1 is no longer supported. please use a more up-to-date version", "GGUF_VERSION"),
        ("parse: failed to parse grammar", "GRAMMAR"),
        ("ggml.c:1: GGML_ASSERT(ctx->mem_buffer != NULL) failed", "OOM_HOST"),
        ("ggml.c:1: GGML_ASSERT(a > b) failed", "ASSERTION"),
        ("common_init_from_params: failed to create context with model 'x'", "MODEL_LOAD"),
        ("llama_init_from_model: model does not support different K (q8_0) and V (f16) cache types", "KV_TYPE"),
        ("clip_init: mismatch between text model (n_embd = 2048) and mmproj (n_embd = 1024)", "WRONG_ROLE"),
    ],
)
def test_single_lines(line: str, code: str) -> None:
    assert classify([line], 1).code == code


def test_the_first_specific_line_wins_over_its_wrappers() -> None:
    lines = [
        "0.00.012.515 E llama_model_load: error loading model: unknown model architecture: 'zlama'",
        "0.00.012.531 E llama_model_load_from_file_impl: failed to load model",
        "0.00.020.916 E gguf_init_from_file: failed to open GGUF file '/models/other.gguf' (No such file or directory)",
    ]
    failure = classify(lines, 1)
    assert failure.code == "ARCH_UNSUPPORTED"
    assert failure.line == "llama_model_load: error loading model: unknown model architecture: 'zlama'"
    assert "'zlama'" in failure.summary


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("W srv: the target and draft vocabs are not compatible", "vocabularies"),
        ("srv load_model: the slot context (20224) exceeds the training context of the model (8192) - capping", "8192"),
        ("llama_model_load: no usable GPU found, --gpu-layers option will be ignored", "CPU"),
        ("srv init: failed to parse chat template (defaulting to chatml)", "chatml"),
    ],
)
def test_silent_losses_are_told_and_are_no_failure(line: str, loss: str) -> None:
    (sentence,) = degraded([line, line])
    assert loss in sentence
    assert classify([line], 3).code == "UNKNOWN"


@given(st.lists(st.text(max_size=80), max_size=10), st.one_of(st.none(), st.integers(-64, 255)))
def test_any_output_gets_a_name(lines: list[str], code: int | None) -> None:
    failure = classify(lines, code)
    assert failure.code
    assert failure.cure
    degraded(lines)


@pytest.mark.engine("llama-server")
@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--nonsense"], "ARG_UNKNOWN"),
        (["--model", "gone.gguf"], "FILE_MISSING"),
        (["--model", "web.gguf"], "NOT_GGUF"),
        (["--ctx-size", "many"], "ARG_VALUE"),
    ],
)
def test_the_real_engine_says_what_the_cases_say(
    args: list[str], code: str, llama_server: Path, tmp_path: Path
) -> None:
    (tmp_path / "web.gguf").write_text("<!doctype html>", encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    command = [str(llama_server), "--port", "18543", "--offline", *args]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert classify((done.stderr + done.stdout).splitlines(), done.returncode).code == code


def test_signals_are_read_in_both_forms() -> None:
    assert classify([], -signal.SIGSEGV).code == classify([], 128 + signal.SIGSEGV).code == "CRASHED"

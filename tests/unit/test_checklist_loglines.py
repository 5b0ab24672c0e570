"""Every phrase that engines print when they fail has its class, and every line that only looks fatal is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gezelctl.engines.failures import RULES
from gezelctl.engines.loglines import classify, degraded

PHRASES: dict[str, list[str]] = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "engines" / "phrases.yaml").read_text(encoding="utf-8")
)
WRAPPERS = [
    "E llama_model_load_from_file_impl: failed to load model",
    "E common_fit_params: encountered an error while trying to fit params to free device memory: failed to load model",
    "E srv    load_model: failed to load model, '/models/w.gguf'",
    "E srv  llama_server: exiting due to model loading error",
]
PERMANENT = {
    "ARG_UNKNOWN", "ARG_REMOVED", "ARG_VALUE", "ENV_VALUE", "PORT", "FILE_MISSING", "NOT_GGUF", "GGUF_VERSION",
    "GGUF_CORRUPT", "GGUF_TRUNCATED", "SPLIT", "ARCH_UNSUPPORTED", "MODEL_INCOMPATIBLE", "WRONG_ROLE", "KV_TYPE", "CTX",
    "TEMPLATE", "DRIVER", "LIBS", "CPU_ISA", "DOWNLOAD", "GRAMMAR",
}  # fmt: skip
CASES = [(code, line) for code, lines in PHRASES.items() for line in lines]
HARMLESS = [
    "W common_fit_params: failed to fit params to free device memory: n_gpu_layers already set by user to 9, abort",
    "W operator(): failed to measure the memory of the extra model, fitting without it: failed to load model",
    "DEPRECATED: argument '--no-webui' is deprecated, use --no-ui",
    "warn: LLAMA_ARG_PORT environment variable is set, but will be overwritten by command line argument --port",
    "W llama_context: n_ctx_seq (16384) > n_ctx_train (8192) -- possible training context overflow",
    "W srv load_model: the slot context (20224) exceeds the training context of the model (8192) - capping",
    "W load: GENERATION QUALITY WILL BE DEGRADED!",
    "W no usable GPU found, --gpu-layers option will be ignored",
    "W srv llama_server: security: no API key is set and CORS allows all origins",
    "W ggml_metal_log_allocated_size: current allocated size is greater than the recommended max working set size",
    "W model has unused tensor blk.30.nextn.eh_proj.weight (size = 1024 bytes) -- ignoring",
    "W srv init: failed to parse chat template (defaulting to chatml): missing endif",
    "E srv load_model: failed to initialize speculative decoding context: draft model is not eagle3",
    "W srv: the target and draft vocabs are not compatible",
    "W decode: embeddings required but some input tokens were not marked as outputs -> overriding",
    'INFO: 127.0.0.1:5123 - "POST /v1/chat/completions HTTP/1.1" 500',
    "I srv log_server_r: done request: POST /completion 127.0.0.1 400",
]


@pytest.mark.parametrize(("code", "line"), CASES, ids=[f"{code}-{line[:40]}" for code, line in CASES])
def test_a_phrase_has_its_class(code: str, line: str) -> None:
    """Alone, with the prefix of new builds, and among the general lines that llama.cpp wraps around every cause."""
    alone = classify([line], 1)
    assert alone.code == code
    assert alone.summary
    assert alone.cure
    assert classify([f"0.00.086.369 E {line}", *WRAPPERS], 1).code == code
    assert alone.retry == ("no" if code in PERMANENT else alone.retry)


def test_no_class_is_without_a_phrase() -> None:
    assert {rule.code for rule in RULES} - set(PHRASES) == {"ASSERTION", "DEVICE_ERROR"}


def test_only_what_another_plan_or_another_try_can_cure_is_tried_again() -> None:
    retries = {rule.code: rule.retry for rule in RULES}
    assert {code for code, retry in retries.items() if retry == "replan"} == {"DRAFT", "OOM_DEVICE", "OOM_HOST"}
    assert {code for code, retry in retries.items() if retry == "once"} == {"DEVICE_LOST"}


@pytest.mark.parametrize("line", HARMLESS, ids=[line[:40] for line in HARMLESS])
def test_a_line_that_only_looks_fatal_is_no_cause(line: str) -> None:
    """A real cause after it is found, and without one there is none."""
    assert classify([line], 3).code == "UNKNOWN"
    assert classify([line, "E llama_model_load: error loading model: unknown model architecture: 'x'"], 1).code == (
        "ARCH_UNSUPPORTED"
    )


@pytest.mark.parametrize(
    "line",
    [
        "E srv load_model: failed to initialize speculative decoding context: draft model is not eagle3",
        "E common_speculative_impl: draft model is not eagle3",
        "E common_speculative_init: draft-simple requires a draft context",
        "W srv: the target and draft vocabs are not compatible",
    ],
)
def test_lost_speculation_is_told(line: str) -> None:
    """The server runs on, and says which speed it has lost."""
    assert any("speculative decoding" in loss for loss in degraded([line]))
    assert classify([line], None).code == "UNKNOWN"


def test_memory_that_ran_out_only_for_a_while_is_no_cause() -> None:
    lines = [
        "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 1073741824",
        "graph_reserve: failed to allocate compute buffers; retrying without pipeline parallelism",
    ]
    assert classify(lines, None).code == "UNKNOWN"

"""The embedded server's command line: llama-server's words, and every flag reaches xllamacpp."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from gezelctl.embedded.__main__ import main
from gezelctl.embedded.commandline import ArgumentError, apply, help_text, parse
from gezelctl.embedded.options import OPTIONS
from gezelctl.observe.helptext import parse_help

EFFECTS: list[tuple[list[str], str, Any]] = [
    (["--model", "/m.gguf"], "model.path", "/m.gguf"),
    (["-a", "chat"], "model_alias", {"chat"}),
    (["--host", "127.0.0.1,::1"], "hostnames", ["127.0.0.1", "::1"]),
    (["--port", "8099"], "port", 8099),
    (["-c", "4096"], "n_ctx", 4096),
    (["--ctx_size", "4096"], "n_ctx", 4096),
    (["-np", "3"], "n_parallel", 3),
    (["--kv-unified"], "kv_unified", True),
    (["--kv-unified", "--no-kv-unified"], "kv_unified", False),
    (["--no-kv-offload"], "no_kv_offload", True),
    (["-t", "2", "-t", "3"], "cpuparams.n_threads", 3),
    (["--threads-batch", "2"], "cpuparams_batch.n_threads", 2),
    (["--flash-attn", "on"], "flash_attn_type.name", "LLAMA_FLASH_ATTN_TYPE_ENABLED"),
    (["--cache-type-k", "q8_0"], "cache_type_k.name", "GGML_TYPE_Q8_0"),
    (["--cache-type-v", "iq4_nl"], "cache_type_v.name", "GGML_TYPE_IQ4_NL"),
    (["--load-mode", "mmap+mlock"], "load_mode.name", "LLAMA_LOAD_MODE_MMAP_MLOCK"),
    (["--n-gpu-layers", "all"], "n_gpu_layers", -2),
    (["--n-gpu-layers", "auto"], "n_gpu_layers", -1),
    (["--n-gpu-layers", "0"], "n_gpu_layers", 0),
    (["--split-mode", "row"], "split_mode.name", "LLAMA_SPLIT_MODE_ROW"),
    (["--fit", "off"], "fit_params", False),
    (["--cache-ram", "0"], "cache_ram_mib", 0),
    (["--ctx-checkpoints", "4"], "n_ctx_checkpoints", 4),
    (["--cache-reuse", "256"], "n_cache_reuse", 256),
    (["--no-jinja"], "use_jinja", False),
    (["--reasoning-format", "deepseek-legacy"], "reasoning_format.name", "COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY"),
    (["--reasoning-budget", "512"], "sampling.reasoning_budget_tokens", 512),
    (["--metrics"], "endpoint_metrics", True),
    (["--no-slots"], "endpoint_slots", False),
    (["--no-webui"], "ui", False),
    (["--embeddings"], "embedding", True),
    (["--mmproj", "/p.gguf"], "mmproj.path", "/p.gguf"),
    (["--model-draft", "/d.gguf"], "speculative.draft.mparams.path", "/d.gguf"),
    (["--spec-draft-n-max", "5"], "speculative.draft.n_max", 5),
    (["-lv", "4"], "verbosity", 4),
    (["--offline"], "offline", True),
    (["--temp", "0.5"], "sampling.temp", 0.5),
    (["--seed", "-1"], "sampling.seed", 0xFFFFFFFF),
    (["--timeout", "60"], "timeout_write", 60),
]

REFUSED: list[tuple[list[str], str]] = [
    (["--nonsense"], "error: invalid argument: --nonsense"),
    (["file.gguf"], "error: invalid argument: file.gguf"),
    (["--port"], 'error while handling argument "--port": expected value for argument'),
    (["--ctx-size", "many"], 'error while handling argument "--ctx-size": stoi'),
    (["--ctx-size", "-5"], 'error while handling argument "--ctx-size": invalid value: -5 is below 0'),
    (["--batch-size", "0"], 'error while handling argument "--batch-size": invalid value: 0 is below 1'),
    (["--port", "99999"], 'error while handling argument "--port": invalid value: port 99999'),
    (["-ctk", "q3_1"], 'error while handling argument "-ctk": Unsupported cache type: q3_1'),
    (["--flash-attn", "perhaps"], "error while handling argument \"--flash-attn\": unknown value: 'perhaps'"),
    (["--spec-type", "x"], 'error while handling argument "--spec-type": unknown speculative type: x'),
    (["--slot-save-path", "/gone"], 'error while handling argument "--slot-save-path": not a directory: /gone'),
    (["--chat-template-file", "/gone"],
     "error while handling argument \"--chat-template-file\": error: failed to open file '/gone'"),
]  # fmt: skip


def reach(params: Any, path: str) -> Any:
    for name in path.split("."):
        params = getattr(params, name)
    return params


@pytest.mark.engine("embedded")
@pytest.mark.parametrize(("argv", "path", "value"), EFFECTS, ids=[" ".join(e[0]) for e in EFFECTS])
def test_a_flag_sets_its_parameter(argv: list[str], path: str, value: Any) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    apply(parse(argv), xllamacpp, params)
    assert reach(params, path) == value


@pytest.mark.engine("embedded")
def test_lists_and_tensor_rules(tmp_path: Path) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}", encoding="utf-8")
    argv = ["--n-cpu-moe", "2", "-ot", "x=CPU", "--tensor-split", "3,1", "--chat-template-file", str(template)]
    apply(parse([*argv, "--spec-type", "draft-simple,ngram-mod", "--fit-target", "512"]), xllamacpp, params)
    rules = params.tensor_buft_overrides.split(",")
    assert [rule.partition("=")[2] for rule in rules] == ["CPU"] * 3
    assert rules[0].startswith(r"blk\.0\.ffn_")
    assert list(params.tensor_split[:3]) == [3.0, 1.0, 0.0]
    assert params.chat_template == "{{ messages }}"
    assert [t.name.rpartition("TYPE_")[2] for t in params.speculative.types] == ["DRAFT_SIMPLE", "NGRAM_MOD"]
    assert params.fit_params_target[0] == 512 << 20


@pytest.mark.engine("embedded")
@pytest.mark.parametrize(("argv", "text"), REFUSED, ids=[" ".join(r[0]) for r in REFUSED])
def test_refusals_are_worded_as_llama_server_words_them(argv: list[str], text: str) -> None:
    import xllamacpp

    with pytest.raises(ArgumentError) as caught:
        apply(parse(argv), xllamacpp, xllamacpp.CommonParams())
    assert str(caught.value) == text


def test_the_help_is_read_back_whole() -> None:
    """Names, arity, negations and environment variables survive the probe's parser."""
    flags = {flag.names[0]: flag for flag in parse_help(help_text()).flags}
    for option in OPTIONS:
        flag = flags[option.names[0]]
        assert (set(flag.names), set(flag.negations)) == (set(option.names), set(option.negations))
        assert (flag.arity, flag.env) == (1 if option.metavar else 0, option.env)


def test_names_are_llama_servers_own() -> None:
    """Every spelling exists in the help of b11434, with the same arity."""
    text = (Path(__file__).parents[1] / "cases" / "observe" / "llama-server-b11434-help.txt").read_text("utf-8")
    real = {name: flag for flag in parse_help(text).flags for name in (*flag.names, *flag.negations)}
    for option in OPTIONS:
        for name in (*option.names, *option.negations):
            assert name in real
            assert real[name].arity == (1 if option.metavar else 0), name


def test_a_model_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", "8080"]) == 1
    assert capsys.readouterr().err.startswith("error: --model is required")


@pytest.mark.engine("embedded")
@pytest.mark.parametrize("ask", ["--help", "--version"])
def test_answers_without_loading_the_engine(ask: str) -> None:
    script = (
        f"import sys; from gezelctl.embedded.__main__ import main; main(['{ask}']); print('xllamacpp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("False\n")
    if ask == "--version":
        assert done.stdout.startswith(f"version: xllamacpp {metadata.version('xllamacpp')}\n")


@pytest.mark.engine("embedded")
def test_devices_are_listed_as_llama_server_lists_them() -> None:
    command = [sys.executable, "-m", "gezelctl.embedded", "--list-devices"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    first, *rows = done.stdout.splitlines()
    assert first == "Available devices:"
    assert rows
    assert all(row.startswith("  ") for row in rows)

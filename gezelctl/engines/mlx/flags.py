"""The flags of mlx_lm.server (mlx-lm 0.32): its parser stands inside its main(), so the probe cannot read them.

An older mlx-lm that lacks one of them ends at start with argparse's own line, which the log classifier knows.
"""

from __future__ import annotations

from gezelctl.observe.types import Flag

_VALUES = (
    "--allowed-origins",
    "--temp",
    "--top-p",
    "--top-k",
    "--min-p",
    "--max-tokens",
    "--chat-template-args",
    "--decode-concurrency",
    "--prompt-concurrency",
    "--prefill-step-size",
    "--prompt-cache-size",
    "--prompt-cache-bytes",
    "--kv-bits",
    "--kv-group-size",
    "--quantized-kv-start",
)
_SWITCHES = ("--trust-remote-code", "--use-default-chat-template", "--pipeline")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

MLX_FLAGS: tuple[Flag, ...] = (
    *(Flag((name,), 1) for name in _VALUES),
    *(Flag((name,), 0) for name in _SWITCHES),
    Flag(("--log-level",), 1, values=_LEVELS),
)

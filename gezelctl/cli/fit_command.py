"""`gezelctl fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from gezelctl.cli.common import make_output
from gezelctl.cli.options import output_options, subject_options
from gezelctl.engines.llama_cpp.context import CACHE_TYPES
from gezelctl.errors import ExitCode

F = TypeVar("F", bound=Callable[..., Any])


class CacheTypes(click.ParamType[tuple[str, str]]):
    """`q8_0`, or `q8_0/f16` for K and V apart; gives (K, V)."""

    name = "type"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, slash, val = str(value).partition("/")
        for name in (key, val if slash else key):
            if name not in CACHE_TYPES:
                self.fail(f"{name!r} is none of {', '.join(CACHE_TYPES)}", param, ctx)
        return key, val if slash else key


def context_options(function: F) -> F:
    """What is asked for: names and meanings of models.yaml, but for --context-total and a second cache type."""
    positive, natural = click.IntRange(min=1), click.IntRange(min=0)
    decorators = (
        click.option("--context", type=positive, help="Tokens per slot. Default: what the planner grants."),
        click.option("--context-total", type=positive, help="The engine's own -c instead: tokens of all slots."),
        click.option("--slots", type=click.IntRange(1, 256), help="Requests served at once."),
        click.option("--kv-unified/--no-kv-unified", default=None, help="One KV pool shared by all slots."),
        click.option("--kv-cache", type=CacheTypes(), metavar="T[/T_V]", help="Type of the KV cache, or of K/V."),
        click.option("--batch", type=positive, help="Logical batch, tokens."),
        click.option("--ubatch", type=positive, help="Physical batch, tokens."),
        click.option("--flash-attn", type=click.Choice(("on", "off", "auto")), help="Flash attention."),
        click.option("--swa-full", is_flag=True, default=None, help="Full-size cache for sliding-window layers."),
        click.option("--n-gpu-layers", type=click.IntRange(min=-1), help="Layers in device memory; -1 = all."),
        click.option("--n-cpu-moe", type=natural, help="Keep the experts of the first N layers in RAM."),
        click.option("--tensor-split", metavar="A,B", help="Share of each device."),
        click.option("--no-kv-offload", is_flag=True, default=None, help="KV cache in RAM."),
        click.option("--embeddings", is_flag=True, default=None, help="An embedding server."),
        click.option("--spec", "spec_type", metavar="TYPE", help="Speculation: none, draft-mtp, draft-simple, …"),
        click.option("--draft", metavar="FILE|URL", help="Draft model, with --spec draft-simple and the like."),
        click.option("--mmproj", metavar="FILE|URL", help="Vision projector."),
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def host_options(function: F) -> F:
    """On which host and engine."""
    decorators = (
        click.option(
            "--facts",
            "facts_file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="A host's facts (`gezelctl facts -o json`) or snapshot. Default: this host.",
        ),
        click.option("--backend", metavar="NAME", help="A backend of models.yaml. Default: the one it defaults to."),
        click.option(
            "--accelerator",
            type=click.Choice(("cpu", "cuda", "vulkan", "metal", "rocm")),
            help="Without a backend: what the engine computes on. Default: by the host's GPUs.",
        ),
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


@click.command(
    "fit",
    epilog="Example: gezelctl fit hf:owner/name/model-Q4_K_M.gguf --context 32768 --slots 2 --facts lab-01.json",
    help="Show what a model takes in memory by device, what fits on a host at which context and slots, and the launch "
    "that would be chosen. From an address only the header is read, a few MB.",
)
@subject_options
@context_options
@host_options
@click.option("-o", "--output", "kind", type=click.Choice(("text", "json")), default="text", help="Format of stdout.")
@output_options
def command(*, named: str, kind: str, **given: Any) -> int:
    from gezelctl.cli.fit_view import fit_document, render_fit
    from gezelctl.cli.fitting import FitOptions, run_fit

    output = make_output(given)
    if given["context"] and given["context_total"]:
        raise click.UsageError("--context and --context-total exclude each other: tokens per slot, or of all slots.")
    options = FitOptions(**{name: given[name] for name in FitOptions.__struct_fields__})
    outcome = run_fit(named, options)
    if kind == "json":
        output.data(fit_document(outcome), machine=True)
    else:
        output.data(render_fit(outcome))
    return ExitCode.OK

"""Chat templates read before an engine does: a syntax error with its line, a Go template, one that fails on use.

llama.cpp has a Jinja interpreter of its own; this one is the reference that templates are written for. What fails here
fails there, and what only the engine refuses is found when the server is proved. Templates come from the net: they
are rendered in jinja2's sandbox, with a budget of loop turns and of output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Literal, NoReturn

import msgspec

if TYPE_CHECKING:
    from jinja2 import nodes
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEMPLATE_BYTES = 1 << 20
_MAX_OUTPUT = 1 << 20
_MAX_TURNS = 100_000
"""Loop turns of one rendering; a template that needs more does not end in a useful time."""
_MAX_REPEAT = 100_000
_GO = re.compile(r"\{\{-?\s*(?:\.[A-Za-z]\w*|\$\w*\s|(?:if|range|with|template|define|block)\s+[\w.$\"(]|end\s*-?\}\})")
"""What only Go templates have: fields that begin with a dot, and statements between double braces."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city."}},
            "required": ["city"],
        },
    },
}
_SYSTEM, _FIRST, _ANSWER, _SECOND = "Be brief.", "Name a colour.", "Blue.", "And another one?"
_ARGUMENTS = {"city": "Ghent"}


_FAILURES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""What operations on values raise inside a template."""


class TemplateFinding(msgspec.Struct, frozen=True, rename="camel"):
    """One finding. `line` counts from 1 in the template, 0 when there is none; a warning does not stop a launch."""

    summary: str
    cure: str
    line: int = 0
    severity: Literal["error", "warning"] = "error"


class _Raised(Exception):
    """The template called raise_exception."""


def lint_template(text: str) -> tuple[TemplateFinding, ...]:
    """Findings of one template, in the order of the checks; empty when nothing is wrong.

    Two turns must render and hold the words of both users; a system message and a tool call are probed with warnings,
    because many templates refuse them on purpose.
    """
    if len(text.encode()) > MAX_TEMPLATE_BYTES:
        return (TemplateFinding("the template is larger than 1 MiB", "Use the template of the model."),)
    go = _GO.search(text)
    if go is not None:
        line = text.count("\n", 0, go.start()) + 1
        return (TemplateFinding("this is a Go template, not Jinja", "Use the Jinja template of the model.", line),)
    found = _parse(text)
    return found or _probe(text)


def _parse(text: str) -> tuple[TemplateFinding, ...]:
    from jinja2 import TemplateSyntaxError

    try:
        _environment().parse(text)
    except TemplateSyntaxError as error:
        message = error.message or "it cannot be parsed"
        return (TemplateFinding(f"the template is no Jinja: {message}", "Correct the template.", error.lineno),)
    return ()


def _probe(text: str) -> tuple[TemplateFinding, ...]:
    turns = [_message("user", _FIRST), _message("assistant", _ANSWER), _message("user", _SECOND)]
    rendered, finding = _render(text, turns, tools=False)
    if finding is not None:
        return (finding,)
    missing = [words for words in (_FIRST, _SECOND) if words not in rendered]
    if missing:
        return (TemplateFinding(f"a message of the user is lost: {missing[0]!r}", "Correct the template."),)
    found = []
    for what, messages, tools in (
        ("a system message", [_message("system", _SYSTEM), *turns], False),
        ("a tool call", _tool_turns(), True),
    ):
        rendered, finding = _render(text, messages, tools=tools)
        if finding is not None:
            summary = f"{what} fails: {finding.summary}"
            found.append(msgspec.structs.replace(finding, summary=summary, severity="warning"))
        elif what == "a tool call" and "get_weather" not in rendered:
            lost = "tools are not shown to the model: the template ignores them"
            found.append(TemplateFinding(lost, "Use a template with tool support if tools are needed.", 0, "warning"))
    return tuple(found)


def _message(role: str, content: str) -> dict[str, object]:
    return {"role": role, "content": content}


def _tool_turns() -> list[dict[str, object]]:
    """A call and its result, in the form of the chat API; ids of nine letters are what the strictest accept."""
    call = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": _ARGUMENTS}}
    return [
        _message("user", "Weather in Ghent?"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "Rain."},
        _message("user", "And tomorrow?"),
    ]


def _render(text: str, messages: list[dict[str, object]], *, tools: bool) -> tuple[str, TemplateFinding | None]:
    from jinja2 import TemplateError

    cure = "Correct the template."
    values = {
        "messages": messages,
        "tools": [_TOOL] if tools else None,
        "add_generation_prompt": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    try:
        return _joined(_environment().from_string(text).generate(values)), None
    except _Raised as refused:
        return "", TemplateFinding(f"the template refuses it: {refused}", cure, _line_of(refused))
    except (TemplateError, *_FAILURES) as error:
        return "", TemplateFinding(f"{type(error).__name__}: {error}", cure, _line_of(error))


def _joined(parts: Iterable[str]) -> str:
    found: list[str] = []
    size = 0
    for part in parts:
        found.append(part)
        size += len(part)
        if size > _MAX_OUTPUT:
            raise _Raised("it renders without an end")
    return "".join(found)


def _line_of(error: BaseException) -> int:
    """The template line that an error came from: jinja2 puts it in the traceback of the compiled template."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _environment() -> ImmutableSandboxedEnvironment:
    """What transformers renders chat templates in: trimmed blocks, loop controls, `generation`, and these helpers."""
    environment = _environment_class()(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_block()]
    )
    environment.filters["tojson"] = _to_json
    environment.filters["counted"] = _Budget().counted
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _fixed_date
    return environment


class _Budget:
    """Counts the loop turns of one rendering."""

    def __init__(self) -> None:
        self._turns = 0

    def counted(self, items: Iterable[object]) -> Iterator[object]:
        """Pass items on until the budget is spent."""
        for item in items:
            self._turns += 1
            if self._turns > _MAX_TURNS:
                raise _Raised(f"it loops more than {_MAX_TURNS} times")
            yield item


@cache
def _environment_class() -> type[ImmutableSandboxedEnvironment]:
    """A sandbox that sends every loop through the `counted` filter and bounds repetition."""
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Bounded(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            template = super()._parse(source, name, filename)
            for loop in template.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
            template.set_environment(self)
            return template

        def call_binop(self, context: object, operator: str, left: object, right: object) -> object:
            if operator == "**" or any(isinstance(side, int) and abs(side) > _MAX_REPEAT for side in (left, right)):
                raise _Raised(f"it computes with {operator} beyond what a template needs")
            return super().call_binop(context, operator, left, right)  # type: ignore[arg-type] # jinja2's own Context

    return Bounded


@cache
def _generation_block() -> type:
    """`{% generation %}…{% endgeneration %}`, which marks what a model says for training and renders its body."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - jinja2's own form

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _to_json(value: object, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise _Raised(message)


def _fixed_date(_format: str) -> str:
    """A date without a clock: templates print it, the probe only needs a string."""
    return "2026-01-01"

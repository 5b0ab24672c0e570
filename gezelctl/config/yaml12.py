"""YAML 1.2 core, with the place of every value and with bounds against hostile files.

libyaml gives the events; this module gives them their meaning. PyYAML's own constructors are not used: they follow
YAML 1.1 (`no` is False, `012` is 10, `22:22` is 1342), let a repeated key win silently, and forget where values stood.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from gezelctl.config.diagnostics import Diagnostic, InvalidConfig, Place
from gezelctl.config.redact import mask_tokens
from gezelctl.config.source import SourceText

MAX_SOURCE_BYTES = 1 << 20
MAX_NODES = 100_000
MAX_DEPTH = 64
_TOO_DEEP = f"the file is nested deeper than {MAX_DEPTH} levels"

Path = tuple[str | int, ...]
_Span = tuple[int, int, int, int]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What YAML does not print, rather than the complement of what it does: that takes 4 ms to compile.
_UNREADABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_INT = re.compile(r"[-+]?[0-9]+\Z")
_INT_BASE = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_CORE = "tag:yaml.org,2002:"
_SCALAR_TAGS: dict[str, tuple[type, ...]] = {
    f"{_CORE}null": (type(None),),
    f"{_CORE}bool": (bool,),
    f"{_CORE}int": (int,),
    f"{_CORE}float": (float, int),
}


class Node:
    """A value and where it stands. `children` is a dict, a list, or None for a scalar; `data` is the plain value."""

    __slots__ = ("children", "data", "file", "height", "keys", "opened", "size", "span")

    def __init__(self, file: str, span: _Span, data: Any, children: dict[str, Node] | list[Node] | None = None) -> None:
        self.file = file
        self.span = span
        self.data = data
        self.children = children
        self.keys: dict[str, Place] = {}
        self.size = 1
        self.height = 1
        self.opened = False

    @property
    def place(self) -> Place:
        line, column, end_line, end_column = self.span
        return Place(self.file, line + 1, column + 1, end_column + 1 if end_line == line and end_column > column else 0)

    def child(self, key: str | int) -> Node | None:
        if isinstance(self.children, dict):
            return self.children.get(key) if isinstance(key, str) else None
        if isinstance(self.children, list) and isinstance(key, int) and 0 <= key < len(self.children):
            return self.children[key]
        return None

    def get(self, path: Sequence[str | int]) -> Node | None:
        """The node at `path`, None when there is none."""
        node: Node | None = self
        for key in path:
            node = node.child(key) if node is not None else None
        return node

    def find(self, path: Sequence[str | int]) -> Node:
        """The node at `path`, or its nearest existing parent."""
        node = self
        for key in path:
            child = node.child(key)
            if child is None:
                return node
            node = child
        return node

    def key_place(self, path: Sequence[str | int]) -> Place:
        """The place of the key that `path` ends with; of the item in a list; of the nearest parent when absent."""
        parent = self.find(path[:-1])
        key = path[-1] if path else None
        if isinstance(key, str) and key in parent.keys:
            return parent.keys[key]
        return self.find(path).place


class Document:
    """One parsed file. `data` is None for an empty one."""

    def __init__(self, root: Node, source: SourceText) -> None:
        self.root = root
        self.source = source

    @property
    def data(self) -> Any:
        return self.root.data

    def place(self, path: Path) -> Place:
        """The place of the value at `path`, or of its nearest existing parent."""
        return self.root.find(path).place

    def key_place(self, path: Path) -> Place:
        return self.root.key_place(path)


def load(text: str, file: str) -> Document:
    """Parse one YAML 1.2 document. Raises InvalidConfig (E0002 to E0013) and nothing else."""
    text = text.removeprefix("\ufeff")
    source = SourceText(file, text)
    if len(text) > MAX_SOURCE_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_SOURCE_BYTES:
        raise InvalidConfig(
            [
                _finding(
                    source, Place(file, 1, 1), "E0004", "the file is larger than 1 MiB", "split it into several files"
                )
            ]
        )
    unreadable = _UNREADABLE.search(text)
    if unreadable:
        place = source.place_at(unreadable.start())
        what = f"the character U+{ord(unreadable.group()):04X} is not allowed in YAML"
        raise InvalidConfig(
            [_finding(source, place, "E0002", what, "remove it, or write it as an escape in double quotes")]
        )
    return _Builder(source).build()


def resolve_scalar(text: str) -> bool | int | float | str | None:
    """The value of a plain scalar by the YAML 1.2 core schema; non-finite floats included."""
    if text in _WORDS:
        return _WORDS[text]
    first = text[0]
    if first not in "+-.0123456789":
        return text
    if _INT.match(text):
        # Python refuses to convert thousands of digits; anything that long is out of range anyway.
        return int(text) if len(text) < 64 else math.inf
    if _INT_BASE.match(text):
        return int(text[2:], 8 if text[1] == "o" else 16)
    if _FLOAT.match(text):
        return float(text)
    return float(text.replace(".", "")) if _SPECIAL.match(text) else text


def _in_range(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63


def _finding(source: SourceText, place: Place, code: str, summary: str, cure: str) -> Diagnostic:
    return Diagnostic(code=code, summary=summary, cure=cure, place=place, snippet=source.snippet(place.line))


class _Frame:
    __slots__ = ("before", "key", "key_place", "node", "skip")

    def __init__(self, node: Node, before: int) -> None:
        self.node = node
        self.before = before
        self.key: str | None = None
        self.key_place: Place | None = None
        self.skip = False


class _Builder:
    """Turns events into nodes with an explicit stack, so that no nesting can exhaust the interpreter's own."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.findings: list[Diagnostic] = []
        self.stack: list[_Frame] = []
        self.anchors: dict[str, Node] = {}
        self.count = 0
        self.root: Node | None = None

    def build(self) -> Document:
        try:
            self._consume(yaml.parse(self.source.text, Loader=_LOADER))
        except yaml.MarkedYAMLError as error:
            self.findings.append(self._syntax(error))
        except (yaml.YAMLError, UnicodeError):
            place, cure = Place(self.source.file, 1, 1), "save it as plain UTF-8 text"
            self.findings.append(
                _finding(self.source, place, "E0002", "the file has characters that YAML refuses", cure)
            )
        if self.findings:
            raise InvalidConfig(self.findings)
        return Document(self.root or Node(self.source.file, (0, 0, 0, 0), None), self.source)

    def _consume(self, events: Iterator[Any]) -> None:
        for event in events:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._scalar(event)
            elif kind is yaml.MappingStartEvent:
                self._open(event, {}, {})
            elif kind is yaml.SequenceStartEvent:
                self._open(event, [], [])
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._close(event)
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentStartEvent and self.root is not None:
                self._fatal(
                    event, "E0011", "the file holds more than one YAML document", "split it at --- into several files"
                )

    def _error(self, event: Any, code: str, summary: str, cure: str) -> None:
        self.findings.append(
            _finding(self.source, Node(self.source.file, _span(event), None).place, code, summary, cure)
        )

    def _fatal(self, event: Any, code: str, summary: str, cure: str) -> None:
        self._error(event, code, summary, cure)
        raise InvalidConfig(self.findings)

    def _scalar(self, event: Any) -> None:
        value: Any = event.value
        if event.implicit[0]:
            value = resolve_scalar(value)
        elif event.tag not in (None, "!", f"{_CORE}str"):
            value = self._tagged(event)
        if not _in_range(value):
            self._error(
                event,
                "E0013",
                "the number is out of range",
                "write a finite number of at most 64 bits; put it in quotes if it is text",
            )
            value = 0
        node = Node(self.source.file, _span(event), value)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        self._add(event, node)

    def _tagged(self, event: Any) -> Any:
        wanted = _SCALAR_TAGS.get(event.tag)
        if wanted is None:
            self._error(
                event, "E0007", "a YAML tag is not allowed here", "remove the tag; the type follows from the value"
            )
            return event.value
        value = resolve_scalar(event.value)
        if type(value) not in wanted:
            self._error(
                event, "E0007", f"the value does not fit its tag !!{event.tag.removeprefix(_CORE)}", "remove the tag"
            )
        return float(value) if wanted[0] is float and type(value) is int else value

    def _open(self, event: Any, data: Any, children: dict[str, Node] | list[Node]) -> None:
        allowed = (None, "!", f"{_CORE}map" if isinstance(data, dict) else f"{_CORE}seq")
        if event.tag not in allowed:
            self._error(
                event, "E0007", "a YAML tag is not allowed here", "remove the tag; the type follows from the value"
            )
        if len(self.stack) >= MAX_DEPTH:
            self._too_deep(event)
        node = Node(self.source.file, _span(event), data, children)
        node.opened = True
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        self.stack.append(_Frame(node, self.count))

    def _close(self, event: Any) -> None:
        frame = self.stack.pop()
        node = frame.node
        node.opened = False
        node.size = self.count - frame.before + 1
        node.span = (*node.span[:2], event.end_mark.line, event.end_mark.column)
        self.count -= node.size - 1  # _add counts the node with everything in it
        self._add(event, node)

    def _alias(self, event: Any) -> None:
        node = self.anchors.get(event.anchor)
        if node is None:
            self._fatal(
                event, "E0008", "the alias names an anchor that is not defined above it", "define the anchor first"
            )
        elif node.opened:
            self._fatal(event, "E0008", "the alias stands inside the value that it names", "write the value out")
        else:
            if len(self.stack) + node.height > MAX_DEPTH:
                self._too_deep(event)
            self._add(event, node)

    def _too_deep(self, event: Any) -> None:
        self._fatal(event, "E0010", _TOO_DEEP, "flatten it")

    def _add(self, event: Any, node: Node) -> None:
        self.count += node.size
        if self.count > MAX_NODES:
            cure = "use fewer aliases, or split the file"
            self._fatal(event, "E0009", f"the file expands to more than {MAX_NODES:,} values", cure)
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        parent = frame.node
        parent.height = max(parent.height, node.height + 1)
        if isinstance(parent.children, list):
            parent.children.append(node)
            parent.data.append(node.data)
        elif isinstance(parent.children, dict):
            if frame.key is None and not frame.skip:
                self._take_key(frame, node)
            else:
                self._take_value(frame, node)

    def _take_key(self, frame: _Frame, node: Node) -> None:
        key, place = node.data, node.place
        summary, code, cure = "", "E0006", "put it in quotes"
        if not isinstance(key, str):
            what = "a collection" if node.children is not None else f"not text but {_kind(key)}"
            summary = f"a key is {what}"
        elif key == "<<":
            summary, code = "the merge key << is not part of YAML 1.2", "E0012"
            cure = "write the keys out; what servers share belongs under backends or defaults"
        elif key in frame.node.keys:
            summary, code = f"the key {_quote(key)} stands twice (first at {frame.node.keys[key].short})", "E0005"
            cure = "keep one of them"
        if summary:
            self.findings.append(_finding(self.source, place, code, summary, cure))
            frame.skip = True
            return
        frame.key, frame.key_place = str(key), place

    def _take_value(self, frame: _Frame, node: Node) -> None:
        parent = frame.node
        if frame.key is not None and frame.key_place is not None and isinstance(parent.children, dict):
            parent.children[frame.key] = node
            parent.data[frame.key] = node.data
            parent.keys[frame.key] = frame.key_place
        frame.key, frame.key_place, frame.skip = None, None, False

    def _syntax(self, error: yaml.MarkedYAMLError) -> Diagnostic:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or "the file is not YAML"
        if error.context_mark is not None and "end of stream" in problem:
            mark = error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        place = Place(self.source.file, line + 1, column + 1)
        lines = self.source.lines
        at = lines[line][column : column + 1] if line < len(lines) else ""
        if at == "\t":
            return _finding(self.source, place, "E0003", "a tab cannot indent or separate YAML", "use spaces")
        if "nesting depth" in problem:
            return _finding(self.source, place, "E0010", _TOO_DEEP, "flatten it")
        summary = f"not valid YAML: {f'{error.context}, ' if error.context else ''}{problem}"
        return _finding(self.source, place, "E0003", summary, _syntax_cure(problem))


def _syntax_cure(problem: str) -> str:
    if "mapping values are not allowed" in problem:
        return "indent the line like its neighbours, or put a value that contains ': ' in quotes"
    if "end of stream" in problem:
        return "close the quote or bracket"
    return "check the indentation, quotes, commas and brackets here"


def _span(event: Any) -> _Span:
    start, end = event.start_mark, event.end_mark
    return (start.line, start.column, end.line, end.column)


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    return "true or false" if isinstance(value, bool) else "a number"


def _quote(text: str) -> str:
    return '"' + mask_tokens(text)[:60].encode("unicode_escape").decode("ascii") + '"'

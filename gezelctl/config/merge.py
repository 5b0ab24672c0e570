"""Lays several models.yaml files together: lists of models and catalogs add up, everything else must agree."""

from __future__ import annotations

from collections.abc import Sequence

from gezelctl.config.report import Report
from gezelctl.config.yaml12 import Node

_ADDED_UP = ("models", "catalogs")
_NAMED = ("backends", "hosts")


def merge(roots: Sequence[Node], report: Report) -> Node:
    """One tree from the roots of all files. Conflicts become findings of the report (E0108), with both places."""
    if len(roots) == 1:
        return roots[0]
    merged = _empty_mapping(roots[0])
    for root in roots:
        _lay_over(merged, root, (), report)
    _refresh(merged)
    return merged


def _empty_mapping(like: Node) -> Node:
    return Node(like.file, like.span, {}, {})


def _copy(node: Node) -> Node:
    copy = Node(node.file, node.span, node.data, node.children)
    if isinstance(node.children, dict):
        copy.children = dict(node.children)
    elif isinstance(node.children, list):
        copy.children = list(node.children)
    copy.keys = dict(node.keys)
    return copy


def _lay_over(target: Node, node: Node, path: tuple[str, ...], report: Report) -> None:
    if not isinstance(target.children, dict) or not isinstance(node.children, dict):
        return
    for key, value in node.children.items():
        if key not in target.children:
            target.children[key] = _copy(value)
            target.keys[key] = node.keys[key]
            continue
        _join(target, node, (*path, key), report)


def _join(target: Node, node: Node, path: tuple[str, ...], report: Report) -> None:
    key = path[-1]
    here, value = target.child(key), node.child(key)
    if here is None or value is None:
        return
    if len(path) == 1 and key in _ADDED_UP and isinstance(here.children, list) and isinstance(value.children, list):
        here.children.extend(value.children)
    elif len(path) == 2 and path[0] in _NAMED:
        summary = f"{'.'.join(path)} is declared in two files (first at {target.keys[key].short})"
        report.error_at("E0108", node.keys[key], summary, "keep one of them")
    elif isinstance(here.children, dict) and isinstance(value.children, dict):
        _lay_over(here, value, path, report)
    elif here.data != value.data:
        summary = f"{'.'.join(path)} differs from the value at {here.place.short}"
        report.error_at("E0108", value.place, summary, "say it in one file only, or the same in both")


def _refresh(node: Node) -> None:
    """Give merged nodes the plain data of their children again."""
    if isinstance(node.children, dict):
        for child in node.children.values():
            _refresh(child)
        node.data = {key: child.data for key, child in node.children.items()}
    elif isinstance(node.children, list):
        node.data = [child.data for child in node.children]

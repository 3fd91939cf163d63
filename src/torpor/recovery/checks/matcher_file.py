"""Reads matchers from a checks file."""

from __future__ import annotations

import re
from typing import Literal

from torpor.recovery.checks.matchers import (
    COMPARISONS,
    Matcher,
    ValueKind,
    is_regex,
    pattern_matcher,
)
from torpor.recovery.checks.yamltree import Node

PATTERN_CHARS_MOST = 1000
PARTS_MOST = 200

_TEXTS = ("have-prefix", "have-suffix", "contain-substring", "match-regexp")
_MANY = ("and", "or", "contain-elements", "consist-of")
_KNOWN = (*COMPARISONS, *_TEXTS, *_MANY, "not", "contain-element", "equal", "have-len")


def parse_matcher(node: Node, kind: ValueKind) -> Matcher:
    """Return what `node` wants of an attribute that is by nature `kind`.

    Raises:
        InvalidRequest: it is no matcher, or none for such an attribute.
    """
    if isinstance(node.value, dict):
        return _parse_named(node, kind)
    if isinstance(node.value, list):
        if kind not in ("list", "output"):
            raise node.mistaken(_wanted(kind))
        operator = "contain-elements" if kind == "list" else "all"
        return Matcher(operator, parts=_parts(node, "element" if kind == "list" else "line"))
    if kind == "flag":
        return Matcher("equal", node.flag())
    if kind == "whole":
        return Matcher("equal", node.whole(-(1 << 62), 1 << 62))
    if kind == "list":
        return Matcher("contain-elements", parts=(Matcher("equal", node.string()),))
    if kind == "output":
        # an empty text wants no output at all: as a pattern it would be found in everything
        return _pattern(node) if node.string() else Matcher("equal", "")
    return Matcher("equal", node.string())


def pattern_of(text: str, node: Node) -> Matcher:
    """Return the pattern that stands at `node`. Raises `InvalidRequest` if it is no regular expression."""
    made = pattern_matcher(text)
    wanted = str(made.value)
    _check_regex(wanted[1:-1] if is_regex(wanted) else "", node)
    if len(wanted) > PATTERN_CHARS_MOST:
        raise node.place.wrong(_too_long(wanted))
    return made


def _pattern(node: Node) -> Matcher:
    return pattern_of(node.string(), node)


def _parse_named(node: Node, kind: ValueKind) -> Matcher:
    entries = node.only(_KNOWN)
    if len(entries) != 1:
        raise node.mistaken("one matcher", hint="join several with `and: [...]`")
    ((operator, below),) = entries.items()
    if operator == "not":
        return Matcher("not", parts=(parse_matcher(below, kind),))
    if operator in ("and", "or"):
        return Matcher(operator, parts=tuple(parse_matcher(item, kind) for item in _bounded(below)))
    if operator in COMPARISONS:
        return Matcher(operator, below.number(-1e18, 1e18))
    if operator == "have-len":
        return Matcher(operator, below.whole(0, 1 << 31))
    if operator == "match-regexp":
        _check_regex(below.string(), below)
    if operator in _TEXTS:
        return Matcher(operator, below.string())
    if operator == "equal":
        return Matcher(
            "equal", below.strings() if isinstance(below.value, list) else _scalar(below)
        )
    parts = (_element(below),) if operator == "contain-element" else _parts(below, "element")
    return Matcher(operator, parts=parts)


def _parts(node: Node, of: Literal["element", "line"]) -> tuple[Matcher, ...]:
    return tuple(
        _element(item) if of == "element" or isinstance(item.value, dict) else _pattern(item)
        for item in _bounded(node)
    )


def _element(node: Node) -> Matcher:
    if isinstance(node.value, dict):
        return _parse_named(node, "text")
    return Matcher("equal", node.string())


def _bounded(node: Node) -> list[Node]:
    found = node.items()
    if len(found) > PARTS_MOST:
        raise node.place.wrong(
            f"{node.place.path} has {len(found)} elements; at most {PARTS_MOST} are wanted"
        )
    return found


def _scalar(node: Node) -> bool | int | float | str:
    if isinstance(node.value, (dict, list)) or node.value is None:
        raise node.mistaken("a value or a list of texts")
    return node.value


def _check_regex(pattern: str, node: Node) -> None:
    if len(pattern) > PATTERN_CHARS_MOST:
        raise node.place.wrong(_too_long(pattern))
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as exc:
        raise node.place.wrong(
            f"{pattern!r} is no regular expression: {exc}",
            hint="the syntax is that of Python's `re`",
        ) from exc


def _too_long(pattern: str) -> str:
    return f"a pattern is {len(pattern)} characters long; at most {PATTERN_CHARS_MOST} are wanted"


def _wanted(kind: ValueKind) -> str:
    return {
        "flag": "true or false",
        "whole": "a whole number",
        "text": "a text",
        "list": "a list",
        "output": "a list of patterns",
    }[kind]

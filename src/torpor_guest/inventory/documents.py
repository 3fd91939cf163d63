"""Entries out of JSON and YAML documents: which parts, which fields, what may be shown."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from typing import Any

from torpor_guest.inventory import blocks, loose
from torpor_guest.inventory.loose import NotUnderstood

DOCUMENT_MOST = 4 << 20
FIELDS_MOST = 48
ELEMENTS_MOST = 5000
_SECRET = re.compile(
    r"(?:^|[._\-/ ]|(?<=[a-z0-9])(?=[A-Z]))"
    r"(?:api[_-]?keys?|keys?|tokens?|secrets?|pass(?:word|wd|phrase)?|credentials?|auth|cookies?|private|bearer|"
    r"signature)(?:$|[._\-/ ]|(?=[A-Z]))",
    re.IGNORECASE,
)
Element = tuple[str, dict[str, Any]]
"""An entry's name, and its fields by dotted name."""


def read(text: str, how: str) -> Any:
    """Return what a document holds. Raises `NotUnderstood`."""
    try:
        return loose.loads(text) if how == "json" else blocks.loads(text)
    except RecursionError as exc:
        raise NotUnderstood("it is nested too deeply") from exc


def is_secret(name: str) -> bool:
    """Return whether a field's name says that it holds a secret."""
    return _SECRET.search(name) is not None


def pick(value: Any, pointer: str) -> Any:
    """Return the part that a JSON pointer names; None when it is not there."""
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def elements(value: Any, source: dict[str, Any]) -> Iterator[Element]:
    """Yield the entries of a part of a document, in its order; at most `ELEMENTS_MOST`."""
    ignored = _patterns(source.get("ignore"))
    made = (
        _as_fields(value, source, ignored)
        if source.get("fields")
        else _as_items(value, source, ignored)
    )
    for number, element in enumerate(made):
        if number >= ELEMENTS_MOST:
            return
        yield element


def shows(source: dict[str, Any]) -> Callable[[str], bool]:
    """Return what tells whether the value of a field may be shown."""
    allowed = _patterns(source.get("show"))

    def may_show(name: str) -> bool:
        return allowed(name) and not is_secret(name)

    return may_show


def _as_fields(
    value: Any, source: dict[str, Any], ignored: Callable[[str], bool]
) -> Iterator[Element]:
    wanted = _patterns(source.get("only") or ["*"])
    for name, leaf in _leaves(value, ""):
        if wanted(name) and not ignored(name):
            yield name or "value", {"value": leaf}


def _as_items(
    value: Any, source: dict[str, Any], ignored: Callable[[str], bool]
) -> Iterator[Element]:
    if isinstance(value, dict):
        for key, item in value.items():
            if not ignored(key):
                yield key, _fields(item, ignored)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield _name(item, index, source.get("name")), _fields(item, ignored)
    elif value is not None:
        yield "value", {"value": value}


def _name(item: Any, index: int, field: str | None) -> str:
    """Return what names an element of a list; a text that may be a secret names nothing."""
    named = item.get(field) if isinstance(item, dict) and field else item
    if isinstance(named, (str, int)) and not isinstance(named, bool) and is_name(str(named)):
        return str(named)
    return f"[{index}]"


def is_name(text: str) -> bool:
    """Return whether a text can be a name: short, of one line, and no long run of random letters and digits."""
    return _NAME.fullmatch(text) is not None and not any(
        len(run) >= _RANDOM_RUN
        and _LETTER.search(run)
        and _DIGIT.search(run)
        and not _UUID.search(text)
        for run in _RUN.findall(text)
    )


_NAME = re.compile(r"[^\x00-\x1f]{1,128}")
_RUN = re.compile(r"[A-Za-z0-9+/=_-]+")
_RANDOM_RUN = 20
_LETTER, _DIGIT = re.compile(r"[A-Za-z]"), re.compile(r"[0-9]")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def _fields(item: Any, ignored: Callable[[str], bool]) -> dict[str, Any]:
    if isinstance(item, str) and is_name(item):
        return {}
    if not isinstance(item, dict):
        return {"value": item}
    found = [(name, leaf) for name, leaf in _leaves(item, "") if not ignored(name)]
    if len(found) > FIELDS_MOST:  # too many to tell apart: the top ones, each with all below it
        found = [(key, value) for key, value in item.items() if not ignored(key)]
    if len(found) > FIELDS_MOST:
        return {"all fields": dict(found)}
    return dict(found)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every value that is no object, by dotted name; a list counts as one value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else key)
    elif value is not None and value != {}:
        yield name, value


def _patterns(patterns: list[str] | None) -> Callable[[str], bool]:
    """Return what tells whether a dotted name, or what it lies below, fits one of some patterns."""
    if not patterns:
        return lambda _: False
    fits = re.compile("|".join(fnmatch.translate(p) for p in patterns)).match

    def matches(name: str) -> bool:
        parts = name.split(".")
        return any(fits(".".join(parts[:end])) for end in range(1, len(parts) + 1))

    return matches

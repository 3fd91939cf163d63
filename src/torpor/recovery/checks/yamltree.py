"""YAML as a tree in which every value knows its line and column. What is read is bounded before it is built.

Only plain YAML is taken: one document, no anchors' aliases, no tags of its own, no key twice. So a few
bytes can never stand for many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from torpor.base.near import meant
from torpor.errors import InvalidRequest, LimitExceeded

TEXT_BYTES_MOST = 256 << 10
DEPTH_MOST = 16
KEY_CHARS_MOST = 4096

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_PLAIN = {
    f"{_CORE}{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "value")
}
_TRUE, _FALSE = {"true", "yes", "on", "y"}, {"false", "no", "off", "n"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands in its file, counted from 1."""

    source: str
    line: int
    column: int
    path: str
    """The keys that lead to it: `required.file./etc/x.mode`."""

    def wrong(self, message: str, *, hint: str | None = None) -> InvalidRequest:
        """Return the error for this place."""
        return InvalidRequest(
            f"{self.source}:{self.line}:{self.column}: {message}",
            hint=hint,
            source=self.source,
            line=self.line,
            column=self.column,
            key=self.path,
        )


@dataclass(frozen=True, slots=True)
class Node:
    """One value: a mapping, a list or a scalar."""

    place: Place
    value: dict[str, Node] | list[Node] | str | int | float | bool | None
    text: str = ""
    """A scalar as it was written, without quotes."""
    keys: dict[str, Place] | None = None
    """Where the keys of a mapping stand."""
    key: Place | None = None
    """Where the key of this value stands."""

    @property
    def name_place(self) -> Place:
        """Where the name of this value stands, for complaints about that."""
        return self.key or self.place

    @property
    def said(self) -> str:
        """What it is, for messages."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        return repr(self.text)[:80] if self.value is not None else "empty"

    def mistaken(self, wanted: str, *, hint: str | None = None) -> InvalidRequest:
        """Return the error for a value that is not what was wanted."""
        what = self.place.path or "the file"
        return self.place.wrong(f"{what} is {self.said}; wanted {wanted}", hint=hint)

    def mapping(self, wanted: str = "a mapping") -> dict[str, Node]:
        """Return the entries of a mapping."""
        if not isinstance(self.value, dict):
            raise self.mistaken(wanted)
        return self.value

    def items(self) -> list[Node]:
        """Return the elements of a list."""
        if not isinstance(self.value, list):
            raise self.mistaken("a list")
        return self.value

    def only(self, known: Collection[str]) -> dict[str, Node]:
        """Return the entries of a mapping that has no key but those in `known`."""
        found = self.mapping()
        for name in found:
            if name not in known:
                assert self.keys is not None
                raise self.keys[name].wrong(
                    f"{self.place.path or 'the file'} has the key {name!r}, which is not known",
                    hint=meant(name, known) or f"known: {', '.join(sorted(known))}",
                )
        return found

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            raise self.mistaken("true or false")
        return self.value

    def string(self) -> str:
        """Return a text, also one that looks like a number."""
        if not isinstance(self.value, (str, int, float)) or isinstance(self.value, bool):
            raise self.mistaken("a text")
        return self.text

    def whole(self, least: int, most: int) -> int:
        """Return a whole number from `least` to `most`."""
        if (
            not isinstance(self.value, int)
            or isinstance(self.value, bool)
            or not least <= self.value <= most
        ):
            raise self.mistaken(f"a whole number from {least} to {most}")
        return self.value

    def number(self, least: float, most: float) -> float:
        """Return a number from `least` to `most`."""
        found = self.value
        if (
            isinstance(found, bool)
            or not isinstance(found, (int, float))
            or not least <= found <= most
        ):
            raise self.mistaken(f"a number from {least:g} to {most:g}")
        return float(found)

    def strings(self) -> tuple[str, ...]:
        """Return a list of texts; a single text counts as a list of one."""
        if isinstance(self.value, list):
            return tuple(item.string() for item in self.value)
        return (self.string(),)


def read_tree(text: str, *, source: str) -> Node:
    """Return the one document in `text`.

    Raises:
        InvalidRequest: it is not YAML, or not plain YAML; the message begins with `source:line:column`.
        LimitExceeded: it is over `TEXT_BYTES_MOST` bytes.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > TEXT_BYTES_MOST:
        raise LimitExceeded(
            f"{source} is {size} bytes; at most {TEXT_BYTES_MOST} are wanted", source=source
        )
    try:
        _check_events(text, source)
        root = yaml.compose(text, Loader=LOADER)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        place = _at(source, mark, "")
        said = " ".join(str(part) for part in (exc.context, exc.problem) if part)
        raise place.wrong(f"this is not YAML: {said}", hint=_tab_hint(text, place)) from exc
    except (yaml.YAMLError, UnicodeError, ValueError) as exc:
        # a character that no YAML may hold; the reader knows no line
        position = position_of(exc, text)
        line = text.count("\n", 0, position) + 1
        place = Place(source, line, position - text.rfind("\n", 0, position), "")
        raise place.wrong("this is not YAML: it has a character that YAML may not have") from exc
    if root is None:
        raise Place(source, 1, 1, "").wrong("the file is empty; wanted `required` or `wanted`")
    return _built(root, source, "")


def _tab_hint(text: str, place: Place) -> str | None:
    """Return what to say when what cannot be read is a tab."""
    line = "".join(text.split("\n")[place.line - 1 : place.line])
    is_tab = line[place.column - 1 : place.column] == "\t"
    return "YAML is indented with spaces, never with tabs" if is_tab else None


def position_of(error: Exception, text: str) -> int:
    """Return at which character of `text` it was that YAML may not have."""
    if isinstance(error, UnicodeEncodeError):
        return error.start
    position = int(getattr(error, "position", 0))
    if LOADER is yaml.SafeLoader:
        return position
    return len(text.encode()[:position].decode(errors="ignore"))  # libyaml counts bytes


def _check_events(text: str, source: str) -> None:
    """Refuse what could make the tree larger or deeper than its text."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise _at(source, event.start_mark, "").wrong(
                f"the alias *{event.anchor} is not taken",
                hint="write the value out where it is needed",
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MOST:
                raise _at(source, event.start_mark, "").wrong(
                    f"this is nested deeper than {DEPTH_MOST} levels"
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _at(source, event.start_mark, "").wrong(
                    "a second document begins here; one is wanted"
                )


def _built(node: Any, source: str, path: str) -> Node:
    place = _at(source, node.start_mark, path)
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        for name, where, below in _entries(node, source, path):
            if name in values:
                raise where.wrong(
                    f"the key {name!r} stands here a second time; "
                    f"the first is in line {keys[name].line}",
                    hint="put both under the first",
                )
            keys[name] = where
            values[name] = below
        _check_tag(node, place, f"{_CORE}map")
        return Node(place, values, keys=keys)
    if isinstance(node, yaml.SequenceNode):
        _check_tag(node, place, f"{_CORE}seq")
        return Node(
            place, [_built(item, source, f"{path}[{n}]") for n, item in enumerate(node.value)]
        )
    return Node(place, _scalar(node, place), text=node.value)


def _entries(node: Any, source: str, path: str) -> Iterator[tuple[str, Place, Node]]:
    for key, value in node.value:
        where = _at(source, key.start_mark, path)
        if not isinstance(key, yaml.ScalarNode) or key.tag == f"{_CORE}merge":
            raise where.wrong(
                "a key has to be a text", hint="no `<<`, no lists and no mappings as keys"
            )
        name = key.value
        if len(name) > KEY_CHARS_MOST:
            raise where.wrong(
                f"a key is {len(name)} characters long; at most {KEY_CHARS_MOST} are wanted"
            )
        below = f"{path}.{name}" if path else name
        where = _at(source, key.start_mark, below)
        yield name, where, dataclasses.replace(_built(value, source, below), key=where)


def _check_tag(node: Any, place: Place, wanted: str) -> None:
    if node.tag != wanted:
        raise place.wrong(f"the tag {node.tag!r} is not taken; plain YAML is wanted")


def _scalar(node: Any, place: Place) -> str | int | float | bool | None:
    tag, text = node.tag, node.value
    if tag not in _PLAIN:
        raise place.wrong(f"the tag {tag!r} is not taken; plain YAML is wanted")
    kind = tag.removeprefix(_CORE)
    if kind == "null":
        return None
    if kind == "bool":
        if text.lower() not in _TRUE | _FALSE:
            raise place.wrong(f"{text!r} is neither true nor false")
        return bool(text.lower() in _TRUE)
    if kind == "int":
        return _whole(text)
    if kind == "float":
        try:
            return float(text.replace("_", ""))
        except ValueError:
            return str(text)
    return str(text)


def _whole(text: str) -> int | str:
    """Return a number as YAML 1.2 reads it; 1.1's `0644` and `1:30` stay what was written."""
    has_zeros = len(text.lstrip("+-")) > 1 and text.lstrip("+-").startswith("0")
    try:
        return int(text, 10) if len(text) < 20 and not has_zeros else str(text)
    except ValueError:
        return str(text)


def _at(source: str, mark: Any, path: str) -> Place:
    if mark is None:
        return Place(source, 1, 1, path)
    return Place(source, mark.line + 1, mark.column + 1, path)

"""YAML with places: every complaint says source, line and column. Anchors, tags and repeated keys are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn, TypeVar

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from torpor.errors import InvalidRequest
from torpor.recovery.checks.yamltree import LOADER, position_of

T = TypeVar("T")
BYTES_MOST = 256 << 10
_DEPTH_MOST = 20
_TEXT_MOST = 4096


class Item:
    """One node of a document, with its place."""

    def __init__(self, node: Node, source: str, path: str = "") -> None:
        self._node = node
        self._source = source
        self.path = path
        """Where it is, such as `skills[0].path`."""

    def fail(self, message: str, *, hint: str | None = None) -> NoReturn:
        """Raise `InvalidRequest` with the place of this node."""
        mark = self._node.start_mark
        where = f"{self._source}:{mark.line + 1}:{mark.column + 1}"
        what = f"{self.path}: " if self.path else ""
        raise InvalidRequest(f"{where}: {what}{message}", hint=hint)

    def table(self, known: Mapping[str, object] | set[str]) -> dict[str, Item]:
        """Return the items of a mapping whose keys are all known."""
        found = self.pairs()
        for key, item in found.items():
            if key not in known:
                item.fail(
                    f"there is no key {key!r} here", hint=f"keys are {', '.join(sorted(known))}"
                )
        return found

    def pairs(self) -> dict[str, Item]:
        """Return the items of a mapping by key."""
        if not isinstance(self._node, MappingNode):
            self.fail("a mapping is wanted")
        found: dict[str, Item] = {}
        for key, value in self._node.value:
            if not isinstance(key, ScalarNode):
                Item(key, self._source, self.path).fail("a key must be a plain text")
            name = str(key.value)
            if name in found:
                Item(key, self._source, self.path).fail(f"the key {name!r} is there twice")
            found[name] = Item(value, self._source, f"{self.path}.{name}" if self.path else name)
        return found

    def items(self) -> Iterator[Item]:
        """Yield the items of a list."""
        if not isinstance(self._node, SequenceNode):
            self.fail("a list is wanted")
        for index, node in enumerate(self._node.value):
            yield Item(node, self._source, f"{self.path}[{index}]")

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return isinstance(self._node, SequenceNode)

    @property
    def is_table(self) -> bool:
        """Whether it is a mapping."""
        return isinstance(self._node, MappingNode)

    def text(self, *, fits: str | None = None) -> str:
        """Return a text that is not empty and, as a whole, fits a pattern."""
        if not isinstance(self._node, ScalarNode) or self._node.tag.endswith((":null", ":bool")):
            self.fail("a text is wanted")
        value = str(self._node.value)
        if not value or len(value) > _TEXT_MOST or "\0" in value:
            self.fail(f"a text of 1 to {_TEXT_MOST} characters is wanted")
        if fits is not None and not re.fullmatch(fits, value):
            self.fail(f"{value!r} cannot be")
        return value

    def texts(self, check: Callable[[Item], str] | None = None) -> tuple[str, ...]:
        """Return a list of texts, or one text as a list."""
        check = check or Item.text
        return tuple(check(item) for item in self.items()) if self.is_list else (check(self),)

    def one_of(self, words: Mapping[str, T]) -> T:
        """Return what a word stands for."""
        value = self.text()
        if value not in words:
            self.fail(f"{value!r} is not known", hint=f"one of {', '.join(words)}")
        return words[value]

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self._node, ScalarNode) or not self._node.tag.endswith(":bool"):
            self.fail("true or false is wanted")
        return str(self._node.value).lower() in ("true", "yes", "on")

    def number(self, least: float, most: float) -> float:
        """Return a number between two bounds."""
        try:
            value = float(self._node.value) if isinstance(self._node, ScalarNode) else float("nan")
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            self.fail(f"a number from {least:g} to {most:g} is wanted")
        return value


def read_document(text: str, *, source: str) -> Item:
    """Return the root of a YAML document.

    Raises:
        InvalidRequest: it is no YAML, too long, nested too deeply, or uses what is refused.
    """
    if len(text.encode("utf-8", "surrogatepass")) > BYTES_MOST:
        raise InvalidRequest(f"{source}: it is longer than {BYTES_MOST >> 10} KiB")
    try:
        _refuse_tricks(text, source)
        node = yaml.compose(text, Loader=LOADER)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise InvalidRequest(f"{where}: {exc.problem or exc.context}") from exc
    except (yaml.YAMLError, UnicodeError) as exc:
        position = position_of(exc, text)
        line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
        raise InvalidRequest(
            f"{source}:{line}:{column}: it has a character that YAML may not have"
        ) from exc
    if node is None:
        raise InvalidRequest(f"{source}:1:1: it is empty")
    return Item(node, source)


def _refuse_tricks(text: str, source: str) -> None:
    """Refuse what makes a short document a long one, before anything is built of it."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        mark = event.start_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise InvalidRequest(f"{where}: anchors and aliases are not taken")
        if getattr(event, "tag", None):
            raise InvalidRequest(f"{where}: tags are not taken")
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1
        if depth > _DEPTH_MOST:
            raise InvalidRequest(f"{where}: it is nested more than {_DEPTH_MOST} deep")

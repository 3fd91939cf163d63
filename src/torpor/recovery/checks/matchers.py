"""goss's matchers: what an attribute has to be. docs/reference/checks.md lists those that are taken.

A found value is a truth value, a number, a text, a tuple of texts, or an `Output`, which is matched line
by line. Regular expressions are Python's; they are searched by whoever is handed in as `search`, because a
careless one can take for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

ValueKind = Literal["flag", "whole", "text", "list", "output"]
"""What an attribute is by nature; says what a bare value in the file means."""

Search = Callable[[str, Sequence[str]], Awaitable[bool]]
"""Whether a regular expression is found in one of the texts."""


COMPARISONS = ("gt", "ge", "lt", "le")
_FINDS = {"pattern", "and", "or", "contain-element", "contain-elements", "contain-substring",
          "have-prefix"}  # fmt: skip
"""What still holds when more output follows."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a command wrote, a file holds or a server sent."""

    text: str
    is_cut: bool = False
    """There was more than was kept."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Its lines, without their ends."""
        return tuple(self.text.splitlines())


Value = bool | int | float | str | tuple[str, ...] | Output


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition, maybe made of others."""

    operator: str
    value: bool | int | float | str | tuple[str, ...] = ""
    parts: tuple[Matcher, ...] = ()

    @property
    def words(self) -> str:
        """What is wanted, for people."""
        if self.operator == "equal":
            return shown(self.value)
        if self.operator in ("pattern", "no-pattern"):
            said = f"a line with {shown(self.value)}"
            return f"no line with {shown(self.value)}" if self.operator == "no-pattern" else said
        if self.operator == "all":
            return "; ".join(part.words for part in self.parts) or "anything"
        inner = ", ".join(part.words for part in self.parts) if self.parts else shown(self.value)
        return f"{self.operator} {inner}"

    @property
    def holds_with_more(self) -> bool:
        """Whether a match stays one when more output follows."""
        return self.operator in (*_FINDS, "all") and all(
            part.holds_with_more for part in self.parts
        )

    async def match(self, found: Value, search: Search) -> bool:
        """Return whether `found` is as wanted."""
        operator = self.operator
        if operator in ("and", "all"):
            return all([await part.match(found, search) for part in self.parts])
        if operator == "or":
            return any([await part.match(found, search) for part in self.parts])
        if operator == "not":
            return not await self.parts[0].match(found, search)
        if operator in ("contain-element", "contain-elements", "consist-of"):
            return await self._match_elements(_elements(found), search)
        if operator in ("pattern", "no-pattern", "match-regexp"):
            return await self._match_pattern(found, search)
        return self._match_plain(found)

    async def _match_elements(self, elements: tuple[str, ...], search: Search) -> bool:
        if self.operator == "consist-of" and len(elements) != len(self.parts):
            return False
        fits = [
            [at for at, element in enumerate(elements) if await part.match(element, search)]
            for part in self.parts
        ]
        return _each_has_its_own(fits)

    async def _match_pattern(self, found: Value, search: Search) -> bool:
        wanted = str(self.value)
        if self.operator == "match-regexp":
            return await search(wanted, [_text(found)])
        lines = found.lines if isinstance(found, Output) else _elements(found)
        if is_regex(wanted):
            is_found = await search(wanted[1:-1], lines)
        else:
            is_found = any(wanted in line for line in lines)
        return is_found == (self.operator == "pattern")

    def _match_plain(self, found: Value) -> bool:
        wanted, operator = self.value, self.operator
        if operator == "have-len":
            size = len(found.lines) if isinstance(found, Output) else None
            return (len(found) if isinstance(found, (str, tuple)) else size) == wanted
        if operator in COMPARISONS:
            return _compares(operator, found, wanted)
        if operator == "have-prefix":
            return _text(found).startswith(str(wanted))
        if operator == "have-suffix":
            return _text(found).rstrip("\n").endswith(str(wanted))
        if operator == "contain-substring":
            return str(wanted) in _text(found)
        return _equal(found, wanted)


def pattern_matcher(text: str) -> Matcher:
    """Return goss's pattern: `foo`, `!foo`, `\\!foo`, `/foo/` or `!/foo/`."""
    if text.startswith("!"):
        return Matcher("no-pattern", text[1:])
    return Matcher("pattern", text[1:] if text.startswith("\\!") else text)


def shown(value: object) -> str:
    """Return a value as it is written in a checks file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value) if str(value).strip() else repr(str(value))


def is_regex(text: str) -> bool:
    """Return whether a pattern is a regular expression: it stands between slashes."""
    return len(text) > 1 and text.startswith("/") and text.endswith("/")


def _text(found: Value) -> str:
    if isinstance(found, Output):
        return found.text
    return (
        "\n".join(found)
        if isinstance(found, tuple)
        else shown(found)
        if isinstance(found, bool)
        else str(found)
    )


def _elements(found: Value) -> tuple[str, ...]:
    if isinstance(found, tuple):
        return found
    return tuple(_text(found).splitlines())


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(str(value))
    except ValueError:
        return None


def _compares(operator: str, found: Value, wanted: object) -> bool:
    left, right = _number(_text(found).strip()), _number(wanted)
    if left is None or right is None:
        return False
    return {
        "gt": left > right, "ge": left >= right, "lt": left < right, "le": left <= right
    }[operator]  # fmt: skip


def _equal(found: Value, wanted: object) -> bool:
    if isinstance(wanted, tuple):
        return _elements(found) == wanted
    if isinstance(wanted, bool) or isinstance(found, bool):
        return found is wanted
    if isinstance(wanted, (int, float)):
        return _number(_text(found).strip()) == float(wanted)
    text = _text(found)
    return text == wanted or (isinstance(found, Output) and text.removesuffix("\n") == wanted)


def _each_has_its_own(fits: Sequence[Sequence[int]]) -> bool:
    """Return whether each matcher can have an element that no other has, given which elements fit it."""
    owner: dict[int, int] = {}

    def seat(matcher: int, tried: set[int]) -> bool:
        for element in fits[matcher]:
            if element not in tried:
                tried.add(element)
                if element not in owner or seat(owner[element], tried):
                    owner[element] = matcher
                    return True
        return False

    return all(seat(matcher, set()) for matcher in range(len(fits)))

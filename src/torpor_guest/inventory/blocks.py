"""The YAML that configuration files are written in: block mappings and lists, plain and quoted texts, literal blocks.

There is no YAML in the standard library. What this does not know (anchors, tags, several documents, odd
indentation, plain texts over several lines) raises `NotUnderstood`, so nothing is ever read wrongly and called right.
"""

from __future__ import annotations

import json
import re
from typing import Any

from torpor_guest.inventory.loose import DEPTH_MOST, NotUnderstood, flow, plain, quoted, skip_space

_KEY = re.compile(r"(?P<key>[^\s#&*!|>%@`\"'\[\]{},?-][^#\n]*?|-[^\s#][^#\n]*?)[ \t]*:(?=[ \t]|$)")
_ODD_LINES = re.compile("[\x85\u2028\u2029]|\r(?!\n)")
_BREAK = "\ud800"
_QUOTED_LINES_MOST = 400
_LITERAL = re.compile(r"[|>](?P<chomp>[+-]?)(?P<indent>[1-9]?)[ \t]*(?:#.*)?")


def loads(text: str) -> Any:
    """Return what a YAML document holds. Raises `NotUnderstood`."""
    if _ODD_LINES.search(text):
        raise NotUnderstood("its lines end oddly")
    return _Parser(text).document()


class _Parser:
    def __init__(self, text: str) -> None:
        self._lines = text.lstrip("\ufeff").split("\n")
        self._at = 0

    def document(self) -> Any:
        self._skip_blank()
        if self._at < len(self._lines) and self._lines[self._at].rstrip(" \t") == "---":
            self._at += 1
            self._skip_blank()
        if self._at >= len(self._lines):
            return None
        value = self._block(self._indent(), 0)
        self._skip_blank()
        if self._at < len(self._lines) and self._lines[self._at].rstrip(" \t") != "...":
            raise NotUnderstood(f"line {self._at + 1} does not belong to what is before it")
        return value

    def _skip_blank(self) -> None:
        while self._at < len(self._lines):
            line = self._lines[self._at].strip(" \r")
            if line and not line.startswith("#"):
                return
            self._at += 1

    def _indent(self) -> int:
        line = self._lines[self._at]
        rest = line.lstrip(" ")
        if rest.startswith("\t"):
            raise NotUnderstood(f"line {self._at + 1} is indented by a tab")
        return len(line) - len(rest)

    def _line(self) -> str:
        return self._lines[self._at].rstrip("\r")

    def _block(self, indent: int, depth: int) -> Any:
        """Return the mapping, list or text that begins on this line."""
        if depth > DEPTH_MOST:
            raise NotUnderstood("it is nested too deeply")
        rest = self._line()[indent:]
        if rest == "-" or rest.startswith("- "):
            return self._list(indent, depth)
        if _KEY.match(rest) or (rest[:1] in "\"'" and self._is_quoted_key(rest)):
            return self._mapping(indent, depth)
        return self._inline(rest, indent - 1, depth)

    def _is_quoted_key(self, rest: str) -> bool:
        try:
            _, end = self._quoted(rest)
        except NotUnderstood:
            return False
        return re.match(r"[ \t]*:(?:[ \t]|$)", rest[end:]) is not None

    def _list(self, indent: int, depth: int) -> list[Any]:
        found: list[Any] = []
        while self._here(indent):
            rest = self._line()[indent:]
            if not (rest == "-" or rest.startswith("- ")):
                break
            inner = rest[1:].lstrip(" ")
            if not inner or inner.startswith("#"):
                found.append(self._nested(indent, depth))
            else:  # what follows the dash is as if it stood alone on its line, that far in
                column = indent + len(rest) - len(inner)
                self._lines[self._at] = " " * column + inner
                found.append(self._block(column, depth + 1))
        return found

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._here(indent):
            rest = self._line()[indent:]
            if rest == "-" or rest.startswith("- "):
                break
            key, after = self._key(rest)
            if key in found:
                raise NotUnderstood(f"line {self._at + 1}: the key {key[:40]!r} is there twice")
            inner = after.strip(" ")
            if not inner or inner.startswith("#"):
                found[key] = self._nested(indent, depth, in_mapping=True)
            else:
                found[key] = self._inline(inner, indent, depth)
        return found

    def _key(self, rest: str) -> tuple[str, str]:
        if rest[:1] in "\"'":
            key, end = self._quoted(rest)
            colon = re.match(r"[ \t]*:(?=[ \t]|$)", rest[end:])
            if colon is None:
                raise NotUnderstood(f"line {self._at + 1}: ':' is wanted")
            return key, rest[end + colon.end() :]
        found = _KEY.match(rest)
        if found is None:
            raise NotUnderstood(f"line {self._at + 1} is not understood")
        value = plain(found["key"], yaml=True)
        return value if isinstance(value, str) else json.dumps(value), rest[found.end() :]

    def _here(self, indent: int) -> bool:
        """Return whether the next line that says something is indented exactly so; deeper is not understood."""
        self._skip_blank()
        if self._at >= len(self._lines):
            return False
        now = self._indent()
        if now > indent:
            raise NotUnderstood(f"line {self._at + 1} is indented more than what is before it")
        return now == indent and self._line() not in ("---", "...")

    def _nested(self, indent: int, depth: int, *, in_mapping: bool = False) -> Any:
        """Return what lies below a line that ends in `:` or `-`."""
        self._at += 1
        self._skip_blank()
        if self._at >= len(self._lines):
            return None
        now = self._indent()
        rest = self._line()[now:]
        is_list = rest == "-" or rest.startswith("- ")
        if now > indent or (in_mapping and now == indent and is_list):
            return self._block(now, depth + 1)
        return None

    def _inline(self, rest: str, indent: int, depth: int) -> Any:
        """Return the value on this line, which may go on below it when it is in brackets or a literal block."""
        if rest[:1] in "|>":
            return self._literal(rest, indent)
        if rest[:1] in "[{":
            return self._flow(rest, indent, depth)
        if rest[:1] in "\"'":
            return self._quoted_lines(rest)
        word = re.split(r"[ \t]#", rest, maxsplit=1)[0].rstrip(" \t")
        if re.search(r":(?:[ \t]|$)", word):
            raise NotUnderstood(f"line {self._at + 1} is not understood")
        self._at += 1
        more = self._continued(indent)
        if not more:
            return plain(word, yaml=True)
        if len(word) < len(rest.rstrip(" \t")) or not isinstance(plain(word, yaml=True), str):
            raise NotUnderstood(f"line {self._at} does not belong to what is before it")
        return _joined([word, *more])

    def _continued(self, indent: int) -> list[str]:
        """Return the lines with which a plain text goes on, empty ones among them."""
        found: list[str] = []
        end = self._at
        while self._at < len(self._lines):
            line = self._line().strip(" \t")
            if line and (self._indent() <= max(indent, -1) or self._line() in ("---", "...")):
                break
            if line.startswith("#") or re.search(r"[ \t]#|:(?:[ \t]|$)", line):
                if found and any(found):
                    raise NotUnderstood(f"line {self._at + 1} is not understood")
                break
            found.append(line)
            self._at += 1
            if line:
                end = self._at
        kept = len(found) - (self._at - end)
        self._at = end
        return found[: max(kept, 0)]

    def _quoted_lines(self, rest: str) -> str:
        """Return a text in quotes, which may go on over several lines."""
        text = rest
        for more in range(_QUOTED_LINES_MOST):
            try:
                value, end = self._quoted(text)
            except NotUnderstood:
                if self._at + more + 1 >= len(self._lines):
                    break
                text = _with_line(text, self._lines[self._at + more + 1].rstrip("\r"))
                continue
            self._rest_is_comment(text[end:])
            self._at += more + 1
            return value.replace(_BREAK, "\n")
        raise NotUnderstood(f"line {self._at + 1}: a text in quotes has no end")

    def _quoted(self, rest: str) -> tuple[str, int]:
        return quoted(rest, 0, yaml=True)

    def _rest_is_comment(self, rest: str) -> None:
        if rest.strip(" \t") and not re.match(r"[ \t]+#", rest):
            raise NotUnderstood(f"line {self._at + 1} is not understood")

    def _flow(self, rest: str, indent: int, depth: int) -> Any:
        """Return what is in brackets, over as many lines as it takes."""
        for end in range(self._at + 1, min(self._at + 400, len(self._lines)) + 1):
            text = "\n".join([rest, *self._lines[self._at + 1 : end]])
            try:
                value, stop = flow(text, 0, depth, yaml=True)
            except NotUnderstood:
                continue
            if skip_space(text, stop, yaml=True) != len(text):
                break
            self._at = end
            return value
        raise NotUnderstood(f"line {self._at + 1}: what is in brackets is not understood")

    def _literal(self, rest: str, indent: int) -> str:
        head = _LITERAL.fullmatch(rest)
        if head is None:
            raise NotUnderstood(f"line {self._at + 1} is not understood")
        self._at += 1
        lines: list[str] = []
        own = indent + int(head["indent"]) if head["indent"] else 0
        while self._at < len(self._lines):
            line = self._line()
            if line.strip(" ") and not own:
                own = len(line) - len(line.lstrip(" "))
                if own <= indent:
                    break
            if line.strip(" ") and len(line) - len(line.lstrip(" ")) < own:
                break
            lines.append(line[own:] if own else "")
            self._at += 1
        text = "\n".join(lines).rstrip("\n")
        if rest[0] == ">":
            text = _folded(text)
        if head["chomp"] == "+":
            raise NotUnderstood("a literal block keeps its empty lines")
        return text if head["chomp"] == "-" or not text else f"{text}\n"


def _joined(lines: list[str]) -> str:
    """Return lines of one text as YAML joins them: a single break is a space, an empty line is a break."""
    text, breaks = lines[0], 0
    for line in lines[1:]:
        if not line:
            breaks += 1
            continue
        text += "\n" * breaks + line if breaks else f" {line}"
        breaks = 0
    return text


def _with_line(text: str, line: str) -> str:
    """Return the beginning of a text in quotes with its next line."""
    line = line.strip(" \t")
    if text[0] == '"' and re.search(r"(?<!\\)(?:\\\\)*\\$", text):
        return text[:-1] + line if line else text
    ends_broken = text.endswith(_BREAK)
    text = text if ends_broken else text.rstrip(" \t")
    if not line:
        return text + _BREAK
    return text + line if ends_broken else f"{text} {line}"


def _folded(text: str) -> str:
    if re.search(r"(?m)^\s", text) or "\n\n" in text:
        raise NotUnderstood("a folded block is not plain")
    return text.replace("\n", " ")

"""Words and variables of a Dockerfile's values, by the rules of its own shell-like language."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?:(:[-+])([^{}]*))?\}")


class BadWordError(Exception):
    """Raised for text that cannot be read; the text says why."""


def split(text: str, env: Mapping[str, str]) -> list[str]:
    """Return the words of `text`, quotes taken off and variables filled in. Raises `BadWordError`."""
    words: list[str] = []
    current: list[str] | None = None
    quote = ""
    at = 0
    while at < len(text):
        char = text[at]
        if not quote and char.isspace():
            if current is not None:
                words.append("".join(current))
            current = None
            at += 1
            continue
        current = [] if current is None else current
        if char == quote:
            quote = ""
            at += 1
        elif not quote and char in "\"'":
            quote = char
            at += 1
        else:
            piece, at = _piece(text, at, quote, env)
            current.append(piece)
    if quote:
        raise BadWordError(f"a quote {quote} is not closed")
    if current is not None:
        words.append("".join(current))
    return words


def fill(text: str, env: Mapping[str, str]) -> str:
    """Return `text` as one word, its blanks kept. Raises `BadWordError`."""
    out, at = [], 0
    while at < len(text):
        piece, at = _piece(text, at, "", env)
        out.append(piece)
    return "".join(out)


def _piece(text: str, at: int, quote: str, env: Mapping[str, str]) -> tuple[str, int]:
    """Return what the text at `at` stands for, and where it goes on."""
    char = text[at]
    if quote == "'":
        return char, at + 1
    if char == "\\" and at + 1 < len(text):
        after = text[at + 1]
        if quote and after not in '"$\\':
            return char + after, at + 2
        return after, at + 2
    if char == "$":
        return _variable(text, at, env)
    return char, at + 1


def _variable(text: str, at: int, env: Mapping[str, str]) -> tuple[str, int]:
    if text.startswith("${", at):
        found = _BRACED.match(text, at + 1)
        if found is None:
            raise BadWordError(
                f"{text[at : at + 40]!r} is no variable; ${{NAME}} or ${{NAME:-WORD}}"
            )
        name, how, word = found[1], found[2], found[3] or ""
        value = env.get(name, "")
        if how == ":-":
            value = value or fill(word, env)
        elif how == ":+":
            value = fill(word, env) if value else ""
        return value, found.end()
    found = _NAME.match(text, at + 1)
    if found is None:
        return "$", at + 1
    return env.get(found[0], ""), found.end()

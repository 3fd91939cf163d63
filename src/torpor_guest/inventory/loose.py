"""JSON as people write it: comments, trailing commas, plain keys, single quotes. Also the flow style of YAML.

Only what can be understood without doubt is; anything else raises `NotUnderstood`.
"""

from __future__ import annotations

import json
import re
from typing import Any

DEPTH_MOST = 40

_SPACE = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_YAML_SPACE = re.compile(r"(?:[ \t\r\n]+|(?<![^ \t\n])#[^\n]*)*")
_PLAIN = re.compile(
    r"[^ \t\r\n,:\[\]{}\"'#][^,:\[\]{}\n]*(?::(?=[^ \t\r\n,\[\]{}])[^,:\[\]{}\n]*)*"
)
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?")
_YAML_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?|\.[0-9]+(?:[eE][-+][0-9]+)?")
_WORDS: dict[str, object] = {
    "null": None, "Null": None, "NULL": None, "~": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "\n": "", "e": "\x1b", "a": "\a",
}  # fmt: skip


_YAML_ESCAPES = {
    **{letter: _ESCAPES[letter] for letter in "ntrbfv0ea"},
    **{letter: letter for letter in " \"/\\"},
    "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip


class NotUnderstood(ValueError):
    """Raised for a document that cannot be read without guessing."""


def loads(text: str) -> Any:
    """Return what a JSON or JSON5 document holds. Raises `NotUnderstood`."""
    try:
        return json.loads(text)
    except RecursionError as exc:
        raise NotUnderstood("it is nested too deeply") from exc
    except ValueError:
        pass
    value, end = flow(text, 0)
    end = skip_space(text, end)
    if end != len(text):
        raise NotUnderstood(f"something follows its end at character {end}")
    return value


def flow(text: str, at: int, depth: int = 0, *, yaml: bool = False) -> tuple[Any, int]:
    """Return the value that begins at `at`, and where it ends. Raises `NotUnderstood`."""
    if depth > DEPTH_MOST:
        raise NotUnderstood("it is nested too deeply")
    at = skip_space(text, at, yaml=yaml)
    if at >= len(text):
        raise NotUnderstood("it ends in the middle")
    if text[at] == "{":
        return _object(text, at + 1, depth, yaml)
    if text[at] == "[":
        return _array(text, at + 1, depth, yaml)
    if text[at] in "\"'":
        return quoted(text, at, yaml=yaml)
    found = _PLAIN.match(text, at)
    if found is None or " #" in found.group() or "\t" in found.group():
        raise NotUnderstood(f"character {at} cannot begin a value")
    return plain(found.group().rstrip(" \t\r\n"), yaml=yaml), found.end()


def plain(word: str, *, yaml: bool = False) -> object:
    """Return what a word without quotes means. Raises `NotUnderstood`."""
    if word in _WORDS:
        return _WORDS[word]
    if yaml and word.lower() in ("yes", "no", "on", "off"):
        return word.lower() in ("yes", "on")
    if _INTEGER.fullmatch(word) and len(word) < 400:
        return int(word)
    if (_YAML_FLOAT if yaml else _FLOAT).fullmatch(word):
        return float(word)
    if word[:1] in "&*!|>%@`" or (yaml and (word[:2] in ("- ", "? ", ": ") or word in ("-", "?"))):
        raise NotUnderstood(f"{word[:20]!r} is more than a plain value")
    return word


def quoted(text: str, at: int, *, yaml: bool = False) -> tuple[str, int]:
    """Return the text in quotes that begins at `at`, and where it ends. Raises `NotUnderstood`."""
    mark, pieces = text[at], list[str]()
    if yaml and mark == "'":
        return _single_quoted(text, at)
    at += 1
    while at < len(text):
        letter = text[at]
        if letter == "\n" and yaml:
            raise NotUnderstood("a text in quotes goes over several lines")
        if letter == mark:
            return _paired("".join(pieces)) if not yaml else "".join(pieces), at + 1
        if letter == "\\":
            piece, at = _escape(text, at + 1, yaml)
            pieces.append(piece)
        else:
            pieces.append(letter)
            at += 1
    raise NotUnderstood("a text in quotes has no end")


def _paired(text: str) -> str:
    """Return a text in which two halves of one character, each written as an escape, are that character."""
    return _PAIR.sub(lambda two: two[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


def skip_space(text: str, at: int, *, yaml: bool = False) -> int:
    """Return where the next thing begins that is no space and no comment."""
    found = (_YAML_SPACE if yaml else _SPACE).match(text, at)
    return found.end() if found else at


def _single_quoted(text: str, at: int) -> tuple[str, int]:
    """Return a text in YAML's single quotes, in which only two of them are special: they are one."""
    end = at + 1
    while (end := text.find("'", end)) >= 0:
        if text[end + 1 : end + 2] != "'":
            inner = text[at + 1 : end]
            if "\n" in inner:
                break
            return inner.replace("''", "'"), end + 1
        end += 2
    raise NotUnderstood("a text in quotes goes over several lines")


def _escape(text: str, at: int, yaml: bool) -> tuple[str, int]:
    letter = text[at : at + 1]
    width = {"u": 4, "x": 2, "U": 8}.get(letter)
    if width is None and yaml:
        if letter not in _YAML_ESCAPES:
            raise NotUnderstood(f"{letter!r} is no escape")
        return _YAML_ESCAPES[letter], at + 1
    if width is None:
        return _ESCAPES.get(letter, letter), at + 1
    digits = text[at + 1 : at + 1 + width]
    try:
        return chr(int(digits, 16)), at + 1 + width
    except (ValueError, OverflowError) as exc:
        raise NotUnderstood(f"{digits!r} is no character") from exc


def _object(text: str, at: int, depth: int, yaml: bool) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    while True:
        at = skip_space(text, at, yaml=yaml)
        if text[at : at + 1] == "}":
            return found, at + 1
        key, at = flow(text, at, depth + 1, yaml=yaml)
        at = skip_space(text, at, yaml=yaml)
        if text[at : at + 1] != ":" or isinstance(key, (dict, list)):
            raise NotUnderstood(f"character {at}: ':' is wanted")
        value, at = flow(text, at + 1, depth + 1, yaml=yaml)
        name = key if isinstance(key, str) else json.dumps(key)
        if name in found:
            raise NotUnderstood(f"the key {name[:40]!r} is there twice")
        found[name] = value
        at = _next(text, at, "}", yaml)


def _array(text: str, at: int, depth: int, yaml: bool) -> tuple[list[Any], int]:
    found: list[Any] = []
    while True:
        at = skip_space(text, at, yaml=yaml)
        if text[at : at + 1] == "]":
            return found, at + 1
        value, at = flow(text, at, depth + 1, yaml=yaml)
        found.append(value)
        at = _next(text, at, "]", yaml)


def _next(text: str, at: int, end: str, yaml: bool) -> int:
    at = skip_space(text, at, yaml=yaml)
    if text[at : at + 1] == ",":
        return at + 1
    if text[at : at + 1] == end:
        return at
    raise NotUnderstood(f"character {at}: ',' or {end!r} is wanted")

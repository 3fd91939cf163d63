"""What may come in: lengths, characters and forms. Content is data; nothing in it is ever obeyed."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Any, TypeVar

from torpor.errors import InvalidRequest, LimitExceeded
from torpor.model_memory import Json

MAX_CONTENT_BYTES = 1 << 20
MAX_VALUE_BYTES = 1 << 20
MAX_VALUE_DEPTH = 64
"""Lists and objects in each other: what is deeper cannot be read again from every place in the program."""
MAX_NAME_CHARS = 256
MAX_REASON_CHARS = 4096
MAX_QUERY_CHARS = 32_768

E = TypeVar("E", bound=StrEnum)

_SPACE = re.compile(r"\s+")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def content(text: Any, what: str = "content", limit_bytes: int = MAX_CONTENT_BYTES) -> str:
    """Return `text` if it is text that can be kept.

    Raises:
        InvalidRequest: it is binary, empty or cannot be encoded.
        LimitExceeded: it is too long.
    """
    if not isinstance(text, str):
        raise InvalidRequest(
            f"{what} must be text, not {type(text).__name__}",
            hint="keep binary data in a file or volume and record its path",
        )
    if len(text) > limit_bytes:
        raise LimitExceeded(f"{what} is over {limit_bytes} bytes", limit_bytes=limit_bytes)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"{what} is not valid Unicode: {exc.reason}") from exc
    if size > limit_bytes:
        raise LimitExceeded(
            f"{what} is {size} bytes, over the limit of {limit_bytes}", limit_bytes=limit_bytes
        )
    if "\0" in text:
        raise InvalidRequest(f"{what} holds a NUL: it is binary", hint="record a path instead")
    if not text.strip():
        raise InvalidRequest(f"{what} is empty")
    return text


def name(text: Any, what: str) -> str:
    """Return `text` if it can be a subject, an attribute, a session or an agent's name.

    Raises:
        InvalidRequest: it is not a short line of text.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequest(f"{what} must be text and not empty")
    if len(text) > MAX_NAME_CHARS:
        raise LimitExceeded(f"{what} is over {MAX_NAME_CHARS} characters")
    if _CONTROL.search(text) or "\n" in text or "\r" in text:
        raise InvalidRequest(f"{what} must be one line without control characters")
    return content(text.strip(), what)


def reason(text: Any) -> str:
    """Return a reason, at most 4096 characters; it may be empty."""
    if not isinstance(text, str):
        raise InvalidRequest(f"reason must be text, not {type(text).__name__}")
    if len(text) > MAX_REASON_CHARS:
        raise LimitExceeded(f"reason is over {MAX_REASON_CHARS} characters")
    return content(text, "reason") if text.strip() else ""


def value_json(value: Json) -> str:
    """Return a value as canonical JSON.

    Raises:
        InvalidRequest: it is no JSON value.
        LimitExceeded: it is too long.
    """
    if not _is_flat(value, MAX_VALUE_DEPTH):
        raise LimitExceeded(f"the value has more than {MAX_VALUE_DEPTH} levels")
    try:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"the value cannot be kept as JSON: {exc}") from exc
    if size > MAX_VALUE_BYTES:
        raise LimitExceeded(f"the value is over {MAX_VALUE_BYTES} bytes")
    if "\\u0000" in text:
        raise InvalidRequest("the value holds a NUL: it is binary")
    return text


def _is_flat(value: object, levels: int) -> bool:
    if not isinstance(value, (dict, list, tuple)):
        return True
    inside = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_flat(one, levels - 1) for one in inside)


def fold(text: str) -> str:
    """Return text in the form in which names are compared."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{text!r:.80} is no name")
    return _SPACE.sub(" ", text).strip().casefold()


def value_key(value: Json) -> str:
    """Return the form in which values are compared: case, spacing and a final stop do not matter."""
    if isinstance(value, str):
        return json.dumps(fold(value).rstrip(".!,; "), ensure_ascii=False)
    return value_json(value)


def choice(kind: type[E], value: object, what: str) -> E:
    """Return the enum member that `value` names.

    Raises:
        InvalidRequest: there is none.
    """
    try:
        return kind(str(value))
    except ValueError as exc:
        raise InvalidRequest(
            f"{value!r} is not a {what}", hint=f"use one of: {', '.join(kind)}"
        ) from exc


def fraction(value: object, what: str) -> float:
    """Return a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidRequest(f"{what} must be between 0 and 1, not {value!r}")
    return float(value)


def positive(value: object, what: str, most: int) -> int:
    """Return a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidRequest(f"{what} must be from 1 to {most}, not {value!r}")
    return value

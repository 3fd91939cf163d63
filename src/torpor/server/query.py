"""Query strings whose values may be any bytes: they are percent-decoded to bytes, then to surrogates."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Query, Request

from torpor.errors import InvalidRequest

PATH_LIMIT_BYTES = 4096
"""PATH_MAX of Linux."""


def raw_query(request: Request) -> list[tuple[str, str]]:
    """Return the query's names and values; bytes that are not UTF-8 become lone surrogates."""
    query: bytes = request.scope["query_string"]
    pairs = (part.partition(b"=") for part in query.split(b"&") if part)
    return [(_decode(name), _decode(value)) for name, _, value in pairs]


def _decode(part: bytes) -> str:
    return unquote_to_bytes(part.replace(b"+", b" ")).decode("utf-8", "surrogateescape")


def guest_path(
    request: Request,
    path: Annotated[
        str, Query(description="Absolute path in the guest; any bytes, percent-encoded.")
    ],
) -> str:
    """Return the `path` of the query, exactly."""
    return check_path(next(value for name, value in raw_query(request) if name == "path"))


GuestPath = Annotated[str, Depends(guest_path)]


def check_path(path: str) -> str:
    """Return `path` if it can be a path in the guest.

    Raises:
        InvalidRequest: it is not absolute, has a NUL or is too long.
    """
    if not path.startswith("/"):
        raise InvalidRequest(f"path {path!r} is not absolute", hint="begin it with '/'", path=path)
    if "\0" in path:
        raise InvalidRequest(f"path {path!r} has a NUL byte", path=path)
    if len(to_bytes(path, "path")) >= PATH_LIMIT_BYTES:
        raise InvalidRequest(f"path is {PATH_LIMIT_BYTES} bytes or longer")
    return path


def to_bytes(text: str, what: str) -> bytes:
    """Return the bytes that `text` carries, lone surrogates as the raw bytes they stand for.

    Raises:
        InvalidRequest: it has a surrogate that stands for no byte.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        raise InvalidRequest(
            f"{what} has the surrogate U+{ord(text[exc.start]):04X}, which stands for no byte",
            hint="raw bytes are written as U+DC80 to U+DCFF",
        ) from exc

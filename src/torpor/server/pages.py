"""Pages of lists that are in memory: a cursor names the last item of the page before."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Depends, Query

from torpor.errors import InvalidRequest

T = TypeVar("T")


def _limit(
    limit: Annotated[int | None, Query(ge=1, le=1000, description="At most; null: all.")] = None,
) -> int | None:
    return limit


def _cursor(
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> str | None:
    return cursor


Limit = Annotated[int | None, Depends(_limit)]
Cursor = Annotated[str | None, Depends(_cursor)]


def page_of(
    items: Sequence[T], key: Callable[[T], str], limit: int | None, cursor: str | None
) -> tuple[list[T], str | None]:
    """Return the items behind `cursor`, `limit` at most (None: all), and the cursor for the next page.

    Raises:
        InvalidRequest: the cursor is not one of ours, or what it names is gone.
    """
    start = 0
    if cursor is not None:
        last = _decode(cursor)
        start = next((at for at, item in enumerate(items, 1) if key(item) == last), -1)
        if start < 0:
            raise InvalidRequest(
                "what the cursor named is gone", hint="begin again, without a cursor"
            )
    end = len(items) if limit is None else min(len(items), start + limit)
    found = list(items[start:end])
    return found, _encode(key(found[-1])) if found and end < len(items) else None


def _encode(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def _decode(cursor: str) -> str:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error, UnicodeError) as exc:
        raise InvalidRequest(
            f"the cursor {cursor[:80]!r} is not one of ours",
            hint="use next_cursor of the page before, unchanged",
        ) from exc

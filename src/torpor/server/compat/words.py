"""What a failure says to a client that shows its text alone, and that sends some requests again because of a word.

PandaStack's client takes a status of 500 or more for a command's time limit when its text has `timeout` or
`deadline exceeded` in it, and sends a command again when it has one of the phrases of a machine that is not up
yet. So a text has the first only for a command or code that was stopped at its limit, and never one of the others: whatever
ran would be run twice.
"""

from __future__ import annotations

import copy
import re

from torpor.errors import InvalidRequest, OperationTimeout, TorporError, error_to_wire
from torpor.server.replies import Last, Reply, error_reply, sse

RUN_AGAIN = {
    "connect: connection refused": "connect: refused",
    "no route to host": "no way to the host",
    "i/o timeout": "i/o time-out",
}
"""Phrases that make the client send a command again, and what is said instead."""

_LIMIT = re.compile(r"timeout|deadline exceeded", re.IGNORECASE)


def told(error: TorporError) -> TorporError:
    """Return `error` in words for such a client: with its hint, and none that it takes for something else."""
    text = error.message
    if error.hint:
        text = f"{text} ({error.hint})"
    if error.http_status >= 500 and not _is_commands_limit(error):
        text = _LIMIT.sub(lambda found: _SAID[found.group().lower()], text)
    for phrase, instead in RUN_AGAIN.items():
        text = re.sub(re.escape(phrase), instead, text, flags=re.IGNORECASE)
    found = copy.copy(error)
    found.args = (text,)
    return found


_SAID = {"timeout": "time-out", "deadline exceeded": "deadline passed"}


def _is_commands_limit(error: TorporError) -> bool:
    is_of_code = bool({"exec_id", "context_id"} & error.facts.keys())
    return isinstance(error, OperationTimeout) and is_of_code


def failure(error: TorporError) -> Reply:
    """Return the flat JSON answer; nothing in it makes the client repeat what may have been begun."""
    return error_reply(told(error))


def sse_failure(error: TorporError) -> bytes:
    """Return the event `error`, the last of its stream."""
    return Last(sse("error", error_to_wire(told(error))))


def wanted(value: int | None, name: str, low: int, high: int) -> int:
    """Return a number that must be there. Raises `InvalidRequest`."""
    if value is None or not low <= value <= high:
        raise InvalidRequest(f"{name} is {value}; {low} to {high} is wanted")
    return value

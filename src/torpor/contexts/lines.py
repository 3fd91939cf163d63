"""What a context's program says, line by line, made into events; nothing of it is believed but its shape.

A line is bounded in bytes and in the values that its JSON makes: one of empty lists takes seconds to read and thirty
times its size in memory. A long one is read in a thread, so that the daemon goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator
from typing import Any, Final

from torpor.errors import Busy, GuestFailed, TorporError
from torpor.model_contexts import (
    CODE_STATUSES,
    CodeEnded,
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeResult,
    CodeStarted,
)

LINE_BYTES: Final = 24 << 20
RUN_BYTES: Final = 96 << 20
"""Of all lines of one run together."""
LINE_VALUES: Final = 1 << 20
"""Values in the JSON of one line, whose reading nothing interrupts."""
RUN_VALUES: Final = 2 << 20
"""Of all lines of one run that are longer than `_SMALL_BYTES`."""
RESULTS_MOST: Final = 4096
_SMALL_BYTES: Final = 1 << 10
_AT_ONCE_BYTES: Final = 32 << 10
"""A line of that length is read where it came; a longer one in a thread."""
_VALUE: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{,]', re.DOTALL)
_MIME: Final = re.compile(
    r"[A-Za-z0-9!#$&^_.+-]{1,60}/[A-Za-z0-9!#$&^_.+-]{1,60}(;[^\x00-\x1f]{0,60})?"
)


class Lines:
    """Cuts bytes into JSON objects."""

    def __init__(
        self,
        *,
        line_bytes: int = LINE_BYTES,
        total_bytes: int = RUN_BYTES,
        line_values: int = LINE_VALUES,
        total_values: int = RUN_VALUES,
    ) -> None:
        self._line_bytes = line_bytes
        self._left = total_bytes
        self._line_values = line_values
        self._values_left = total_values
        self._held = bytearray()

    async def feed(self, data: bytes) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the objects that are whole now.

        Raises:
            GuestFailed: a line is too long or no JSON object, or there are too many, or too many values in them.
        """
        for line in self._cut(data):
            if len(line) <= _AT_ONCE_BYTES:
                yield self._object(line)
            else:
                yield await asyncio.to_thread(self._object, line)

    def _cut(self, data: bytes) -> list[bytes]:
        self._left -= len(data)
        self._held += data
        if b"\n" not in data:
            if len(self._held) > self._line_bytes or self._left < 0:
                raise _nonsense("it sent more than is believed")
            return []
        *lines, rest = bytes(self._held).split(b"\n")
        self._held = bytearray(rest)
        if self._left < 0 or any(len(line) > self._line_bytes for line in lines):
            raise _nonsense("it sent more than is believed")
        return [line for line in lines if line.strip()]

    def _object(self, line: bytes) -> dict[str, Any]:
        if len(line) > _SMALL_BYTES:
            most = min(self._line_values, self._values_left)
            found = _values(line, most)
            if found > most:
                raise _nonsense("it sent more values than are believed")
            self._values_left -= found
        return _object(line)


def _values(line: bytes, most: int) -> int:
    """Return a bound of how many values the JSON of a line has; one that is over `most` when that is so."""
    found = line.count(b",") + line.count(b"[") + line.count(b"{")
    if found <= _SMALL_BYTES:
        return found  # texts may have such characters, too; a few do not matter
    found = 0
    for token in _VALUE.finditer(line):
        found += token[0] in b",[{"
        if found > most:
            break
    return found


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line, parse_constant=lambda _name: None, parse_float=_finite)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _nonsense("it sent a line that is no JSON object")
    return found


def _finite(text: str) -> float | None:
    """Return a number; None for one like 1e999, which would be none in our JSON."""
    found = float(text)
    return found if math.isfinite(found) else None


def event_of(said: dict[str, Any], *, duration_ms: int) -> CodeEvent | None:
    """Return the event that a line is; None for one of a newer program.

    Raises:
        GuestFailed: the line makes no sense.
        Busy: the run was refused, since too many wait.
    """
    kind = said.get("kind")
    if kind == "started":
        return CodeStarted()
    if kind in ("stdout", "stderr"):
        return CodeOutput("stdout" if kind == "stdout" else "stderr", _text(said, "text"))
    if kind == "result":
        return _result(said)
    if kind == "error":
        return CodeError(
            name=_text(said, "name")[:200],
            value=_text(said, "value"),
            traceback=_text(said, "traceback"),
        )
    if kind == "done":
        return _ended(said, duration_ms)
    if kind == "refused":
        raise refusal(said)
    return None


def refusal(said: dict[str, Any]) -> TorporError:
    """Return the error that a refusal is."""
    message = " ".join(str(said.get("message", "")).split())[:1000]
    if said.get("why") == "busy":
        return Busy(
            f"the context is busy: {message}", hint="wait, interrupt it, or make another context"
        )
    return GuestFailed(
        f"the context could not do it: {message}",
        hint="restart the context, or delete it and make another",
    )


def _result(said: dict[str, Any]) -> CodeResult:
    data, omitted = said.get("data"), said.get("omitted") or {}
    if not isinstance(data, dict) or not isinstance(omitted, dict):
        raise _nonsense("a result has no data")
    return CodeResult(
        data={mime: value for mime, value in data.items() if _MIME.fullmatch(mime)},
        is_main=said.get("main") is True,
        omitted={
            mime: size
            for mime, size in omitted.items()
            if _MIME.fullmatch(mime) and _is_count(size)
        },
    )


def _ended(said: dict[str, Any], duration_ms: int) -> CodeEnded:
    status = next((known for known in CODE_STATUSES if known == said.get("status")), None)
    if status is None:
        raise _nonsense("how the code ended is not said")
    return CodeEnded(
        status=status,
        duration_ms=duration_ms,
        restarted=said.get("restarted") is True,
        exit_code=_count(said, "exit_code", most=255),
        execution_count=_count(said, "execution_count"),
        stdout_bytes=_count(said, "stdout_bytes") or 0,
        stderr_bytes=_count(said, "stderr_bytes") or 0,
    )


def _text(said: dict[str, Any], name: str) -> str:
    found = said.get(name)
    if not isinstance(found, str):
        raise _nonsense(f"{name} is no text")
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _count(said: dict[str, Any], name: str, *, most: int = 1 << 53) -> int | None:
    value = said.get(name)
    return value if isinstance(value, int) and _is_count(value) and value <= most else None


def _nonsense(what: str) -> GuestFailed:
    return GuestFailed(
        f"what the context's program answers makes no sense: {what}",
        hint="restart the context, or delete it and make another",
    )

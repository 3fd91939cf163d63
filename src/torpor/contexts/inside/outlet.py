"""What one run says: JSON lines, bounded, in order, and never waited for by the interpreter."""

from __future__ import annotations

import asyncio
import json
from typing import Any

VALUE_BYTES = 8 << 20
"""Longest value of one kind (such as one PNG) that is handed on."""
JSON_VALUES = 1 << 19
"""Most numbers, texts, lists and objects in the JSON that one run hands on; the host takes no more."""
_TRACEBACK_CHARS = 64 << 10


class Outlet:
    """The way out of one run; a client that is gone or slow changes nothing for the code."""

    def __init__(self, writer: asyncio.StreamWriter, *, output_bytes: int, result_bytes: int):
        self._writer = writer
        self._room = {"stdout": output_bytes, "stderr": output_bytes}
        self._result_room = result_bytes
        self._values_room = JSON_VALUES
        self.written = {"stdout": 0, "stderr": 0}
        """Bytes that the code wrote, those that were left out included."""

    def say(self, kind: str, **fields: Any) -> None:
        """Queue one line."""
        line = json.dumps({"kind": kind, **fields}, ensure_ascii=True, separators=(",", ":"))
        if not self._writer.is_closing():
            self._writer.write(line.encode("ascii") + b"\n")

    def stream(self, name: str, text: str) -> None:
        """Hand on output, as far as there is room for it."""
        if name not in self._room or not text:
            return
        data = text.encode("utf-8", "surrogatepass")
        self.written[name] += len(data)
        room = self._room[name]
        if room <= 0:
            return
        if len(data) > room:
            text = data[:room].decode("utf-8", "ignore")
        self._room[name] = room - len(data)
        for begin in range(0, len(text), 1 << 18):
            self.say(name, text=text[begin : begin + (1 << 18)])

    def result(self, data: dict[str, Any], *, is_main: bool) -> None:
        """Hand on a rich result by MIME type; a value too large is named, with its size, and left out."""
        kept: dict[str, Any] = {}
        omitted: dict[str, int] = {}
        for mime, value in list(data.items())[:32]:
            text = value if isinstance(value, str) else json.dumps(value)
            size = len(text)
            values = 0 if text is value else sum(text.count(mark) for mark in ",[{")
            if size > min(VALUE_BYTES, self._result_room) or values > self._values_room:
                omitted[str(mime)[:100]] = size
            else:
                self._result_room -= size
                self._values_room -= values
                kept[str(mime)[:100]] = value
        if self._result_room > -(1 << 20):
            self._result_room -= 64  # so that empty results come to an end, too
            self.say("result", data=kept, main=is_main, omitted=omitted)

    def error(self, name: object, value: object, traceback: str) -> None:
        """Hand on an error that the code raised."""
        text = traceback
        if len(text) > _TRACEBACK_CHARS:
            text = f"{text[: _TRACEBACK_CHARS // 2]}\n[...]\n{text[-_TRACEBACK_CHARS // 2 :]}"
        self.say("error", name=str(name)[:200], value=str(value)[: 16 << 10], traceback=text)

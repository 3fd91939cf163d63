"""Turns the bytes a command writes into text for JSON, without losing or splitting a character."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from torpor.errors import OperationTimeout
from torpor.model import ExecEnded, ExecEvent, ExecInfo, ExecOutput, ExecStarted
from torpor.server.replies import Last, sse, sse_error
from torpor.server.wire_exec import ExecResultWire, ExecWire

StreamName = Literal["stdout", "stderr"]
STREAMS: tuple[StreamName, StreamName] = ("stdout", "stderr")


def incomplete_tail(data: bytes) -> int:
    """Return how many bytes at the end of `data` (0 to 3) are the beginning of one UTF-8 character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        wanted = 4 if 0xF0 <= byte <= 0xF4 else 3 if byte >= 0xE0 else 2 if byte >= 0xC2 else 1
        return back if byte <= 0xF4 and wanted > back else 0
    return 0


def text_of(data: bytes) -> tuple[str, str | None]:
    """Return `data` as text, and in base 64 where the text cannot hold it exactly."""
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), base64.b64encode(data).decode("ascii")


@dataclass(slots=True)
class _Held:
    """The bytes of one stream that wait for the rest of their character."""

    data: bytes = b""
    offset: int = 0


class SseEncoder:
    """Encodes an exec's events as server-sent events.

    `stdout` and `stderr` carry `chunk`, `offset` (of its first byte in the stream), `next_offset` (to ask
    for when attaching again) and, where the bytes are not UTF-8, `b64`. A character that the guest sent
    in two pieces is held until it is whole, at most 3 bytes. Bytes at `limit_bytes` and after are left
    out. `exit` is last; `error` instead of it when the command was killed at its time limit.
    """

    def __init__(self, *, limit_bytes: int | None, streams: frozenset[str]) -> None:
        self._limit = limit_bytes
        self._streams = streams
        self.generation: int | None = None
        """Which life of the machine the events are of."""
        self.stdin_done: bool | None = None
        """Whether the input that came with the request is fed; None: there was none, or another daemon's."""
        self._held: dict[StreamName, _Held] = {"stdout": _Held(), "stderr": _Held()}

    def encode(self, event: ExecEvent) -> Iterator[bytes]:
        """Yield the frames for `event`, none while its bytes are held back."""
        if isinstance(event, ExecStarted):
            yield sse(
                "started",
                {
                    "exec_id": event.exec_id,
                    "pid": event.pid,
                    "stdin_done": self.stdin_done,
                    "generation": self.generation,
                },
            )
        elif isinstance(event, ExecOutput):
            if event.stream in self._streams:
                yield from self._output(event)
        else:
            for stream in STREAMS:
                yield from self._flush(stream)
            yield self._ended(event)

    def _output(self, event: ExecOutput) -> Iterator[bytes]:
        held = self._held[event.stream]
        data, offset = event.data, event.offset
        if held.data:
            data, offset = held.data + data, held.offset
        if self._limit is not None:
            data = data[: max(0, self._limit - offset)]
        cut = len(data) - incomplete_tail(data)
        held.data, held.offset = data[cut:], offset + cut
        if cut:
            yield _chunk(event.stream, offset, data[:cut])

    def _flush(self, stream: StreamName) -> Iterator[bytes]:
        held = self._held[stream]
        if held.data:
            yield _chunk(stream, held.offset, held.data)
            held.data = b""

    def _ended(self, event: ExecEnded) -> bytes:
        if event.info.timed_out:
            return sse_error(timed_out(event.info))
        return Last(sse("exit", ExecWire.of(event.info)))


def _chunk(stream: StreamName, offset: int, data: bytes) -> bytes:
    text, exact = text_of(data)
    frame: dict[str, object] = {"chunk": text, "offset": offset, "next_offset": offset + len(data)}
    if exact is not None:
        frame["b64"] = exact
    return sse(stream, frame)


def timed_out(info: ExecInfo, **output: object) -> OperationTimeout:
    """Return the error for a command that was killed at its time limit, with what it wrote until then."""
    return OperationTimeout(
        f"timeout: the command ran {(info.duration_ms or 0) / 1000:g} s, to its limit, "
        "and its process tree was killed",
        hint=f"give it more time (timeout_seconds, --timeout); in the sandbox its output is in {info.stdout_path or 'no file'}",
        exec_id=info.exec_id,
        exit_code=info.exit_code,
        signal=info.signal,
        duration_ms=info.duration_ms,
        stdout_bytes=info.stdout_bytes,
        stderr_bytes=info.stderr_bytes,
        stdout_path=info.stdout_path,
        stderr_path=info.stderr_path,
        **output,
    )


@dataclass(slots=True)
class Collected:
    """The output of one exec, each stream up to a limit."""

    limit_bytes: int
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)

    def add(self, event: ExecOutput) -> None:
        """Keep what still fits."""
        kept = self.stdout if event.stream == "stdout" else self.stderr
        kept += event.data[: max(0, self.limit_bytes - len(kept))]

    def texts(self, info: ExecInfo) -> dict[str, object]:
        """Return the fields of a result that hold output, with a mark where some is left out."""
        found: dict[str, object] = {}
        for stream, kept, total, path in (
            ("stdout", self.stdout, info.stdout_bytes, info.stdout_path),
            ("stderr", self.stderr, info.stderr_bytes, info.stderr_path),
        ):
            is_cut = total > len(kept)
            data = bytes(kept)
            if is_cut:
                data = data[: len(data) - incomplete_tail(data)]
            text, exact = text_of(data)
            found[stream] = text + truncation_mark(len(data), total, path) if is_cut else text
            found[f"{stream}_b64"] = exact
            found[f"{stream}_truncated"] = is_cut
        return found

    def result(self, info: ExecInfo) -> ExecResultWire:
        """Return the answer for a command that ended as `info` says.

        Raises:
            OperationTimeout: it was killed at its time limit; the facts have the output.
        """
        texts = self.texts(info)
        if info.timed_out:
            raise timed_out(info, **texts)
        assert info.exit_code is not None
        return ExecResultWire.model_validate(
            {
                "exec_id": info.exec_id,
                "exit_code": info.exit_code,
                "signal": info.signal,
                "timed_out": info.timed_out,
                "oom_killed": info.oom_killed,
                "duration_ms": info.duration_ms,
                "stdout_bytes": info.stdout_bytes,
                "stderr_bytes": info.stderr_bytes,
                "stdout_path": info.stdout_path,
                "stderr_path": info.stderr_path,
                **texts,
            }
        )


def truncation_mark(kept_bytes: int, total_bytes: int, path: str) -> str:
    """Return the line that stands where output was left out."""
    whole = f"; the whole is in {path}" if path else ""
    return f"\n[torpor: output truncated, {kept_bytes} of {total_bytes} bytes shown{whole}]\n"

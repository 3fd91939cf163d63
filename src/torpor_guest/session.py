"""The agent's end of the channel: hands each stream that the host opens to the method it names."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from torpor_guest import __version__, errors, protocol
from torpor_guest.device import Device
from torpor_guest.errors import AgentError
from torpor_guest.protocol import Decoder, Frame, ProtocolError
from torpor_guest.stream import Mux, Stream, StreamBroken

Method = Callable[[Stream, "dict[str, Any]"], Awaitable["dict[str, Any]"]]

MAX_STREAMS = 1024
WINDOW = 512 << 10
"""Bytes that the host may have under way to us in one stream."""
CAPABILITIES = (
    "exec",
    "exec.run",
    "exec.drop",
    "files",
    "follow_dir",
    "archive",
    "processes",
    "system",
    "snapshots",
    "still",
    "quiesce",
    "inventory",
    "volumes",
    "memory",
    "ports",
    "inlets",
    "terminal",
)

_log = logging.getLogger("torpor")


class Session(Mux):
    """One host at a time: a HELLO begins a session, the next HELLO or the host's leaving ends it.

    When a session ends, the methods under way are cancelled. Commands know nothing of it and run on.
    """

    def __init__(self, methods: Mapping[str, Method]) -> None:
        super().__init__(self._write)
        self._methods = methods
        self._decoder = Decoder()
        self._device: Device | None = None
        self._nonce = ""
        self._credit = protocol.DEFAULT_WINDOW
        self._openings: dict[int, protocol.MessageBuffer] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._instance = os.urandom(8).hex()
        self._decoder.epoch = -1

    def attach(self, device: Device) -> None:
        """Go on with this device, and tell the host that whatever was under way is gone."""
        self._device = device
        self._end("the agent opened its port")
        self.write(
            protocol.encode(
                protocol.ANNOUNCE, 0, 0, 0, protocol.pack_json({"instance": self._instance})
            )
        )

    def _write(self, data: bytes) -> None:
        """Queue the bytes of frames for the host."""
        if self._device:
            self._device.write(data)

    def received(self, data: bytes) -> None:
        """Take in bytes from the host."""
        for frame in self._decoder.feed(data):
            try:
                self._take(frame)
            except ProtocolError as exc:
                _log.warning("bad frame from the host: %s", exc)
                self._break(frame.stream, str(exc))

    def host_left(self) -> None:
        """Note that the host has closed its end."""
        self._end("the host closed the channel")

    def _take(self, frame: Frame) -> None:
        if frame.type == protocol.HELLO:
            self._greet(frame)
        elif frame.epoch != self._decoder.epoch:
            pass  # of before a HELLO in the same read
        elif frame.type == protocol.PING:
            self.write(protocol.encode(protocol.PONG, 0, self.epoch, 0, frame.payload[:256]))
        elif frame.type == protocol.OPEN:
            self._open(frame)
        elif frame.type == protocol.CANCEL:
            self._openings.pop(frame.stream, None)
            self._break(frame.stream, "cancelled by the host", answer=False)
        else:
            stream = self.streams.get(frame.stream)
            if stream:
                stream.take(frame)

    def _greet(self, frame: Frame) -> None:
        message = protocol.unpack_json(frame.payload)
        nonce = str(message.get("nonce"))[:64]
        if (frame.epoch, nonce) != (self.epoch, self._nonce):  # else: the host asks again
            self._end("the host connected anew")
            self.epoch, self._nonce = frame.epoch, nonce
            if self._device:
                self._device.drop_queue()
        refusal = ""
        try:
            protocol.agree(message)
        except ProtocolError as exc:
            refusal = str(exc)
            _log.warning("refused the host: %s", refusal)
        self._credit = protocol.window_of(message)
        self._decoder.epoch = -1 if refusal else frame.epoch
        answer = protocol.hello(
            nonce,
            window=WINDOW,
            capabilities=list(CAPABILITIES),
            agent_version=__version__,
            instance=self._instance,
            boot_id=_boot_id(),
            pid=os.getpid(),
            refusal=refusal,
        )
        self.write(protocol.encode(protocol.HELLO, 0, frame.epoch, 0, answer))

    def _open(self, frame: Frame) -> None:
        number = frame.stream
        buffer = self._openings.get(number)
        if buffer is None:
            if number in self.streams:
                raise ProtocolError(f"stream {number} is open already")
            if len(self.streams) + len(self._openings) >= MAX_STREAMS:
                self._refuse(
                    number, AgentError(errors.LIMIT, f"{MAX_STREAMS} streams are open already")
                )
                return
            buffer = self._openings[number] = protocol.MessageBuffer()
        try:
            message = buffer.add(frame)
        except ProtocolError as exc:
            del self._openings[number]
            self._refuse(number, AgentError(errors.INVALID, str(exc)))
            return
        if message is not None:
            del self._openings[number]
            stream = Stream(self, number, send_credit=self._credit, window=WINDOW)
            self.streams[number] = stream
            task = asyncio.get_running_loop().create_task(self._serve(stream, message))
            self._tasks[number] = task

    async def _serve(self, stream: Stream, message: dict[str, Any]) -> None:
        epoch = self.epoch
        answer: dict[str, Any]
        try:
            method, params = self._find(message)
            answer = {"ok": await method(stream, params)}
        except AgentError as exc:
            answer = {"error": exc.to_wire()}
        except OSError as exc:
            answer = {"error": errors.from_os(exc, f"{message.get('method')}").to_wire()}
        except (StreamBroken, ProtocolError) as exc:
            answer = {"error": AgentError(errors.FAILED, str(exc)).to_wire()}
        except Exception as exc:  # noqa: BLE001  # the host must get an answer, whatever broke
            _log.exception("method %s failed", message.get("method"))
            answer = {"error": AgentError(errors.FAILED, f"the agent failed: {exc!r}").to_wire()}
        finally:
            if self._tasks.get(stream.number) is asyncio.current_task():
                del self._tasks[stream.number]
                self.streams.pop(stream.number, None)
        if epoch == self.epoch and not stream.is_broken:
            self._close(stream.number, answer)

    def _find(self, message: dict[str, Any]) -> tuple[Method, dict[str, Any]]:
        name, params = message.get("method"), message.get("params")
        method = self._methods.get(name) if isinstance(name, str) else None
        if method is None or not isinstance(params, dict):
            raise AgentError(
                errors.INVALID,
                f"the agent has no method {str(name)[:100]!r}",
                hint="agent and host are of different versions: rebuild the template",
            )
        return method, params

    def _close(self, number: int, answer: dict[str, Any]) -> None:
        try:
            frames = protocol.encode_message(protocol.CLOSE, self.epoch, number, answer)
        except ProtocolError as exc:
            failure = AgentError(errors.LIMIT, f"the answer is too long: {exc}")
            frames = protocol.encode_message(
                protocol.CLOSE, self.epoch, number, {"error": failure.to_wire()}
            )
        self.write(frames)

    def _refuse(self, number: int, error: AgentError) -> None:
        self._close(number, {"error": error.to_wire()})

    def _break(self, number: int, reason: str, *, answer: bool = True) -> None:
        """Stop a stream's method; it may still be undoing its work when this returns."""
        stream = self.streams.pop(number, None)
        task = self._tasks.pop(number, None)
        if stream:
            stream.break_off(StreamBroken(reason))
            if answer:
                self._refuse(number, AgentError(errors.FAILED, reason))
        if task:
            task.cancel()

    def _end(self, reason: str) -> None:
        for number in list(self.streams):
            self._break(number, reason, answer=False)
        self._openings.clear()
        self._decoder.epoch = -1
        self._nonce = ""


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""

"""The host's end of the guest channel: one connection, many streams, nothing believed.

What a guest can make the host hold is bounded: one frame in the decoder, one window in each stream that the host
itself opened, one message at its end. A guest that breaks the rules, floods or falls silent loses the channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from torpor.base.fsio import socket_name
from torpor.errors import GuestFailed, GuestUnreachable
from torpor.guest import vsock
from torpor.guest.answers import error_of, guest_info
from torpor.model import GuestInfo
from torpor_guest import protocol
from torpor_guest.protocol import Decoder, Frame, ProtocolError, ProtocolSkew
from torpor_guest.stream import Mux, Stream, StreamBroken

WINDOW: Final = 1 << 20
"""Bytes that the guest may have under way to us in one stream."""
CALL_LIMIT_S: Final = 120.0
"""Longest wait for an answer, or for the next piece of a file, from an agent that is alive."""
_ANSWER_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
"""How long an answer through vsock is waited for before it is asked through another connection."""
_HELLO_AGAIN_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0)
_USELESS_LIMIT: Final = 64 << 20
"""Bytes without meaning for us that a guest may send between two frames that have some."""


class Channel(asyncio.Protocol):
    """A connection to one guest agent; `Channel.open` makes it."""

    def __init__(self, epoch: int, silence_limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._mux = Mux(self._write)
        self._mux.epoch = epoch
        self._decoder = Decoder(epoch)
        self._nonce = secrets.token_hex(8)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._announced: asyncio.Future[None] = self._loop.create_future()
        self._next_stream = 1
        self._credit = protocol.DEFAULT_WINDOW
        self._cut: str | None = None
        self._useless = 0
        self._pings: dict[bytes, asyncio.Future[None]] = {}
        self._tick_s = silence_limit_s / 3
        self._ticker: asyncio.TimerHandle | None = None
        self._heard = False
        self._silent_ticks = 0
        self._unwatched: set[int] = set()

    @staticmethod
    async def open(
        path: Path, port: int | None, *, epoch: int, timeout_s: float, silence_limit_s: float
    ) -> tuple[Channel, GuestInfo]:
        """Connect to the socket, and `port` behind it, and wait for the agent's answer.

        Raises:
            GuestUnreachable: nothing listens there, or no agent answered in time.
            GuestFailed: the agent speaks no protocol version that we speak; both are named.
        """
        try:
            async with asyncio.timeout(timeout_s):
                if port is None:
                    return await Channel._opened(path, epoch, silence_limit_s)
                waits = iter(_ANSWER_S)
                while True:
                    # a guest that goes on from a snapshot cuts what came too early, or forgets it and says nothing
                    with contextlib.suppress(GuestUnreachable, TimeoutError):
                        async with asyncio.timeout(next(waits, _ANSWER_S[-1])):
                            link = await vsock.connect(path, port)
                            return await Channel._opened(link, epoch, silence_limit_s)
        except OSError as exc:  # a timeout is one, too
            is_late = isinstance(exc, TimeoutError)
            raise GuestUnreachable(
                f"the guest agent did not answer within {timeout_s:g} s"
                if is_late
                else f"the guest channel {path} cannot be opened: {exc.strerror or exc}",
                socket=str(path),
            ) from exc

    @staticmethod
    async def _opened(
        end: Path | socket.socket, epoch: int, silence_limit_s: float
    ) -> tuple[Channel, GuestInfo]:
        """Return the channel through a socket that is connected, or is to be, once the agent has answered."""
        channel = Channel(epoch, silence_limit_s)
        try:
            if isinstance(end, socket.socket):
                await channel._loop.create_unix_connection(lambda: channel, sock=end)
            else:
                with socket_name(end) as name:
                    await channel._loop.create_unix_connection(lambda: channel, name)
            return channel, await channel._greet()
        except BaseException:
            channel.close()
            raise

    async def _greet(self) -> GuestInfo:
        hello = protocol.encode(
            protocol.HELLO,
            0,
            self._mux.epoch,
            0,
            protocol.hello(self._nonce, window=WINDOW),
        )
        waits = iter(_HELLO_AGAIN_S)
        wait_s = next(waits)
        while not self._answer.done():
            if self._announced.done():
                self._announced = self._loop.create_future()
            self._write(hello)
            await asyncio.wait(
                (self._answer, self._announced),
                timeout=wait_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            wait_s = next(waits, wait_s)
        answer = self._answer.result()
        try:
            protocol.agree(answer)
        except ProtocolSkew as exc:
            raise GuestFailed(
                f"the guest agent cannot be used: {exc}",
                hint="rebuild the template, so that its agent is of this version of Torpor",
                host_protocol=list(exc.mine),
                guest_protocol=list(exc.theirs),
            ) from exc
        except ProtocolError as exc:
            raise GuestFailed(f"the guest agent's greeting makes no sense: {exc}") from exc
        if answer.get("refusal"):
            raise GuestFailed(f"the guest agent refused the host: {answer['refusal']}"[:2000])
        self._credit = protocol.window_of(answer)
        return guest_info(answer)

    def close(self) -> None:
        """Close the connection; who waits gets `GuestUnreachable`. Idempotent."""
        self._fail("the guest channel was closed")

    @property
    def is_cut(self) -> bool:
        """Whether the connection is gone or was closed."""
        return self._cut is not None

    # Streams

    def start(self, method: str, params: dict[str, object], *, is_watched: bool = True) -> Stream:
        """Open a stream; `release` must be called for it.

        While a watched one is open the guest must give signs of life; one that only waits is not watched.
        """
        if self._cut is not None:
            raise GuestUnreachable(self._cut)
        number = self._next_stream
        self._next_stream += 1
        stream = Stream(self._mux, number, send_credit=self._credit, window=WINDOW)
        try:
            frames = protocol.encode_message(
                protocol.OPEN, self._mux.epoch, number, {"method": method, "params": params}
            )
        except ProtocolError as exc:
            raise error_of({"code": "limit", "message": f"{method}: {exc}"}) from exc
        self._mux.streams[number] = stream
        self._write(frames)
        if not is_watched:
            self._unwatched.add(number)
        elif self._ticker is None:
            self._heard, self._silent_ticks = False, 0
            self._ticker = self._loop.call_later(self._tick_s, self._tick)
        return stream

    def release(self, stream: Stream) -> None:
        """Forget a stream; if the guest has not closed it yet, it is told to stop."""
        self._unwatched.discard(stream.number)
        if self._mux.streams.pop(stream.number, None) and stream.result is None:
            stream.send_frame(protocol.CANCEL)

    async def receive(
        self, stream: Stream, *, limit_s: float | None = CALL_LIMIT_S
    ) -> tuple[int, bytes] | None:
        """Return the next piece of a stream, None at its end.

        Raises:
            GuestUnreachable: the channel was cut, or nothing came in time.
        """
        if stream.has_input:
            return await stream.receive()
        try:
            async with asyncio.timeout(limit_s):
                return await stream.receive()
        except TimeoutError as exc:
            raise GuestUnreachable(f"the guest agent sent nothing for {limit_s:g} s") from exc

    async def send(self, stream: Stream, data: bytes) -> bool:
        """Send `data`; return False when the guest has closed the stream already.

        Raises:
            GuestUnreachable: the channel was cut, or the guest took nothing in time.
        """
        if len(data) <= protocol.MAX_PAYLOAD and stream.try_send(protocol.CHANNEL_BYTES, data):
            return True
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                await stream.send(protocol.CHANNEL_BYTES, data)
        except TimeoutError as exc:
            raise GuestUnreachable(f"the guest agent took no data for {CALL_LIMIT_S:g} s") from exc
        except StreamBroken:
            return False
        return True

    def result(self, stream: Stream) -> dict[str, Any]:
        """Return what the guest closed the stream with, or raise the error that it closed it with."""
        if stream.result is None:
            raise GuestFailed("the guest agent ended a stream without an answer")
        if isinstance(ok := stream.result.get("ok"), dict):
            return ok
        raise error_of(stream.result.get("error"))

    async def call(
        self, method: str, params: dict[str, object], *, limit_s: float = CALL_LIMIT_S
    ) -> dict[str, Any]:
        """Ask and return the answer."""
        stream = self.start(method, params)
        try:
            while await self.receive(stream, limit_s=limit_s) is not None:
                pass
            return self.result(stream)
        finally:
            self.release(stream)

    async def ping(self, *, timeout_s: float) -> None:
        """Return when the agent has answered a PING."""
        if self._cut is not None:
            raise GuestUnreachable(self._cut)
        token = secrets.token_bytes(8)
        answered = self._pings[token] = self._loop.create_future()
        try:
            self._write(protocol.encode(protocol.PING, 0, self._mux.epoch, 0, token))
            async with asyncio.timeout(timeout_s):
                await answered
        except TimeoutError as exc:
            raise GuestUnreachable(
                f"the guest agent did not answer within {timeout_s:g} s"
            ) from exc
        finally:
            del self._pings[token]

    # What asyncio calls

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=512 << 10, low=128 << 10)

    @override
    def data_received(self, data: bytes) -> None:
        """Take in bytes from the guest."""
        try:
            for frame in self._decoder.feed(data):
                self._take(frame)
        except ProtocolError as exc:
            self._fail(f"the guest agent broke the channel's rules: {exc}")
        self._useless += self._decoder.wasted_bytes
        self._decoder.wasted_bytes = 0
        if self._useless > _USELESS_LIMIT:
            self._fail(f"the guest sent more than {_USELESS_LIMIT} bytes of no meaning")

    @override
    def pause_writing(self) -> None:
        """Note that the guest takes nothing more for now."""
        self._mux.clogged(True)

    @override
    def resume_writing(self) -> None:
        """Note that the guest takes bytes again."""
        self._mux.clogged(False)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone."""
        self._fail("the guest channel was cut")

    # Inside

    def _write(self, data: bytes) -> None:
        if self._transport and self._cut is None:
            self._transport.write(data)

    def _take(self, frame: Frame) -> None:
        if frame.type == protocol.HELLO:
            self._take_answer(frame)
            return
        if frame.type == protocol.ANNOUNCE:
            if not self._announced.done():
                self._announced.set_result(None)
            if self._answer.done():
                self._fail("the guest agent was started anew")
            return
        self._heard = True
        stream = self._mux.streams.get(frame.stream)
        if frame.type == protocol.PONG:
            answered = self._pings.get(frame.payload)
            if answered and not answered.done():
                answered.set_result(None)
        elif stream and not (stream.is_ended and frame.type in (protocol.DATA, protocol.END)):
            self._useless = 0
            stream.take(frame)
        else:
            self._useless += len(frame.payload) + protocol.FRAME_COST

    def _take_answer(self, frame: Frame) -> None:
        if frame.epoch != self._mux.epoch or self._answer.done():
            return
        message = protocol.unpack_json(frame.payload)
        if message.get("nonce") == self._nonce:
            self._answer.set_result(message)

    def _tick(self) -> None:
        self._ticker = None
        if len(self._mux.streams) == len(self._unwatched) or self._cut is not None:
            return
        self._silent_ticks = 0 if self._heard else self._silent_ticks + 1
        self._heard = False
        if self._silent_ticks > 3:
            self._fail(f"the guest agent has been silent for {3 * self._tick_s:g} s")
            return
        if self._silent_ticks:
            self._write(protocol.encode(protocol.PING, 0, self._mux.epoch, 0, b"still there?"))
        self._ticker = self._loop.call_later(self._tick_s, self._tick)

    def _fail(self, reason: str) -> None:
        if self._cut is not None:
            return
        self._cut = reason
        if self._ticker:
            self._ticker.cancel()
        if not self._answer.done():
            self._answer.set_exception(GuestUnreachable(reason))
            with contextlib.suppress(GuestUnreachable):
                self._answer.exception()  # nobody may be waiting
        for stream in list(self._mux.streams.values()):
            stream.break_off(GuestUnreachable(reason))
        for answered in self._pings.values():
            if not answered.done():
                answered.set_exception(GuestUnreachable(reason))
        if self._transport:
            self._transport.abort()

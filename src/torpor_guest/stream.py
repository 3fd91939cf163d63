"""One stream of the channel at one end: flow-controlled, both ways, on asyncio. Used by both ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from torpor_guest import protocol
from torpor_guest.protocol import Frame, ReceiveWindow, SendWindow


class StreamBroken(Exception):
    """Raised by a wait on a stream that was cancelled, refused, or lost with its channel."""


class Mux:
    """What a stream needs of its channel: a place for frames, and when that place is full."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write
        """Queues the bytes of frames; never waits."""
        self.epoch = 0
        self.streams: dict[int, Stream] = {}
        self.is_clogged = False

    def clogged(self, is_clogged: bool) -> None:
        """Note whether the queue is full; DATA waits while it is, other frames do not."""
        self.is_clogged = is_clogged
        if not is_clogged:
            for stream in list(self.streams.values()):
                stream.wake_sender()


class Stream:
    """One stream; at most one task sends in it and at most one receives.

    What was received and not yet read is bounded by the window that the peer was told. A stream whose reader
    stalls uses up its credit; nothing else waits for it.
    """

    def __init__(self, mux: Mux, number: int, *, send_credit: int, window: int) -> None:
        self.mux = mux
        self.number = number
        self.result: dict[str, Any] | None = None
        """What the CLOSE said."""
        self._sending = SendWindow(send_credit)
        self._receiving = ReceiveWindow(window)
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._message = protocol.MessageBuffer()
        self._is_ended = False
        self._broken: Exception | None = None
        self._sender: asyncio.Future[None] | None = None
        self._receiver: asyncio.Future[None] | None = None

    # What the owner calls

    def try_send(self, channel: int, data: bytes) -> bool:
        """Send `data` (at most one frame's payload) if that is possible at once; return whether it was."""
        if self._broken or self.mux.is_clogged or self._sender or self._sending.room < len(data):
            return False
        self._sending.sent(len(data))
        self.mux.write(protocol.encode(protocol.DATA, channel, self.mux.epoch, self.number, data))
        return True

    async def send(self, channel: int, data: bytes) -> None:
        """Send `data` of any length, as fast as the peer takes it.

        Raises:
            StreamBroken: the stream is over; how much was sent is not known.
        """
        start = 0
        while start < len(data):
            room = 0 if self.mux.is_clogged else self._sending.room
            if self._broken:
                raise self._broken
            if self.result is not None:
                raise StreamBroken("the other end has closed the stream")
            if room <= 0:
                self._sender = asyncio.get_running_loop().create_future()
                try:
                    await self._sender
                finally:
                    self._sender = None
                continue
            piece = data[start : start + min(room, protocol.MAX_PAYLOAD)]
            start += len(piece)
            self._sending.sent(len(piece))
            self.mux.write(
                protocol.encode(protocol.DATA, channel, self.mux.epoch, self.number, piece)
            )

    def send_frame(self, type_: int, payload: bytes = b"") -> None:
        """Queue a frame that takes no credit."""
        self.mux.write(protocol.encode(type_, 0, self.mux.epoch, self.number, payload))

    async def receive(self) -> tuple[int, bytes] | None:
        """Return the channel and bytes of the next DATA; None after the peer's END or CLOSE.

        Raises:
            StreamBroken: the stream is over; what it had received is dropped.
        """
        while not self._inbox:
            if self._broken:
                raise self._broken
            if self._is_ended:
                return None
            self._receiver = asyncio.get_running_loop().create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        channel, data = self._inbox.popleft()
        due = self._receiving.consumed(len(data))
        if due is not None and not self._is_ended:
            self.send_frame(protocol.CREDIT, due)
        return channel, data

    @property
    def has_input(self) -> bool:
        """Whether `receive` would return at once."""
        return bool(self._inbox) or self._is_ended

    @property
    def is_ended(self) -> bool:
        """Whether no more DATA comes."""
        return self._is_ended

    async def until_closed(self) -> None:
        """Return when the peer has closed the stream, after `receive` has returned None.

        Raises:
            StreamBroken: the stream is over.
        """
        while self.result is None:
            if self._broken:
                raise self._broken
            self._receiver = asyncio.get_running_loop().create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None

    @property
    def is_broken(self) -> bool:
        """Whether the stream was broken off."""
        return self._broken is not None

    # What the channel calls

    def take(self, frame: Frame) -> None:
        """Take in a frame of this stream.

        Raises:
            ProtocolError: the peer broke the rules.
        """
        if frame.type == protocol.DATA:
            if frame.payload and not self._is_ended:
                self._receiving.received(len(frame.payload))
                self._inbox.append((frame.flags, frame.payload))
                self._wake_receiver()
        elif frame.type == protocol.CREDIT:
            self._sending.granted(frame.payload)
            self.wake_sender()
        elif frame.type == protocol.END:
            self._is_ended = True
            self._wake_receiver()
        elif frame.type == protocol.CLOSE:
            self.result = self._message.add(frame)
            if self.result is not None:
                self._is_ended = True
                self._wake_receiver()
                self.wake_sender()

    def break_off(self, reason: Exception) -> None:
        """End the stream at once: who waits on it gets `reason`."""
        self._broken = self._broken or reason
        self._inbox.clear()
        self._wake_receiver()
        self.wake_sender()

    def wake_sender(self) -> None:
        """Let `send` look again."""
        if self._sender and not self._sender.done():
            self._sender.set_result(None)

    def _wake_receiver(self) -> None:
        if self._receiver and not self._receiver.done():
            self._receiver.set_result(None)

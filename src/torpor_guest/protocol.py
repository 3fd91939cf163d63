"""The frames of the guest channel, without I/O: the one definition, used by both ends.

Rule 1: everything that says what bytes mean lives here. Rule 2: nothing here reads, writes or waits.

On the wire a frame is `~ escaped(header payload crc32) ~`. The byte `~` (0x7e) appears nowhere else: inside,
`}` (0x7d) is written `}]` and `~` is written `}^`. So a reader that starts anywhere is in step again at the
next `~`, and what was cut in half fails its CRC. The header carries an epoch that the host raises whenever it
connects; a frame of another epoch is dropped. The page for people is docs/formats/guest-channel.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple
from zlib import crc32

PROTOCOL_VERSION = 1
OLDEST_VERSION = 1
"""The oldest version that this code still speaks."""

MAX_PAYLOAD = 64 << 10
MAX_MESSAGE = 2 << 20
"""Bytes of JSON in one OPEN or CLOSE, over all its frames: the longest command line and environment fit."""
DEFAULT_WINDOW = 256 << 10
"""Bytes of DATA that an end may have under way in one stream, unless its peer's HELLO says otherwise."""
FRAME_COST = 64
"""Credit that a DATA frame uses beside its payload, so that many tiny frames are bounded like few big ones."""
MIN_WINDOW, MAX_WINDOW = 2 * MAX_PAYLOAD, 16 << 20

HELLO = 1
"""Host: "I am here" (any epoch; starts that epoch). Guest: the answer, with the same nonce."""
ANNOUNCE = 2
"""Guest: a new agent has opened the port; whatever was under way is gone. Valid in any epoch."""
OPEN = 3
"""Host: begin a stream with a method and its parameters."""
DATA = 4
"""Bytes of a stream; the flags hold the channel. Uses up credit."""
CREDIT = 5
"""The payload's u32 more bytes of DATA may be sent in this stream."""
END = 6
"""No more DATA from this end of the stream."""
CLOSE = 7
"""Guest: the stream's last frame, with its result or error."""
CANCEL = 8
"""Host: stop; the guest answers nothing more in this stream."""
PING = 9
"""Host: answer with a PONG that has the same payload."""
PONG = 10
_LAST_TYPE = PONG
_ANY_EPOCH = (HELLO, ANNOUNCE)

MORE = 1
"""Flag of OPEN and CLOSE: the message goes on in the next frame of the same kind and stream."""

CHANNEL_BYTES = 0
CHANNEL_STDOUT = 1
CHANNEL_STDERR = 2
CHANNEL_ITEMS = 3
"""JSON values, one a line."""

_HEADER = struct.Struct("!BBII")
_U32 = struct.Struct("!I")
_OVERHEAD = _HEADER.size + _U32.size
_MAX_ESCAPED = 2 * (MAX_PAYLOAD + _OVERHEAD)
_FLAG = b"~"
MANY_ESCAPES = 2048
"""Escapes in a frame from which on another way to undo them is faster. On an emulated CPU it always is: the agent
sets this to 0."""


class ProtocolError(Exception):
    """Raised when the peer sent what no honest peer sends."""


class ProtocolSkew(ProtocolError):
    """Raised when the two ends speak no version in common."""

    def __init__(self, mine: tuple[int, int], theirs: tuple[int, int]) -> None:
        super().__init__(
            f"this end speaks guest protocol {_span(mine)}, the other end speaks {_span(theirs)}"
        )
        self.mine = mine
        self.theirs = theirs


class Frame(NamedTuple):
    """One frame as it was sent."""

    type: int
    flags: int
    epoch: int
    stream: int
    payload: bytes


def encode(type_: int, flags: int, epoch: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame as it goes over the wire; `payload` has at most `MAX_PAYLOAD` bytes."""
    head = _HEADER.pack(type_, flags, epoch, stream)
    body = b"".join((head, payload, _U32.pack(crc32(payload, crc32(head)))))
    return b"".join((_FLAG, body.replace(b"}", b"}]").replace(b"~", b"}^"), _FLAG))


class Decoder:
    """Turns bytes, split anywhere, into frames; what is damaged or of another epoch is dropped.

    It holds at most one frame's bytes, whatever is fed. `epoch` is the epoch that frames must have (HELLO and
    ANNOUNCE pass in any); None lets all pass. `wasted_bytes` counts what was dropped since it was last set.
    """

    def __init__(self, epoch: int | None = None) -> None:
        self.epoch = epoch
        self.wasted_bytes = 0
        self._pending = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes."""
        parts = data.split(_FLAG)
        frames: list[Frame] = []
        for part in parts[:-1]:
            raw = self._take(part)
            if raw and (frame := self._decode(raw)) is not None:
                frames.append(frame)
        self._keep(parts[-1])
        return frames

    def _take(self, part: bytes) -> bytes:
        if self._pending or self._skipping:
            self._keep(part)
            part = bytes(self._pending)
            self._pending.clear()
            self._skipping = False
        return part

    def _keep(self, part: bytes) -> None:
        if self._skipping:
            self.wasted_bytes += len(part)
        elif len(self._pending) + len(part) > _MAX_ESCAPED:
            self.wasted_bytes += len(self._pending) + len(part)
            self._pending.clear()
            self._skipping = True
        else:
            self._pending += part

    def _decode(self, raw: bytes) -> Frame | None:
        body = _unescape(raw)
        size = len(body)
        if _OVERHEAD <= size <= MAX_PAYLOAD + _OVERHEAD:
            view = memoryview(body)
            if crc32(view[:-4]) == _U32.unpack_from(body, size - 4)[0]:
                type_, flags, epoch, stream = _HEADER.unpack_from(body)
                if type_ in _ANY_EPOCH or self.epoch is None or epoch == self.epoch:
                    return Frame(type_, flags, epoch, stream, body[_HEADER.size : -4])
        self.wasted_bytes += len(raw)
        return None


def _unescape(raw: bytes) -> bytes:
    escapes = raw.count(b"}")
    if not escapes:
        return raw
    if escapes > MANY_ESCAPES:
        return raw.replace(b"}^", b"~").replace(b"}]", b"}")
    # The same, two to three times as fast where escapes are as rare as in random bytes. What follows a `}` and is
    # neither `^` nor `]` is no frame of ours; its CRC tells.
    first, *rest = raw.split(b"}")
    return first + b"".join(
        [b"~" + part[1:] if part[:1] == b"^" else b"}" + part[1:] for part in rest]
    )


def pack_json(value: object) -> bytes:
    """Return `value` as JSON without line breaks; lone surrogates (odd file names) survive."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def unpack_json(payload: bytes) -> dict[str, Any]:
    """Return the JSON object in `payload`.

    Raises:
        ProtocolError: it is no JSON object, or one that is nested too deeply.
    """
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as exc:
        raise ProtocolError(f"a message is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ProtocolError("a message is not a JSON object")
    return value


def encode_message(type_: int, epoch: int, stream: int, value: object) -> bytes:
    """Return the frames of an OPEN or CLOSE.

    Raises:
        ProtocolError: it is over `MAX_MESSAGE` bytes.
    """
    blob = pack_json(value)
    if len(blob) <= MAX_PAYLOAD:
        return encode(type_, 0, epoch, stream, blob)
    if len(blob) > MAX_MESSAGE:
        raise ProtocolError(f"a message of {len(blob)} bytes is over the limit of {MAX_MESSAGE}")
    starts = range(0, len(blob), MAX_PAYLOAD)
    return b"".join(
        encode(
            type_,
            MORE if start != starts[-1] else 0,
            epoch,
            stream,
            blob[start : start + MAX_PAYLOAD],
        )
        for start in starts
    )


class MessageBuffer:
    """Puts the frames of one OPEN or CLOSE together; holds at most `MAX_MESSAGE` bytes."""

    def __init__(self) -> None:
        self._parts = bytearray()

    def add(self, frame: Frame) -> dict[str, Any] | None:
        """Return the message when `frame` was its last one, else None.

        Raises:
            ProtocolError: it is too long or is no JSON object.
        """
        if not frame.flags & MORE and not self._parts:
            return unpack_json(frame.payload)
        self._parts += frame.payload
        if len(self._parts) > MAX_MESSAGE:
            raise ProtocolError(f"a message is over the limit of {MAX_MESSAGE} bytes")
        return None if frame.flags & MORE else unpack_json(bytes(self._parts))


class ItemBuffer:
    """Splits the bytes of `CHANNEL_ITEMS` into its JSON values; holds at most `MAX_MESSAGE` bytes."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the values that `data` completes.

        Raises:
            ProtocolError: one is too long or is no JSON object.
        """
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = bytes(self._rest + line)
            self._rest.clear()
            yield unpack_json(whole)
        self._rest += rest
        if len(self._rest) > MAX_MESSAGE:
            raise ProtocolError(f"an item is over the limit of {MAX_MESSAGE} bytes")


class SendWindow:
    """How many bytes of DATA this end may still send in one stream."""

    def __init__(self, credit: int) -> None:
        self.credit = credit

    @property
    def room(self) -> int:
        """The longest payload that the next DATA frame may have; 0 or less: none may be sent."""
        return self.credit - FRAME_COST

    def sent(self, size: int) -> None:
        """Note that a DATA frame with `size` bytes was sent."""
        self.credit -= size + FRAME_COST

    def granted(self, payload: bytes) -> None:
        """Take in a CREDIT frame.

        Raises:
            ProtocolError: it is malformed or adds up to more than any window.
        """
        if len(payload) != _U32.size:
            raise ProtocolError("a CREDIT frame is malformed")
        self.credit += _U32.unpack(payload)[0]
        if self.credit > MAX_WINDOW:
            raise ProtocolError(f"credit of {self.credit} bytes is over any window")


class ReceiveWindow:
    """How many bytes of DATA the peer may send in one stream, and when to let it send more."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._open = size
        self._consumed = 0

    def received(self, size: int) -> None:
        """Note that a DATA frame with `size` bytes came in.

        Raises:
            ProtocolError: the peer had no credit for it.
        """
        self._open -= size + FRAME_COST
        if self._open < 0:
            raise ProtocolError("the other end sent more than it had credit for")

    def consumed(self, size: int) -> bytes | None:
        """Note that the reader took a frame of `size` bytes; return the payload of the CREDIT frame now due."""
        self._consumed += size + FRAME_COST
        if self._consumed * 2 < self._size:
            return None
        due, self._consumed = self._consumed, 0
        self._open += due
        return _U32.pack(due)


def hello(nonce: str, *, window: int, **more: object) -> bytes:
    """Return the payload of a HELLO: who speaks, which versions, and how much it takes in one stream."""
    return pack_json(
        {
            "nonce": nonce,
            "protocol": PROTOCOL_VERSION,
            "oldest": OLDEST_VERSION,
            "window": window,
            **more,
        }
    )


def agree(theirs: dict[str, Any]) -> int:
    """Return the newest version that both ends speak, from the peer's HELLO.

    Raises:
        ProtocolSkew: there is none; it names both ends' versions.
        ProtocolError: the HELLO is malformed.
    """
    newest, oldest = theirs.get("protocol"), theirs.get("oldest")
    if not (isinstance(newest, int) and isinstance(oldest, int) and 0 < oldest <= newest):
        raise ProtocolError("a HELLO names no protocol versions")
    version = min(newest, PROTOCOL_VERSION)
    if version < max(oldest, OLDEST_VERSION):
        raise ProtocolSkew((OLDEST_VERSION, PROTOCOL_VERSION), (oldest, newest))
    return version


def window_of(theirs: dict[str, Any]) -> int:
    """Return how much the peer takes in one stream, from its HELLO, held within what is sane."""
    window = theirs.get("window")
    if not isinstance(window, int):
        return DEFAULT_WINDOW
    return max(MIN_WINDOW, min(window, MAX_WINDOW))


def _span(versions: tuple[int, int]) -> str:
    oldest, newest = versions
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"

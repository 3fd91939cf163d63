"""Just enough D-Bus to ask systemd what its services do, over its private socket: no program is started for it."""

from __future__ import annotations

import socket
import struct
from typing import Any, NamedTuple

PRIVATE_SOCKET = "/run/systemd/private"
_REPLY_MOST = 8 << 20
_MANAGER = ("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_METHOD_RETURN = 2


class BusFailed(Exception):
    """Raised when systemd does not answer, or answers what is not understood."""


class Unit(NamedTuple):
    """What systemd says of one unit."""

    name: str
    load: str
    active: str
    sub: str
    path: str


class SystemdBus:
    """One connection; `close` it."""

    def __init__(self, path: str, *, timeout_s: float) -> None:
        self._serial = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect(path)
            self._socket.sendall(b"\0AUTH EXTERNAL 30\r\nBEGIN\r\n")
            self._be_let_in()
        except OSError as exc:
            self._socket.close()
            raise BusFailed(f"systemd cannot be asked: {exc}") from exc

    def _be_let_in(self) -> None:
        line = b""
        while not line.endswith(b"\r\n"):
            piece = self._socket.recv(1)
            if not piece or len(line) > 256:
                raise ConnectionError("it does not answer")
            line += piece
        if not line.startswith(b"OK "):
            raise ConnectionError("it does not let us in")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def services(self) -> list[Unit]:
        """Return the services that are loaded. Raises `BusFailed`."""
        body = _array_of_texts([]) + _array_of_texts(["*.service"])
        reply = self._ask([(*_MANAGER, "ListUnitsByPatterns", "asas", body)])[0]
        if reply is None:
            raise BusFailed("systemd does not list its units")
        reader = _Reader(reply)
        units = []
        for _ in reader.array(8):
            reader.align(8)
            name, _, load, active, sub, _, path = (reader.text() for _ in range(7))
            reader.number()
            reader.text()
            reader.text()
            units.append(Unit(name, load, active, sub, path))
        return units

    def restarts(self, units: list[Unit]) -> list[int | None]:
        """Return how often systemd started each service again by itself; None: it does not say."""
        interface = "org.freedesktop.DBus.Properties"
        body = _text("org.freedesktop.systemd1.Service")
        body += b"\0" * (-len(body) % 4) + _text("NRestarts")
        replies = self._ask([(unit.path, interface, "Get", "ss", body) for unit in units])
        return [
            None if r is None or r[:3] != b"\x01u\0" else struct.unpack_from("<I", r, 4)[0]
            for r in replies
        ]

    def _ask(self, calls: list[tuple[str, str, str, str, bytes]]) -> list[bytes | None]:
        """Send calls together; return the bodies of their answers, None for one that was refused."""
        first = self._serial + 1
        try:
            self._socket.sendall(b"".join(self._call(*call) for call in calls))
            found: dict[int, bytes | None] = {}
            while len(found) < len(calls):
                answered, body = self._receive()
                if answered is not None and answered >= first:
                    found[answered] = body
        except (OSError, struct.error, IndexError, UnicodeDecodeError) as exc:
            raise BusFailed(f"systemd cannot be asked: {exc}") from exc
        return [found[first + index] for index in range(len(calls))]

    def _call(self, path: str, interface: str, member: str, signature: str, body: bytes) -> bytes:
        self._serial += 1
        fields = b""
        for code, kind, value in (
            (1, b"o", path),
            (2, b"s", interface),
            (3, b"s", member),
            (8, b"g", signature),
        ):
            fields += b"\0" * (-len(fields) % 8)
            fields += bytes([code, 1]) + kind + b"\0"
            if kind == b"g":
                fields += bytes([len(value)]) + value.encode() + b"\0"
            else:
                fields += _text(value)
        head = struct.pack("<cBBBIII", b"l", 1, 0, 1, len(body), self._serial, len(fields)) + fields
        return head + b"\0" * (-len(head) % 8) + body

    def _receive(self) -> tuple[int | None, bytes | None]:
        """Return the serial of the call that the next message answers, and its body."""
        head = self._exactly(16)
        if head[:1] != b"l":
            raise OSError(71, "an answer has another byte order")
        body_size, _, fields_size = struct.unpack_from("<III", head, 4)
        size = fields_size + (-(16 + fields_size) % 8)
        if body_size + size > _REPLY_MOST:
            raise OSError(27, "an answer is too long")
        rest = self._exactly(size + body_size)
        return _reply_serial(rest[:fields_size]), rest[size:] if head[1] == _METHOD_RETURN else None

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(min(size - len(data), 1 << 16))
            if not piece:
                raise OSError(32, "systemd closed the connection")
            data += piece
        return bytes(data)


def _reply_serial(fields: bytes) -> int | None:
    reader = _Reader(fields)
    while reader.at < len(fields):
        reader.align(8)
        if reader.at >= len(fields):
            break
        code = fields[reader.at]
        reader.at += 1
        kind = reader.signature()
        value: Any = (
            reader.number() if kind == "u" else reader.signature() if kind == "g" else reader.text()
        )
        if code == 5:
            return int(value)
    return None


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<I", len(raw)) + raw + b"\0"


def _array_of_texts(values: list[str]) -> bytes:
    body = b""
    for value in values:
        body += b"\0" * (-len(body) % 4) + _text(value)
    return struct.pack("<I", len(body)) + body


class _Reader:
    """Reads values one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def align(self, size: int) -> None:
        self.at += -self.at % size

    def number(self) -> int:
        self.align(4)
        value = int(struct.unpack_from("<I", self._data, self.at)[0])
        self.at += 4
        return value

    def text(self) -> str:
        size = self.number()
        value = self._data[self.at : self.at + size].decode()
        self.at += size + 1
        return value

    def signature(self) -> str:
        size = self._data[self.at]
        value = self._data[self.at + 1 : self.at + 1 + size].decode()
        self.at += size + 2
        return value

    def array(self, alignment: int) -> Any:
        """Yield once for each element, until the array's bytes are used up."""
        size = self.number()
        self.align(alignment)
        end = self.at + size
        while self.at < end:
            yield None

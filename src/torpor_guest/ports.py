"""Byte streams to programs that listen on the machine's own loopback, and which those are.

A stream is as a TCP connection is: each direction ends by itself, and one that was cut is reset, so that neither end
takes a part for the whole. Only 127.0.0.1 and ::1 can be reached, whatever the host asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor_guest import errors, protocol
from torpor_guest.errors import AgentError
from torpor_guest.files import send_items
from torpor_guest.paths import number
from torpor_guest.stream import Stream, StreamBroken
from torpor_guest.threads import in_thread
from torpor_guest.users import user_name

MAX_CONNECTIONS = 512
CONNECT_S = 10.0
LOOPBACK = ("127.0.0.1", "::1")
"""Where a port is looked for, in this order."""
_CHUNK = 64 << 10
_MAX_LISTENERS = 4096
_LISTENS = "0A"
_REFUSALS = (errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH)
RESET_ON_CLOSE, _CLOSE_WELL = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)


class PortMethods:
    """Methods on the machine's ports."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._open = 0

    async def list(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Send what listens for TCP connections, by port."""
        await send_items(stream, await in_thread(listeners, self._proc))
        return {}

    async def connect(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Connect to a port and carry bytes both ways until both ends have ended."""
        port = number(params, "port", None)
        if port is None or not 1 <= port <= 65535:
            raise AgentError(errors.INVALID, f"a port is 1 to 65535, got {port!r}")
        wanted = params.get("address")
        if wanted not in (None, *LOOPBACK):
            raise AgentError(
                errors.INVALID, f"only {' and '.join(LOOPBACK)} can be reached, not {wanted!r}"
            )
        if self._open >= MAX_CONNECTIONS:
            raise AgentError(errors.LIMIT, f"{MAX_CONNECTIONS} connections to ports are open")
        self._open += 1
        try:
            address, link = await _connected(port, (wanted,) if wanted else LOOPBACK)
            with link:  # reset, unless it ended well
                await send_items(stream, [{"connected": address}])
                return await carry(stream, link, port)
        finally:
            self._open -= 1


async def _connected(port: int, addresses: tuple[str, ...]) -> tuple[str, socket.socket]:
    """Return a connection to the first address that takes one; it is reset when it is closed."""
    refusal = ""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            link = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        except OSError as exc:  # no IPv6
            refusal = refusal or errors.name_of(exc)
            continue
        try:
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            loop = asyncio.get_running_loop()
            await asyncio.wait_for(loop.sock_connect(link, (address, port)), CONNECT_S)
        except asyncio.TimeoutError as exc:  # noqa: UP041  # another class before Python 3.11
            link.close()
            raise AgentError(
                errors.TIMEOUT,
                f"the program on port {port} took no connection within {CONNECT_S:g} s",
                hint="it is there, and does not accept; is it stuck?",
            ) from exc
        except OSError as exc:
            link.close()
            if exc.errno not in _REFUSALS:
                raise errors.from_os(exc, f"connect to port {port}") from exc
            refusal = refusal or errors.name_of(exc)
        except BaseException:
            link.close()
            raise
        else:
            return address, link
    raise AgentError(
        errors.REFUSED,
        f"nothing listens on port {port} of the machine's loopback",
        hint="start the server in the machine; it has to listen on 127.0.0.1, ::1 or all addresses",
        port=port,
        errno=refusal,
    )


async def carry(stream: Stream, link: socket.socket, port: int) -> dict[str, Any]:
    """Carry bytes until both directions have ended.

    A program that takes no more may still have an answer to give: that is carried to its end.
    """
    loop = asyncio.get_running_loop()
    into = loop.create_task(_to_program(stream, link))
    try:
        sent = await _to_host(stream, link)
        received = await into
    except OSError as exc:
        raise AgentError(
            errors.REFUSED,
            f"the program on port {port} broke the connection off",
            port=port,
            errno=errors.name_of(exc),
        ) from exc
    finally:
        into.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError, StreamBroken):
            await into
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_WELL)
    return {"sent_bytes": sent, "received_bytes": received}


async def _to_host(stream: Stream, link: socket.socket) -> int:
    sent = 0
    while data := await asyncio.get_running_loop().sock_recv(link, _CHUNK):
        await stream.send(protocol.CHANNEL_BYTES, data)
        sent += len(data)
    stream.send_frame(protocol.END)
    return sent


async def _to_program(stream: Stream, link: socket.socket) -> int:
    """Return how many bytes the program took."""
    received = 0
    try:
        while (piece := await stream.receive()) is not None:
            await asyncio.get_running_loop().sock_sendall(link, piece[1])
            received += len(piece[1])
        link.shutdown(socket.SHUT_WR)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it takes no more
    except OSError as exc:
        if exc.errno != errno.ENOTCONN:
            raise
    return received


@dataclass(frozen=True)
class _Listener:
    port: int
    address: str
    family: str
    uid: int
    inode: str


def listeners(proc: Path) -> list[dict[str, Any]]:
    """Return what listens, by port and address; pid and name are None where only root could tell. Blocks."""
    found = [
        *_listening(proc / "net/tcp", socket.AF_INET),
        *_listening(proc / "net/tcp6", socket.AF_INET6),
    ][:_MAX_LISTENERS]
    owners = _owners(proc, {listener.inode for listener in found})
    items = []
    for each in sorted(found, key=lambda listener: (listener.port, listener.address)):
        pid, name = owners.get(each.inode, (None, None))
        items.append(
            {
                "port": each.port,
                "address": each.address,
                "family": each.family,
                "user": user_name(each.uid),
                "pid": pid,
                "process": name,
            }
        )
    return items


def _listening(table: Path, family: socket.AddressFamily) -> Iterator[_Listener]:
    try:
        lines = table.read_text("ascii", "replace").splitlines()[1:]
    except OSError:  # no IPv6
        return
    for line in lines:
        words = line.split()
        if len(words) > 9 and words[3] == _LISTENS:
            host, _, port = words[1].partition(":")
            yield _Listener(
                port=int(port, 16),
                address=_address(host, family),
                family="ipv6" if family == socket.AF_INET6 else "ipv4",
                uid=int(words[7]),
                inode=words[9],
            )


def _address(text: str, family: socket.AddressFamily) -> str:
    """Return an address, which the kernel writes in words of 32 bits, each as a number of this machine's."""
    words = (int(text[start : start + 8], 16) for start in range(0, len(text), 8))
    return socket.inet_ntop(family, b"".join(struct.pack("=I", word) for word in words))


def _owners(proc: Path, inodes: set[str]) -> dict[str, tuple[int, str]]:
    """Return which process holds each socket, as far as we may see: the one with the lowest pid."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, tuple[int, str]] = {}
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        if len(found) == len(wanted):
            break
        with contextlib.suppress(OSError):  # not ours to see, or gone
            for fd in os.listdir(proc / str(pid) / "fd"):
                with contextlib.suppress(OSError):
                    inode = wanted.get(os.readlink(proc / str(pid) / "fd" / fd))
                    if inode is not None and inode not in found:
                        found[inode] = (pid, _name(proc, pid))
    return found


def _name(proc: Path, pid: int) -> str:
    return (proc / str(pid) / "comm").read_text("utf-8", "replace").strip()

"""The kernel's own news of devices that come and go, so that nobody has to look again and again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1


class Uevents:
    """Hears that something changed; what it was, the listener looks at for itself."""

    def __init__(self, source: socket.socket | None) -> None:
        self._source = source
        self._news = asyncio.Event()

    async def next(self, within_s: float) -> None:
        """Return when something changed since the last call, or after `within_s` seconds."""
        with contextlib.suppress(
            asyncio.TimeoutError
        ):  # another class than TimeoutError before 3.11
            await asyncio.wait_for(self._news.wait(), within_s)
        self._news.clear()

    def take(self) -> None:
        """Read what the kernel has to say."""
        assert self._source is not None
        with contextlib.suppress(BlockingIOError, OSError):  # ENOBUFS: more than fits was said
            while self._source.recv(65536):
                pass
        self._news.set()


@contextlib.contextmanager
def uevents() -> Iterator[Uevents]:
    """Enter with the news from now on. Where the kernel gives none, time alone passes."""
    try:
        source = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _KOBJECT_UEVENT
        )
    except OSError:
        yield Uevents(None)
        return
    loop = asyncio.get_running_loop()
    with source:
        source.setblocking(False)
        heard = Uevents(source)
        try:
            source.bind((0, _KERNEL_GROUP))
        except OSError:
            yield heard
            return
        loop.add_reader(source.fileno(), heard.take)
        try:
            yield heard
        finally:
            loop.remove_reader(source.fileno())

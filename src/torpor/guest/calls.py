"""What the parts of the client share: the channel, and streams that are always released."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Final, TypeVar

from torpor.errors import GuestFailed
from torpor.guest.channel import Channel
from torpor_guest import protocol
from torpor_guest.protocol import ItemBuffer, ProtocolError
from torpor_guest.stream import Stream

T = TypeVar("T")

_ITEMS_BYTES: Final = 128 << 20
"""Of all items of an answer that is held as a whole. An honest one has less: few of them are as long as they may be."""


class Calls:
    """A part of the client."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def _capabilities(self) -> frozenset[str]:
        """Return what the agent can do."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _stream(self, method: str, params: dict[str, object]) -> Iterator[Stream]:
        stream = self._channel.start(method, params)
        try:
            yield stream
        finally:
            self._channel.release(stream)

    async def _items(
        self,
        method: str,
        params: dict[str, object],
        parse: Callable[[object], T],
        *,
        limit_bytes: int | None = None,
    ) -> AsyncGenerator[T, None]:
        """Ask, and yield the items of the answer as they come."""
        buffer, size = ItemBuffer(), 0
        with self._stream(method, params) as stream:
            while (piece := await self._channel.receive(stream)) is not None:
                size += len(piece[1])
                if limit_bytes is not None and size > limit_bytes:
                    raise GuestFailed(
                        f"the guest agent sent more than {limit_bytes} bytes for {method}"
                    )
                if piece[0] == protocol.CHANNEL_ITEMS:
                    try:
                        for item in buffer.feed(piece[1]):
                            yield parse(item)
                    except ProtocolError as exc:
                        raise GuestFailed(
                            f"the guest agent's answer makes no sense: {exc}"
                        ) from exc
            self._channel.result(stream)

    async def _all_items(
        self,
        method: str,
        params: dict[str, object],
        parse: Callable[[object], T],
        *,
        limit: int,
    ) -> list[T]:
        """Ask, and return the items of the answer, at most `limit`."""
        found: list[T] = []
        asked = self._items(method, params, parse, limit_bytes=_ITEMS_BYTES)
        async with contextlib.aclosing(asked) as items:
            async for item in items:
                found.append(item)
                if len(found) > limit:
                    raise GuestFailed(f"the guest agent sent more than {limit} items for {method}")
        return found

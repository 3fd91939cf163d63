"""What the parts of the client share: the channel, and streams that are always released."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TypeVar

from torpor.errors import GuestFailed
from torpor.guest.channel import Channel
from torpor_guest import protocol
from torpor_guest.protocol import ItemBuffer, ProtocolError
from torpor_guest.stream import Stream

T = TypeVar("T")


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
        self, method: str, params: dict[str, object], parse: Callable[[object], T]
    ) -> AsyncGenerator[T, None]:
        """Ask, and yield the items of the answer as they come."""
        buffer = ItemBuffer()
        with self._stream(method, params) as stream:
            while (piece := await self._channel.receive(stream)) is not None:
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
        async with contextlib.aclosing(self._items(method, params, parse)) as items:
            async for item in items:
                found.append(item)
                if len(found) > limit:
                    raise GuestFailed(f"the guest agent sent more than {limit} items for {method}")
        return found

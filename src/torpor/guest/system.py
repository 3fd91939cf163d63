"""The guest as a machine, from the host's side."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from torpor.errors import InvalidRequest
from torpor.guest.answers import count
from torpor.guest.calls import Calls

_GROW_LIMIT_S: Final = 600.0
_SETTLE_MARGIN_S: Final = 300.0
"""What syncing, trimming and dropping caches may take beside the wait for the start-up's end."""


class SystemCalls(Calls):
    """Clock, disk, start and end of the machine."""

    async def set_clock(self, now: datetime) -> None:
        """See `Guest.set_clock`."""
        if now.tzinfo is None:
            raise InvalidRequest(f"the time {now} has no time zone")
        now_ns = round(now.timestamp() * 1_000_000) * 1000
        await self._channel.call("set_clock", {"now_ns": now_ns})

    async def grow_disk(self) -> int:
        """See `Guest.grow_disk`."""
        return count(await self._channel.call("grow_disk", {}, limit_s=_GROW_LIMIT_S), "size_bytes")

    async def settle(self, *, timeout_s: float) -> None:
        """See `Guest.settle`."""
        limit_s = timeout_s + _SETTLE_MARGIN_S
        await self._channel.call("settle", {"timeout_s": timeout_s}, limit_s=limit_s)

    async def shutdown(self) -> None:
        """See `Guest.shutdown`."""
        await self._channel.call("shutdown", {})

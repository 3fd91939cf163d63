"""What happens in a folder of the guest, from the host's side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from torpor.errors import GuestFailed, GuestUnreachable, HostNotReady
from torpor.guest.answers import file_event
from torpor.guest.calls import Calls
from torpor.guest.channel import CALL_LIMIT_S
from torpor.model_file_events import FileEvent
from torpor_guest.protocol import ItemBuffer, ProtocolError

CAPABILITY: Final = "follow_dir"


class FileEventCalls(Calls):
    """Follow a folder."""

    @contextlib.asynccontextmanager
    async def follow_dir(
        self, path: str, *, recursive: bool = False
    ) -> AsyncIterator[AsyncIterator[FileEvent]]:
        """See `Guest.follow_dir`."""
        if CAPABILITY not in self._capabilities():
            raise HostNotReady(
                "the agent in this machine is too old to follow a folder",
                hint="build its template anew, and make the sandbox again from it",
            )
        async with contextlib.aclosing(self._told(path, recursive)) as items:
            try:
                async with asyncio.timeout(CALL_LIMIT_S):
                    await anext(items, None)  # says that it has begun
            except TimeoutError as exc:
                raise GuestUnreachable(
                    f"the guest agent sent nothing for {CALL_LIMIT_S:g} s"
                ) from exc
            yield (file_event(item) async for item in items)

    async def _told(self, path: str, recursive: bool) -> AsyncGenerator[Any, None]:
        """Yield what the agent says, without a limit: it is silent while nothing happens."""
        buffer = ItemBuffer()
        params: dict[str, object] = {"path": path, "recursive": recursive}
        stream = self._channel.start("follow_dir", params, is_watched=False)
        try:
            while (piece := await self._channel.receive(stream, limit_s=None)) is not None:
                for item in buffer.feed(piece[1]):
                    yield item
            self._channel.result(stream)
        except ProtocolError as exc:
            raise GuestFailed(f"the guest's word on a folder makes no sense: {exc}") from exc
        finally:
            self._channel.release(stream)

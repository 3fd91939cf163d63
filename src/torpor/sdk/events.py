"""Events: follow every change of state, over lost connections and restarts of the daemon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import datetime
from typing import Any

from torpor.base.aio import closing
from torpor.errors import DaemonUnreachable, error_from_wire
from torpor.model_events import StateEvent
from torpor.sdk.client import (
    RETRY_LIMIT_S,
    Client,
    ConnectionLost,
    DaemonSilent,
    connection,
    raw_bytes,
)
from torpor.sdk.loop import loop_thread
from torpor.sdk.sse import sse_events


class AsyncEvents:
    """All calls are on the class."""

    @staticmethod
    async def follow(
        *,
        after: str | None = None,
        kinds: Sequence[str] = (),
        object_id: str | None = None,
        client: Client | None = None,
    ) -> AsyncGenerator[StateEvent, None]:
        """Yield changes of state as they happen, for ever.

        A connection that is lost is made again, and goes on behind the last event. Where events were missed (the
        daemon was started anew, or this reader was too slow) one of kind `gap` says so: look at things anew then.

        Args:
            after: id of the last event that was seen; None: from now on.
            kinds: only `sandbox`, `snapshot` or `template`; empty: all.
            object_id: only of this one.
            client: which daemon; None: as the environment says.

        Raises:
            DaemonUnreachable: no daemon answers for a minute.
        """
        gives_up_at = time.monotonic() + RETRY_LIMIT_S
        pause_s = 0.1
        while True:
            query = [("kind", kind) for kind in kinds]
            query += [("after", after)] if after else []
            query += [("object_id", object_id)] if object_id else []
            try:
                async with (
                    connection(client).stream("GET", "/v1/events", query=query) as reply,
                    closing(sse_events(raw_bytes(reply))) as events,
                ):
                    async for event in events:
                        if event.name == "error":
                            raise error_from_wire(event.data)
                        found = _event(event.data)
                        after = found.id
                        gives_up_at, pause_s = time.monotonic() + RETRY_LIMIT_S, 0.1
                        yield found
            except (ConnectionLost, DaemonSilent, DaemonUnreachable):
                if time.monotonic() > gives_up_at:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2.0, pause_s * 2)


class Events:
    """The same for synchronous code."""

    @staticmethod
    def follow(
        *,
        after: str | None = None,
        kinds: Sequence[str] = (),
        object_id: str | None = None,
        client: Client | None = None,
    ) -> Iterator[StateEvent]:
        """Yield changes of state as they happen, for ever; `AsyncEvents.follow` says more."""
        return loop_thread.iterate(
            AsyncEvents.follow(after=after, kinds=kinds, object_id=object_id, client=client)
        )


def _event(body: dict[str, Any]) -> StateEvent:
    return StateEvent(
        id=body["id"],
        kind=body["kind"],
        object_id=body["object_id"],
        state=body["state"],
        at=datetime.fromisoformat(body["at"]),
        workspace=body["workspace"],
        details=body["details"],
    )

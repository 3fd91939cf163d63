"""All watches there are; those of one sandbox are its own methods (`Sandbox.watch` and so on)."""

from __future__ import annotations

from torpor.model_watches import WatchInfo
from torpor.sdk.client import Client, connection
from torpor.sdk.loop import loop_thread


async def async_watches(*, client: Client | None = None) -> list[WatchInfo]:
    """Return the watches, those that fail first."""
    body = await connection(client).call("GET", "/v1/watches")
    return [WatchInfo.from_json(item) for item in body["watches"]]


def watches(*, client: Client | None = None) -> list[WatchInfo]:
    """Return the watches, those that fail first."""
    return loop_thread.run(async_watches(client=client))

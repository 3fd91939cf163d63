"""What an asynchronous sandbox can be asked to prove: that it is still well."""

from __future__ import annotations

import asyncio
from pathlib import Path

from torpor.errors import NotFound
from torpor.model_watches import WatchInfo
from torpor.sdk.change_results import Checks, checks_text, profile_text, who
from torpor.sdk.dual import dual
from torpor.sdk.handle import AsyncHandle

LOOK_LIMIT_S = 3900.0
"""Seconds for a look at a machine that is watched; its checks have limits of their own."""


class AsyncProofs(AsyncHandle):
    """The part of `AsyncSandbox` about watches. All of it also works on the class with an id."""

    @dual
    async def watch(
        self,
        checks: Checks,
        *,
        schedule: str | None = None,
        every_seconds: float | None = None,
        profile: str | Path | None = None,
        wake: bool = False,
        author: str | None = None,
    ) -> WatchInfo:
        """Run checks on the machine again and again, outside any change; once a day unless a time is given.

        It takes the place of the watch that the sandbox has. What fails is told (`watched`, `torpor ls`, an event)
        with what to type to put the machine back; nothing is put back by itself.

        Args:
            checks: a path, the text of a checks file, or a mapping like it.
            schedule: a cron expression of five fields, in UTC.
            every_seconds: instead of a schedule.
            profile: an agent profile for `turn` checks, by name, path or text; None: the one that fits.
            wake: also wake it to look at it; else a machine that sleeps is left asleep.
            author: who asks; None: your user name.

        Raises:
            InvalidRequest: a value, the checks file, the profile or the schedule cannot be right.
        """
        text, source = await asyncio.to_thread(checks_text, checks)
        body = {
            "checks": text,
            "checks_source": source,
            "profile": await asyncio.to_thread(profile_text, profile),
            "schedule": schedule,
            "every_seconds": every_seconds,
            "wake": wake,
            "author": who() if author is None else author,
        }
        return WatchInfo.from_json(
            await self._connection.call("PUT", f"{self._path}/watch", body=body)
        )

    @dual
    async def watched(self) -> WatchInfo | None:
        """Return the watch of this sandbox, and what it found last; None: it is not watched."""
        try:
            body = await self._connection.call("GET", f"{self._path}/watch")
        except NotFound:
            await self._connection.call("GET", self._path)  # raises when it is the sandbox
            return None
        return WatchInfo.from_json(body)

    @dual
    async def look(self) -> WatchInfo:
        """Look at a watched sandbox now, and return what was found. Raises `NotFound` when it is not watched."""
        path = f"{self._path}/watch/look"
        return WatchInfo.from_json(await self._connection.call("POST", path, limit_s=LOOK_LIMIT_S))

    @dual
    async def unwatch(self) -> WatchInfo:
        """Watch this sandbox no more; return the watch. Raises `NotFound` when it is not watched."""
        return WatchInfo.from_json(await self._connection.call("DELETE", f"{self._path}/watch"))

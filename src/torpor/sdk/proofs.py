"""What an asynchronous sandbox can be asked to prove: that its snapshots come back, and that it is still well."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from torpor.errors import NotFound
from torpor.model import MemoryChoice
from torpor.model_drills import ScheduleInfo
from torpor.model_watches import WatchInfo
from torpor.sdk.change_results import checks_text, profile_text, who
from torpor.sdk.checks_file import Checks
from torpor.sdk.drills import (
    AsyncDrill,
    DrillOptions,
    Progress,
    begin_drill,
    schedule_drills,
)
from torpor.sdk.dual import dual
from torpor.sdk.handle import AsyncHandle

LOOK_LIMIT_S = 3900.0
"""Seconds for a look at a machine that is watched; its checks have limits of their own."""


class AsyncProofs(AsyncHandle):
    """The part of `AsyncSandbox` about drills and watches. All of it also works on the class with an id."""

    @dual
    async def drill(
        self,
        *,
        checks: Checks | None = None,
        profile: str | Path | None = None,
        boots: Sequence[MemoryChoice] = ("ram", "cold"),
        limit_seconds: float = 3600.0,
        author: str | None = None,
        wait: bool = True,
        progress: Progress | None = None,
    ) -> AsyncDrill:
        """Prove that a snapshot comes back: the newest, the oldest and a random one in turn. Return the drill.

        It is restored into a clone without a network, with an identity of its own and its schedulers held, once with
        its memory and once from its disk; looked at, timed, and thrown away. The sandbox itself is not touched.

        Args:
            checks: a path, the text of a checks file, or a mapping like it; beside what the inventory says.
            profile: an agent profile, by name, path or text; None: the one that fits.
            boots: `ram`, `cold` or both, one after the other.
            limit_seconds: for each of them.
            author: who asks; None: your user name.
            wait: return when it is over; else at once.
            progress: called with the drill whenever there are news of it.

        Raises:
            InvalidRequest: a value, the checks file or the profile cannot be right.
            NotFound: there is no such sandbox, or it has no snapshot.
        """
        options = DrillOptions(
            checks=checks,
            profile=profile,
            boots=boots,
            limit_seconds=limit_seconds,
            author=author,
        )
        found = await begin_drill(self._path, options, client=self._client)
        return await found.wait(progress) if wait else found

    @dual
    async def schedule_drills(
        self,
        schedule: str,
        *,
        checks: Checks | None = None,
        profile: str | Path | None = None,
        boots: Sequence[MemoryChoice] = ("ram", "cold"),
        limit_seconds: float = 3600.0,
        author: str | None = None,
    ) -> ScheduleInfo:
        """Do what `drill` does again and again: at `schedule`, a cron expression of five fields in UTC.

        One that is missed while no daemon runs is made up for once. Raises as `drill`.
        """
        options = DrillOptions(
            checks=checks,
            profile=profile,
            boots=boots,
            limit_seconds=limit_seconds,
            author=author,
        )
        return await schedule_drills(self._path, schedule, options, client=self._client)

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

"""The synchronous face of `AsyncProofs`; `torpor.sdk.proofs` says more of each call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torpor.model import MemoryChoice
from torpor.model_drills import ScheduleInfo
from torpor.model_watches import WatchInfo
from torpor.sdk.checks_file import Checks
from torpor.sdk.drills import Progress
from torpor.sdk.dual import dual
from torpor.sdk.loop import loop_thread
from torpor.sdk.sync_drills import Drill
from torpor.sdk.sync_handle import Handle


class Proofs(Handle):
    """The part of `Sandbox` about drills and watches. All of it also works on the class with an id."""

    @dual
    def drill(
        self,
        *,
        checks: Checks | None = None,
        profile: str | Path | None = None,
        boots: Sequence[MemoryChoice] = ("ram", "cold"),
        limit_seconds: float = 3600.0,
        author: str | None = None,
        wait: bool = True,
        progress: Progress | None = None,
    ) -> Drill:
        """Prove that a snapshot comes back: the newest, the oldest and a random one in turn. Return the drill.

        Raises:
            InvalidRequest: a value, the checks file or the profile cannot be right.
            NotFound: there is no such sandbox, or it has no snapshot.
        """
        begun = self._sandbox.drill(
            checks=checks,
            profile=profile,
            boots=boots,
            limit_seconds=limit_seconds,
            author=author,
            wait=wait,
            progress=progress,
        )
        return Drill(loop_thread.run(begun))

    @dual
    def schedule_drills(
        self,
        schedule: str,
        *,
        checks: Checks | None = None,
        profile: str | Path | None = None,
        boots: Sequence[MemoryChoice] = ("ram", "cold"),
        limit_seconds: float = 3600.0,
        author: str | None = None,
    ) -> ScheduleInfo:
        """Do what `drill` does again and again: at `schedule`, a cron expression of five fields in UTC."""
        return loop_thread.run(
            self._sandbox.schedule_drills(
                schedule,
                checks=checks,
                profile=profile,
                boots=boots,
                limit_seconds=limit_seconds,
                author=author,
            )
        )

    @dual
    def watch(
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

        Raises:
            InvalidRequest: a value, the checks file, the profile or the schedule cannot be right.
        """
        return loop_thread.run(
            self._sandbox.watch(
                checks,
                schedule=schedule,
                every_seconds=every_seconds,
                profile=profile,
                wake=wake,
                author=author,
            )
        )

    @dual
    def watched(self) -> WatchInfo | None:
        """Return the watch of this sandbox, and what it found last; None: it is not watched."""
        return loop_thread.run(self._sandbox.watched())

    @dual
    def look(self) -> WatchInfo:
        """Look at a watched sandbox now, and return what was found. Raises `NotFound` when it is not watched."""
        return loop_thread.run(self._sandbox.look())

    @dual
    def unwatch(self) -> WatchInfo:
        """Watch this sandbox no more; return the watch. Raises `NotFound` when it is not watched."""
        return loop_thread.run(self._sandbox.unwatch())

"""The synchronous face of `AsyncProofs`; `torpor.sdk.proofs` says more of each call."""

from __future__ import annotations

from pathlib import Path

from torpor.model_watches import WatchInfo
from torpor.sdk.change_results import Checks
from torpor.sdk.dual import dual
from torpor.sdk.loop import loop_thread
from torpor.sdk.sync_handle import Handle


class Proofs(Handle):
    """The part of `Sandbox` about watches. All of it also works on the class with an id."""

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

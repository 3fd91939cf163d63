"""`WatchDesk`: all that may be asked about watches, and the looks by the clock. One a daemon.

A look that is missed while no daemon runs is made once, when the next one starts. A machine that is being changed is
not looked at: the change looks itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

from torpor.base.aio import Supervisor
from torpor.base.clock import Clock, SystemClock
from torpor.base.home import Home
from torpor.db.watches import WatchRows
from torpor.errors import InvalidRequest, NotFound, TorporError
from torpor.model import SandboxId, SandboxState
from torpor.model_changes import ChangeInfo
from torpor.model_watches import WatchInfo, WatchSpec
from torpor.recovery.changes.looks import told
from torpor.recovery.cron import check_schedule, next_time
from torpor.recovery.requests import check_checks, check_profile
from torpor.recovery.timetable import Timetable
from torpor.recovery.watches.look import Seen, WatchLooker
from torpor.sandboxes.port import EnginePort

log = logging.getLogger(__name__)

EVERY_SECONDS = (60.0, 366 * 86400.0)
_AT_ONCE = 2
_NOTE_MOST = 600

OpenChange = Callable[[SandboxId], Awaitable[ChangeInfo | None]]


class WatchDesk:
    """Takes requests about watches."""

    def __init__(
        self, home: Home, engine: EnginePort, open_change: OpenChange, *, clock: Clock | None = None
    ) -> None:
        self._engine = engine
        self._open_change = open_change
        self._clock = clock or SystemClock()
        self._rows = WatchRows.attach(home.database)
        self._watches: dict[SandboxId, tuple[WatchInfo, WatchSpec]] = {}
        self._locks: defaultdict[SandboxId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._writing = asyncio.Lock()
        self._looked_at: set[SandboxId] = set()
        """Who is looked at by the clock, or waits for it."""
        self._supervisor = Supervisor(_failed)
        self._timetable = Timetable(
            "watches", self._clock, self._next_at, self._do_due, self._set_back
        )

    async def start(self) -> None:
        """Begin to look by the clock; what was found before is shown again."""
        found = await asyncio.to_thread(self._rows.all)
        self._watches = {info.sandbox_id: (info, spec) for info, spec in found}
        for info, _ in found:
            if info.failing_since is not None:
                with contextlib.suppress(NotFound):
                    await self._engine.note_health(info.sandbox_id, note_of(info), "failing")
        self._supervisor.launch(self._timetable.run(), name="watches")

    async def aclose(self) -> None:
        """Stop; the next daemon looks again."""
        await self._supervisor.aclose()
        await asyncio.to_thread(self._rows.close)

    async def put(self, sandbox_id: SandboxId, spec: WatchSpec) -> WatchInfo:
        """Watch a sandbox, in place of the watch that it has; the first look is when its time comes.

        Raises:
            InvalidRequest: a value, the checks, the profile or the schedule cannot be right.
            NotFound: no such sandbox.
        """
        now = self._clock.now()
        spec = await asyncio.to_thread(_checked, spec, now)
        sandbox = await self._engine.get(sandbox_id)
        if sandbox.state is SandboxState.DELETED:
            raise NotFound(f"sandbox {sandbox_id} is deleted", sandbox_id=sandbox_id)
        info = WatchInfo(
            sandbox_id=sandbox_id,
            workspace=sandbox.workspace,
            checks_source=spec.checks_source,
            schedule=spec.schedule,
            every_seconds=spec.every_seconds,
            wake=spec.wake,
            author=spec.author,
            created_at=now,
            next_at=_next(spec, now),
        )
        async with self._locks[sandbox_id]:
            before = self._watches.get(sandbox_id)
            await self._save(info, spec)
            if before is not None and before[0].failing_since is not None:
                await self._engine.note_health(sandbox_id, None, "passing")
        self._timetable.wake()
        return info

    async def get(self, sandbox_id: SandboxId) -> WatchInfo:
        """Return a sandbox's watch. Raises `NotFound`."""
        return self._found(sandbox_id)[0]

    async def list(self, *, workspace: str | None = None) -> list[WatchInfo]:
        """Return all watches, those that fail first."""
        found = [info for info, _ in self._watches.values() if workspace in (None, info.workspace)]
        return sorted(found, key=lambda info: (info.failing_since is None, info.next_at))

    async def drop(self, sandbox_id: SandboxId) -> WatchInfo:
        """Watch a sandbox no more; return the watch. Raises `NotFound`."""
        async with self._locks[sandbox_id]:
            info, _ = self._found(sandbox_id)
            await self._forget(sandbox_id)
            if info.failing_since is not None:
                with contextlib.suppress(NotFound):
                    await self._engine.note_health(sandbox_id, None, "ended")
        return info

    async def look(self, sandbox_id: SandboxId) -> WatchInfo:
        """Look now, and return what was found.

        Raises:
            NotFound: nobody watches it, or it is gone.
        """
        self._found(sandbox_id)
        return await asyncio.shield(
            self._supervisor.spawn(self._look(sandbox_id), name=f"look at {sandbox_id}")
        )

    def _found(self, sandbox_id: SandboxId) -> tuple[WatchInfo, WatchSpec]:
        found = self._watches.get(sandbox_id)
        if found is None:
            raise NotFound(
                f"sandbox {sandbox_id} is not watched",
                hint=f"watch it: torpor watch {sandbox_id} --checks FILE",
                sandbox_id=sandbox_id,
            )
        return found

    async def _save(self, info: WatchInfo, spec: WatchSpec) -> WatchInfo:
        async with self._writing:
            return await self._write(info, spec)

    async def _save_look(self, info: WatchInfo, spec: WatchSpec) -> WatchInfo:
        async with self._writing:
            next_at = self._found(info.sandbox_id)[0].next_at  # it may have moved meanwhile
            return await self._write(replace(info, next_at=next_at), spec)

    async def _forget(self, sandbox_id: SandboxId) -> None:
        async with self._writing:
            await asyncio.to_thread(self._rows.drop, sandbox_id)
            self._watches.pop(sandbox_id, None)

    async def _write(self, info: WatchInfo, spec: WatchSpec) -> WatchInfo:
        await asyncio.to_thread(self._rows.put, info, spec)
        self._watches[info.sandbox_id] = info, spec
        return info

    async def _move(self, sandbox_id: SandboxId, now: datetime) -> None:
        """Let the next look be when its time comes, from now on; a look that is under way is not waited for."""
        async with self._writing:
            found = self._watches.get(sandbox_id)
            if found is not None:
                info, spec = found
                await self._write(replace(info, next_at=_next(spec, now)), spec)

    # ---- looks ----

    async def _look(self, sandbox_id: SandboxId) -> WatchInfo:
        async with self._slots, self._locks[sandbox_id]:
            info, spec = self._found(sandbox_id)
            try:
                seen = await self._seen(sandbox_id, spec)
            except Exception as exc:
                if isinstance(exc, NotFound) and await self._is_gone(sandbox_id):
                    await self._forget(sandbox_id)
                    raise
                if not isinstance(exc, TorporError):
                    log.exception("sandbox %s could not be looked at", sandbox_id)
                seen = Seen("inconclusive", f"it could not be looked at: {told(exc)}"[:_NOTE_MOST])
            return await self._noted(info, spec, seen)

    async def _is_gone(self, sandbox_id: SandboxId) -> bool:
        try:
            return (await self._engine.get(sandbox_id)).state is SandboxState.DELETED
        except NotFound:
            return True

    async def _seen(self, sandbox_id: SandboxId, spec: WatchSpec) -> Seen:
        change = await self._open_change(sandbox_id)
        seen = Seen("skipped", "")
        if change is None:
            seen = await WatchLooker(self._engine, self._clock).look(sandbox_id, spec)
            change = await self._open_change(sandbox_id)  # one may have begun meanwhile
        if change is not None:
            return Seen("skipped", f"change {change.id} is {change.state}: it looks itself")
        return seen

    async def _noted(self, info: WatchInfo, spec: WatchSpec, seen: Seen) -> WatchInfo:
        now = self._clock.now()
        info = replace(info, outcome=seen.outcome, sentence=seen.sentence, reasons=seen.reasons)
        if seen.outcome in ("pass", "fail", "inconclusive"):
            info = replace(info, looked_at=now)
        if seen.outcome == "pass":
            was_failing = info.failing_since is not None
            info = replace(info, failing_since=None, last_good=None, offer="")
            info = await self._save_look(info, spec)
            if was_failing:
                await self._engine.note_health(info.sandbox_id, None, "passing")
            return info
        if seen.outcome == "fail":
            good = await self._engine.last_good(info.sandbox_id)
            info = replace(
                info,
                failing_since=info.failing_since or now,
                last_good=None if good is None else good.id,
                offer="" if good is None else f"torpor rollback {info.sandbox_id} {good.id} --cold",
            )
        info = await self._save_look(info, spec)
        if seen.outcome == "fail":
            await self._engine.note_health(info.sandbox_id, note_of(info), "failing")
        return info

    def _next_at(self) -> datetime | None:
        return min((info.next_at for info, _ in self._watches.values()), default=None)

    async def _do_due(self, now: datetime) -> None:
        """Begin the looks that are due; one that was missed several times is made once."""
        for info, _ in list(self._watches.values()):
            if info.next_at > now:
                continue
            await self._move(info.sandbox_id, now)
            if info.sandbox_id in self._looked_at:
                continue  # one that takes longer than the time between two
            self._looked_at.add(info.sandbox_id)
            self._supervisor.launch(
                self._look_by_the_clock(info.sandbox_id), name=f"look at {info.sandbox_id}"
            )

    async def _set_back(self, now: datetime) -> None:
        """See to it that no watch waits longer than from now to its next time."""
        for info, spec in list(self._watches.values()):
            if _next(spec, now) < info.next_at:
                await self._move(info.sandbox_id, now)

    async def _look_by_the_clock(self, sandbox_id: SandboxId) -> None:
        try:
            await self._look(sandbox_id)
        except NotFound:
            log.info("sandbox %s is gone, and its watch with it", sandbox_id)
        finally:
            self._looked_at.discard(sandbox_id)


def note_of(info: WatchInfo) -> str:
    """Return what a sandbox is shown with while its watch fails."""
    since = f"{info.failing_since:%Y-%m-%d %H:%M}" if info.failing_since else "now"
    why = info.reasons[0] if info.reasons else info.sentence
    what = (
        f"put it back (what it did to others stays done): {info.offer}"
        if info.offer
        else "no snapshot of it is known to be good; prove one: torpor drill " + info.sandbox_id
    )
    return f"damaged since {since} UTC: {why[:_NOTE_MOST]}; {what}"


def _checked(spec: WatchSpec, now: datetime) -> WatchSpec:
    check_checks(spec.checks, spec.checks_source)
    check_profile(spec.profile)
    if spec.schedule is not None and spec.every_seconds is not None:
        raise InvalidRequest("both a schedule and every_seconds are given", hint="give one of them")
    if spec.schedule is not None:
        return replace(spec, schedule=check_schedule(spec.schedule, now=now))
    least, most = EVERY_SECONDS
    every = 86400.0 if spec.every_seconds is None else spec.every_seconds
    if not least <= every <= most:
        raise InvalidRequest(f"every_seconds is {every:g}; {least:g} to {most:g} is wanted")
    return replace(spec, every_seconds=every)


def _next(spec: WatchSpec, now: datetime) -> datetime:
    if spec.schedule is not None:
        return next_time(spec.schedule, now)
    return now + timedelta(seconds=spec.every_seconds or 86400.0)


def _failed(name: str, error: BaseException) -> None:
    log.error("%s: %s", name, error, exc_info=error)

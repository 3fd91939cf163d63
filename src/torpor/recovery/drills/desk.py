"""`DrillDesk`: all that may be asked about drills and their schedules. One a daemon.

It decides nothing about a drill that runs: it writes the first row and starts the workflow. See `workflow`.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from torpor.base.aio import Supervisor
from torpor.base.clock import Clock, SystemClock
from torpor.base.home import Home
from torpor.base.ids import check_id, is_id, new_id
from torpor.db.drills import DrillRow, DrillRows
from torpor.errors import InvalidRequest, LimitExceeded, NotFound, TorporError
from torpor.model import SandboxId, SnapshotId, SnapshotInfo
from torpor.model_drills import Choice, DrillId, DrillInfo, DrillSpec, ScheduleInfo
from torpor.recovery.cron import check_schedule, next_time
from torpor.recovery.drills.acts import DrillActs
from torpor.recovery.drills.choose import choose
from torpor.recovery.drills.evidence import EvidenceFiles
from torpor.recovery.drills.requests import check_drill_id, check_schedule_id, check_spec
from torpor.recovery.durable import Durable
from torpor.recovery.timetable import Timetable
from torpor.sandboxes.port import EnginePort

log = logging.getLogger(__name__)

WAIT_MOST_S = 60.0
_LIST_MOST = 1000
_OPEN_MOST = 50
_SCHEDULES_MOST = 1000
_SWEEP_S = 60.0


class DrillDesk:
    """Takes requests about drills."""

    def __init__(
        self, home: Home, engine: EnginePort, durable: Durable, *, clock: Clock | None = None
    ) -> None:
        self._engine = engine
        self._durable = durable
        self._clock = clock or SystemClock()
        self._rows = DrillRows.attach(home.database)
        self.files = EvidenceFiles(home)
        self._acts = DrillActs(engine, self._rows, self._clock, self.files)
        self._supervisor = Supervisor(_failed)
        self._beginning: set[DrillId] = set()
        self._schedules: dict[str, tuple[ScheduleInfo, DrillSpec]] = {}
        self._timetable = Timetable(
            "drills", self._clock, self._next_at, self._do_due, self._set_back
        )
        self._is_swept = False
        durable.acts["drills"] = self._acts

    async def start(self) -> None:
        """Go on with what an earlier daemon left open, and with the schedules."""
        found = await asyncio.to_thread(self._rows.schedules)
        self._schedules = {info.id: (info, spec) for info, spec in found}
        if await asyncio.to_thread(self._rows.open):
            self._supervisor.launch(self._go_on(), name="drills that are open")
        self._supervisor.launch(self._timetable.run(), name="schedules of drills")

    async def aclose(self) -> None:
        """Stop; what is under way, the next daemon goes on with."""
        await self._supervisor.aclose()
        await asyncio.to_thread(self._rows.close)

    # ---- begin ----

    async def begin(
        self, target: str, spec: DrillSpec, *, schedule_id: str | None = None
    ) -> DrillInfo:
        """Begin a drill of a snapshot, or of the next one of a sandbox in turn, and return it.

        Raises:
            InvalidRequest: a value, the checks or the profile cannot be right.
            NotFound: no such snapshot or sandbox, or it has no snapshot.
            LimitExceeded: too many drills are open.
        """
        await asyncio.to_thread(check_spec, spec)
        snapshot, choice = await self._chosen(target)
        if len(await asyncio.to_thread(self._rows.open)) >= _OPEN_MOST:
            raise LimitExceeded(f"{_OPEN_MOST} drills are open already", hint="wait for them")
        now, drill_id = self._clock.now(), DrillId(new_id("drl"))
        row = DrillRow(
            DrillInfo(
                id=drill_id,
                snapshot_id=snapshot.id,
                sandbox_id=snapshot.sandbox_id,
                choice=choice,
                author=spec.author,
                workspace=snapshot.workspace,
                created_at=now,
                updated_at=now,
                boots=spec.boots,
                step="begun",
                schedule_id=schedule_id,
            ),
            spec,
        )
        error = await asyncio.shield(
            self._supervisor.spawn(self._start(row), name=f"begin {drill_id}")
        )
        if error is not None:
            raise error
        return row.info

    async def _chosen(self, target: str) -> tuple[SnapshotInfo, Choice]:
        if is_id(target, "snap"):
            return await self._engine.get_snapshot(SnapshotId(target)), "named"
        sandbox_id = SandboxId(check_id(target, "sbx", "sandbox"))
        snapshots = await self._engine.snapshots(sandbox_id)
        if not snapshots:
            await self._engine.get(sandbox_id)
        earlier = await asyncio.to_thread(self._rows.infos, sandbox_id=sandbox_id, limit=_LIST_MOST)
        return choose(sandbox_id, snapshots, earlier)

    async def _start(self, row: DrillRow) -> Exception | None:
        """Write a drill down and start its workflow; return what was in the way."""
        self._beginning.add(row.info.id)
        is_written = False
        try:
            forgotten = await asyncio.to_thread(self._rows.insert, row)
            is_written = True  # so that whatever comes now, somebody lets go of the snapshot
            drill_id = row.info.id
            await self._engine.protect(row.info.snapshot_id, drill_id, f"drill {drill_id} tries it")
            await self.files.remove(forgotten)
            await self._durable.launch()
            from torpor.recovery.drills.workflow import drill

            await self._durable.start(drill, row.info.id, list(row.spec.boots))
        except Exception as exc:  # noqa: BLE001 - handed to the caller, who raises it
            if is_written:
                await self._acts.give_up(row, f"it could not be begun: {_told(exc)}")
            return exc
        finally:
            self._beginning.discard(row.info.id)
        if not self._is_swept:
            self._is_swept = True
            self._supervisor.launch(self._sweep(), name="sweep of drills")
        return None

    # ---- look ----

    async def get(self, drill_id: str, *, wait_seconds: float = 0) -> DrillInfo:
        """Return a drill; with `wait_seconds` as soon as there are news of it, or it is over.

        Raises:
            NotFound: there is none.
        """
        known = check_drill_id(drill_id)
        info = self._with_step((await self._acts.row(known)).info)
        if not info.is_open or wait_seconds <= 0:
            return info
        news = self._acts.news(known)
        if not (await self._acts.row(known)).info.is_open:
            self._acts.tell(known)
        try:
            async with asyncio.timeout(min(wait_seconds, WAIT_MOST_S)):
                await news.wait()
        except TimeoutError:
            pass
        return self._with_step((await self._acts.row(known)).info)

    def _with_step(self, info: DrillInfo) -> DrillInfo:
        step = self._acts.steps.get(info.id)
        return replace(info, step=step) if step is not None and info.is_open else info

    async def evidence(self, drill_id: str) -> Mapping[str, Any] | None:
        """Return the evidence of a drill; None while it goes on. Raises `NotFound`, `DataDamaged`."""
        info = (await self._acts.row(check_drill_id(drill_id))).info
        return None if info.is_open else await self.files.read(info.id)

    async def list(
        self, target: str | None = None, *, workspace: str | None = None, limit: int = 100
    ) -> list[DrillInfo]:
        """Return drills, newest first: all, or those of one sandbox or snapshot."""
        if not 1 <= limit <= _LIST_MOST:
            raise InvalidRequest(f"limit is {limit}; 1 to {_LIST_MOST} is wanted")
        is_snapshot = target is not None and is_id(target, "snap")
        if target is not None and not is_snapshot:
            check_id(target, "sbx", "sandbox")
        found = await asyncio.to_thread(
            self._rows.infos,
            sandbox_id=None if target is None or is_snapshot else SandboxId(target),
            snapshot_id=SnapshotId(target) if target is not None and is_snapshot else None,
            workspace=workspace,
            limit=limit,
        )
        return [self._with_step(info) for info in found]

    # ---- schedules ----

    async def add_schedule(self, target: str, spec: DrillSpec, schedule: str) -> ScheduleInfo:
        """Begin drills of a snapshot, or of a sandbox's in turn, again and again; return the schedule.

        Raises:
            InvalidRequest: a value, the checks, the profile or the schedule cannot be right.
            NotFound: no such snapshot or sandbox.
            LimitExceeded: there are too many schedules.
        """
        now = self._clock.now()
        text = await asyncio.to_thread(check_schedule, schedule, now=now)
        await asyncio.to_thread(check_spec, spec)
        is_snapshot = is_id(target, "snap")
        if is_snapshot:
            workspace = (await self._engine.get_snapshot(SnapshotId(target))).workspace
        else:
            workspace = (await self._engine.get(SandboxId(target))).workspace
        if len(self._schedules) >= _SCHEDULES_MOST:
            raise LimitExceeded(f"there are {_SCHEDULES_MOST} schedules", hint="remove some")
        info = ScheduleInfo(
            id=new_id("sch"),
            schedule=text,
            sandbox_id=None if is_snapshot else SandboxId(target),
            snapshot_id=SnapshotId(target) if is_snapshot else None,
            workspace=workspace,
            author=spec.author,
            created_at=now,
            next_at=next_time(text, now),
        )
        await self._put(info, spec)
        self._timetable.wake()
        return info

    async def schedules(self) -> builtins.list[ScheduleInfo]:
        """Return all schedules, the one that comes first first."""
        return sorted((info for info, _ in self._schedules.values()), key=lambda i: i.next_at)

    async def get_schedule(self, schedule_id: str) -> ScheduleInfo:
        """Return one schedule. Raises `NotFound`."""
        found = self._schedules.get(check_schedule_id(schedule_id))
        if found is None:
            raise no_schedule(schedule_id)
        return found[0]

    async def drop_schedule(self, schedule_id: str) -> ScheduleInfo:
        """Remove a schedule and return it; a drill that it began goes on. Raises `NotFound`."""
        info = await self.get_schedule(schedule_id)
        await asyncio.to_thread(self._rows.drop_schedule, info.id)
        self._schedules.pop(info.id, None)
        return info

    async def _put(self, info: ScheduleInfo, spec: DrillSpec) -> None:
        await asyncio.to_thread(self._rows.put_schedule, info, spec)
        self._schedules[info.id] = info, spec

    def _next_at(self) -> datetime | None:
        return min((info.next_at for info, _ in self._schedules.values()), default=None)

    async def _do_due(self, now: datetime) -> None:
        """Begin the drills that are due; one that was missed several times is begun once."""
        for info, spec in list(self._schedules.values()):
            if info.next_at > now or info.id not in self._schedules:
                continue
            # written first: a daemon that dies now has begun it, or skips it, and does not begin it for ever
            moved = replace(info, next_at=next_time(info.schedule, now), last_at=now)
            await self._put(moved, spec)
            note, begun = "", None
            try:
                begun = await self.begin(
                    str(info.snapshot_id or info.sandbox_id), spec, schedule_id=info.id
                )
            except TorporError as exc:
                note = exc.message
                log.warning("schedule %s: its drill could not be begun: %s", info.id, note)
            if info.id in self._schedules:
                drill_id = info.last_drill if begun is None else begun.id
                await self._put(replace(moved, last_drill=drill_id, note=note[:500]), spec)

    async def _set_back(self, now: datetime) -> None:
        """See to it that no schedule waits longer than from now to its next time."""
        for info, spec in list(self._schedules.values()):
            latest = next_time(info.schedule, now)
            if latest < info.next_at:
                await self._put(replace(info, next_at=latest), spec)

    # ---- what was left ----

    async def _go_on(self) -> None:
        await self._durable.go_on()
        self._is_swept = True
        await self._sweep()

    async def _sweep(self) -> None:
        """End every open drill whose workflow is not there any more, and remove its clones."""
        while True:
            try:
                await self._swept()
            except Exception as exc:  # noqa: BLE001 - such as a full disk: the next turn may do better
                _failed("sweep of drills", exc)
            await asyncio.sleep(_SWEEP_S)

    async def _swept(self) -> None:
        for row in await asyncio.to_thread(self._rows.open):
            try:
                if row.info.id in self._beginning:
                    continue
                if not await self._durable.is_alive(row.info.id):
                    log.warning("drill %s has no workflow; it is ended", row.info.id)
                    await self._acts.give_up(row, "the daemon lost track of it")
            except Exception as exc:  # noqa: BLE001 - whatever it is, the others are looked after
                _failed(f"drill {row.info.id}", exc)


def no_schedule(schedule_id: str) -> NotFound:
    """Return the error for a schedule that is not there."""
    return NotFound(
        f"there is no schedule {schedule_id}", hint="list them: torpor drill schedule ls"
    )


def _told(error: Exception) -> str:
    return error.message if isinstance(error, TorporError) else repr(error)


def _failed(name: str, error: BaseException) -> None:
    log.error("%s: %s", name, error, exc_info=error)

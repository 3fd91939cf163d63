"""Clones of databases: as one is now, as it was at a snapshot, or at any time that its archived log reaches.

A clone of a running one is a fork of its machine: memory, sessions' ends and volume are of one instant. The others begin
from a snapshot of the volume, and for a time after it PostgreSQL replays the log, which it finds on a second volume:
a clone of the original as it is now, with what was archived and what was not archived yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from torpor.base.aio import finish
from torpor.base.ids import new_id
from torpor.base.units import GIB
from torpor.databases import server
from torpor.databases.lives import Lives, Rooms
from torpor.databases.making import (
    Making,
    check_size,
    first_name,
    log_name,
    restore_spec,
    volume_name,
)
from torpor.databases.passwords import new_password
from torpor.db.databases import DatabaseRow
from torpor.errors import (
    GuestFailed,
    InvalidRequest,
    NotFound,
    OutsideArchive,
    SnapshotUnusable,
    TorporError,
    VolumeHeld,
)
from torpor.model import SandboxId, SnapshotId
from torpor.model_databases import DatabaseId, DatabaseSnapshot, DatabaseStep, Progress
from torpor.model_volumes import VolumeMount

_END_S: Final = 300.0
_AHEAD: Final = timedelta(seconds=2)
"""The clocks of host and machine differ by no more."""


_NOT_REACHED: Final = (
    "recovery ended before configured recovery target was reached",
    "recovery stop point is before consistent recovery point",
)
"""What PostgreSQL says when its log does not lead to a time."""


@dataclass(frozen=True, slots=True)
class CloneSpec:
    """What a clone is to be."""

    name: str
    snapshot: str | None = None
    """Id or label of a snapshot of the database."""
    target_time: datetime | None = None
    """The state of that time: all that was committed by then, and nothing later."""
    size_bytes: int | None = None
    """None: as the original."""


@dataclass(frozen=True, slots=True)
class Branches:
    """Makes clones."""

    rooms: Rooms
    lives: Lives
    making: Making

    async def clone(self, source: DatabaseRow, spec: CloneSpec, progress: Progress) -> DatabaseRow:
        """Make a clone; see `DatabaseDesk.clone`. The source's turn is held."""
        size = spec.size_bytes or source.size_bytes
        check_size(size)
        if size < source.size_bytes:
            raise InvalidRequest(
                f"database {source.name} has {source.size_bytes} bytes; its clone cannot be smaller"
            )
        if spec.snapshot is not None and spec.target_time is not None:
            raise InvalidRequest("snapshot and target_time are both given", hint="give one of them")
        await self.making.check_new(spec.name, size, source.workspace)
        base = self._base(source, spec)
        row = DatabaseRow(
            id=DatabaseId(new_id("db")),
            name=spec.name,
            workspace=source.workspace,
            created_at=self.rooms.clock.now(),
            state="creating",
            size_bytes=size,
            ram_mib=source.ram_mib,
            vcpus=source.vcpus,
            idle_seconds=source.idle_seconds,
            sandbox_id=new_id("sbx"),
            parent=source.id,
        )
        await self.rooms.shelf.insert(row)
        async with self.rooms.shelf.turn(row.id):  # who deletes it meanwhile finds all of it
            try:
                password = new_password()
                await asyncio.to_thread(self.rooms.passwords.write, row.id, password)
                row = await self._begun(source, row, base, spec.target_time, progress)
                known = await asyncio.to_thread(self.rooms.passwords.find, source.id)
                return await self.making.opened(row, password, progress, known=known)
            except BaseException:
                await finish(self.making.undo(row.id), within_s=_END_S)
                raise

    async def _begun(
        self,
        source: DatabaseRow,
        row: DatabaseRow,
        base: DatabaseSnapshot | None,
        target_time: datetime | None,
        progress: Progress,
    ) -> DatabaseRow:
        if target_time is not None:
            assert base is not None
            return await self._replayed(source, row, base, target_time, progress)
        if base is None and await self.lives.machine_of(source) is not None:
            with contextlib.suppress(SnapshotUnusable, VolumeHeld):
                return await self._forked(source, row, progress)
        progress(DatabaseStep("volume", "cloning the volume"))
        row = await self._volume_of(source, row, base)
        progress(DatabaseStep("machine", "starting a machine for it"))
        await self.lives.boot(row)
        return row

    async def _forked(
        self, source: DatabaseRow, row: DatabaseRow, progress: Progress
    ) -> DatabaseRow:
        """Fork the source's machine, with its volume; what was made along the way goes."""
        progress(DatabaseStep("machine", "forking the running machine"))
        snapshot_id = SnapshotId(new_id("snap"))
        engine = self.rooms.engine
        try:
            (made,) = await engine.fork(
                SandboxId(str(source.sandbox_id)), restore_spec(row), snapshot_id=snapshot_id
            )
            if isinstance(made, TorporError):
                raise made
        finally:
            with contextlib.suppress(NotFound):
                await engine.delete_snapshot(snapshot_id)
        return await self.making.keep_volume(row)

    async def _volume_of(
        self, source: DatabaseRow, row: DatabaseRow, base: DatabaseSnapshot | None
    ) -> DatabaseRow:
        """Give a row a volume that begins as the source's is, or was."""
        volumes = self.rooms.engine.volumes
        made = await volumes.clone(
            str(source.volume_id), first_name(row), snapshot=base.id if base else None
        )
        row = await self.rooms.shelf.change(row.id, lambda r: replace(r, volume_id=made.id))
        await volumes.keep(made.id, new_name=volume_name(row.name))
        if row.size_bytes > made.size_bytes:
            await volumes.grow(made.id, row.size_bytes / GIB)
        return row

    # ---- a time ----

    async def _replayed(
        self,
        source: DatabaseRow,
        row: DatabaseRow,
        base: DatabaseSnapshot,
        target_time: datetime,
        progress: Progress,
    ) -> DatabaseRow:
        """Make a machine that replays the source's log on its own volume, up to a time."""
        progress(DatabaseStep("log", "closing the log behind the time"))
        await self._close_log(source, target_time)
        volumes = self.rooms.engine.volumes
        row = await self._volume_of(source, row, base)
        log = await volumes.clone(str(source.volume_id), log_name(row))
        try:
            progress(DatabaseStep("machine", "starting a machine for it"))
            mounts = (
                VolumeMount(volume=str(row.volume_id), path=server.PLACE),
                VolumeMount(volume=log.id, path=server.SOURCE),
            )
            await self.lives.make_machine(row, mounts)
            progress(DatabaseStep("replay", f"replaying the log up to {target_time.isoformat()}"))
            async with self.rooms.engine.guest(SandboxId(str(row.sandbox_id))) as guest:
                try:
                    await server.recover(guest, target_time)
                except GuestFailed as exc:
                    if not any(words in exc.message for words in _NOT_REACHED):
                        raise
                    raise self._cut_off(source, target_time, exc.message) from exc
            await volumes.detach(SandboxId(str(row.sandbox_id)), server.SOURCE)
        finally:
            await finish(self._drop_log(row, log.id), within_s=_END_S)
        return row

    async def _drop_log(self, row: DatabaseRow, volume_id: str) -> None:
        volumes = self.rooms.engine.volumes
        if (await volumes.get(volume_id)).holders:
            await self.rooms.engine.delete(SandboxId(str(row.sandbox_id)))
        await volumes.delete(volume_id)

    async def _close_log(self, source: DatabaseRow, target_time: datetime) -> None:
        """Have a commit in the source's log that is later than the time, so that a replay can tell that it is there."""
        source = await self.lives.raised(source)
        async with self.rooms.engine.guest(SandboxId(str(source.sandbox_id))) as guest:
            now = await server.mark(guest)
        if target_time > now:
            raise self._outside(source, target_time, f"it is {now.isoformat()} there now")

    def _base(self, source: DatabaseRow, spec: CloneSpec) -> DatabaseSnapshot | None:
        """Return the snapshot that a clone begins with, if it begins with one."""
        if spec.snapshot is not None:
            return find_snapshot(source, spec.snapshot)
        if spec.target_time is None:
            return None
        if spec.target_time.tzinfo is None:
            raise InvalidRequest(
                f"target_time {spec.target_time.isoformat()} has no time zone",
                hint="say which, such as 2026-01-31T12:00:00Z",
            )
        if spec.target_time > self.rooms.clock.now() + _AHEAD:
            raise self._outside(source, spec.target_time, "it is in the future")
        older = [s for s in source.snapshots if s.at <= spec.target_time]
        if not older:
            raise self._outside(source, spec.target_time, "no snapshot is so old")
        return older[-1]

    def _outside(self, source: DatabaseRow, wanted: datetime, why: str) -> OutsideArchive:
        oldest = min((s.at for s in source.snapshots), default=None)
        return _outside(source, wanted, why, oldest, f"as it is now: {_clone_words(source)}")

    def _cut_off(self, source: DatabaseRow, wanted: datetime, why: str) -> OutsideArchive:
        """Return the error for a time behind which the log was given up: up to the next snapshot none can be had."""
        older = [s for s in source.snapshots if s.at <= wanted]
        later = min((s.at for s in source.snapshots if s.at > wanted), default=None)
        last = f"as it was at {older[-1].at.isoformat()}: {_clone_words(source)} --snapshot {older[-1].id}"
        return _outside(source, wanted, why, later, last)


def _outside(
    source: DatabaseRow, wanted: datetime, why: str, since: datetime | None, instead: str
) -> OutsideArchive:
    """Return the error for a time that cannot be had; times from `since` on can be, if there is such a time."""
    times = "" if since is None else f"it can be had from {since.isoformat()} until now; or "
    return OutsideArchive(
        f"database {source.name} cannot be had as of {wanted.isoformat()}: {why}",
        hint=f"{times}{instead}",
        database=source.name,
        target_time=wanted.isoformat(),
        recoverable_from=None if since is None else since.isoformat(),
    )


def _clone_words(source: DatabaseRow) -> str:
    return f"torpor db clone {source.name} NEW"


def find_snapshot(row: DatabaseRow, wanted: str) -> DatabaseSnapshot:
    """Return a snapshot of a database, by id or label. Raises `NotFound`."""
    for snapshot in row.snapshots:
        if wanted in (snapshot.id, snapshot.label):
            return snapshot
    raise NotFound(
        f"database {row.name} has no snapshot {wanted}",
        hint=f"list them: torpor db snapshots {row.name}",
    )

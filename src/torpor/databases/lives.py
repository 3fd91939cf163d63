"""Databases' machines: whether there is one, the way into it, and a new one in the place of one that is gone.

A database is its volume and its password; a machine is only what serves them. So when a machine has failed, was
deleted or is given up for an upgrade, the next who needs the database gets a new one made, and PostgreSQL goes on
from its log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Final

from torpor.base.aio import finish
from torpor.base.clock import Clock
from torpor.base.ids import new_id
from torpor.base.units import GIB
from torpor.databases import server
from torpor.databases.passwords import Passwords, verifier_of
from torpor.databases.shelf import DatabaseShelf
from torpor.db.databases import DatabaseRow
from torpor.errors import (
    Conflict,
    DataDamaged,
    NotFound,
    PortClosed,
    TorporError,
    VolumeHeld,
    WrongState,
)
from torpor.guest.port import Guest, PortStream
from torpor.model import SandboxId, SandboxInfo, SandboxSpec, SandboxState, SnapshotInfo
from torpor.model_databases import LOOPBACK, DatabaseId, DatabaseState
from torpor.model_volumes import VolumeInfo, VolumeMount
from torpor.sandboxes.port import EnginePort

S = SandboxState
GONE: Final = frozenset({S.FAILED, S.STOPPED, S.DELETING, S.DELETED})
"""States of a machine that serves nobody any more."""
_ASLEEP: Final = frozenset({S.HIBERNATING, S.HIBERNATED, S.WAKING})
_END_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Rooms:
    """What all that works on databases is given."""

    engine: EnginePort
    shelf: DatabaseShelf
    passwords: Passwords
    clock: Clock
    report: Callable[[str, BaseException], None]
    """Takes failures that no caller waits for."""


class Lives:
    """The machines of all databases."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._engine = rooms.engine
        self._shelf = rooms.shelf
        self._reserves: set[DatabaseId] = set()
        """Those that are known to have their reserve of room."""

    async def machine_of(self, row: DatabaseRow) -> SandboxInfo | None:
        """Return a database's machine, if there is one that serves or sleeps."""
        if row.sandbox_id is None:
            return None
        try:
            info = await self._engine.get(SandboxId(row.sandbox_id))
        except NotFound:
            return None
        return None if info.state in GONE else info

    async def state_of(self, row: DatabaseRow) -> DatabaseState:
        """Return what a database is now."""
        if row.state != "ready":
            return DatabaseState(row.state)
        info = await self.machine_of(row)
        if info is None:
            return DatabaseState.DOWN
        if info.state in _ASLEEP:
            return DatabaseState.HIBERNATED
        return DatabaseState.PAUSED if info.state is S.PAUSED else DatabaseState.RUNNING

    @contextlib.asynccontextmanager
    async def guest(self, database_id: DatabaseId) -> AsyncIterator[Guest]:
        """Enter with the guest of a database's machine, which is woken or made for it.

        Raises:
            NotFound: there is no such database.
            WrongState: it is being deleted, or is paused.
            TorporError: no machine could be had; the data is as it was.
        """
        row = self._shelf.get(database_id)
        if await self._needs_work(row):
            async with self._shelf.turn(database_id) as row:
                row = await self.raised(row)
        async with self._engine.guest(SandboxId(str(row.sandbox_id))) as guest:
            yield guest

    @contextlib.asynccontextmanager
    async def port(self, database_id: DatabaseId) -> AsyncIterator[PortStream]:
        """Enter with a connection to a database's server, which is started if it does not run: its machine rebooted.

        Raises as `guest`, and `PortClosed` when it takes none all the same.
        """
        async with contextlib.AsyncExitStack() as stack:
            guest = await stack.enter_async_context(self.guest(database_id))
            try:
                stream = await stack.enter_async_context(_port_of(guest))
            except PortClosed:
                await self._start_server(database_id)
                stream = await stack.enter_async_context(_port_of(guest))
            yield stream

    async def _start_server(self, database_id: DatabaseId) -> None:
        async with self._shelf.turn(database_id) as row:
            row = await self.raised(row)
            async with self._engine.guest(SandboxId(str(row.sandbox_id))) as guest:
                self._note_room(row, has_reserve=await server.start(guest, row.name))

    def _note_room(self, row: DatabaseRow, *, has_reserve: bool) -> None:
        (self._reserves.add if has_reserve else self._reserves.discard)(row.id)

    async def keep_room(self, row: DatabaseRow) -> None:
        """Make the reserve of a database that has none, if there is room for it. Its turn is held, and it runs."""
        if row.id not in self._reserves:
            async with self._engine.guest(SandboxId(str(row.sandbox_id))) as guest:
                self._note_room(row, has_reserve=await server.keep_room(guest))

    async def grown(self, row: DatabaseRow, size_bytes: int) -> DatabaseRow:
        """Make the volume of a database larger, and let it run with that. Its turn is held.

        The volume is first: a server that is down for want of room starts only then.
        """
        volumes, size_gib = self._engine.volumes, size_bytes / GIB
        if await self.machine_of(row) is None:
            await volumes.grow(str(row.volume_id), size_gib)
        else:
            async with self._engine.guest(SandboxId(str(row.sandbox_id))) as guest:
                await volumes.grow(str(row.volume_id), size_gib)
                self._note_room(row, has_reserve=await server.configure(guest, row.name))
        return await self.raised(row)

    async def _needs_work(self, row: DatabaseRow) -> bool:
        if row.state == "deleting":
            raise WrongState(f"database {row.name} is being deleted", database=row.name)
        if row.state == "creating":  # nobody has its port but who makes it
            return False
        return not row.is_password_set or await self.machine_of(row) is None

    async def raised(self, row: DatabaseRow) -> DatabaseRow:
        """Return a database with a machine, made now if there is none, that knows the password. Its turn is held."""
        if row.state != "ready":
            raise WrongState(f"database {row.name} is {row.state}", database=row.name)
        if await self.machine_of(row) is None:
            row = await self.rebuilt(row)
        if not row.is_password_set:
            password = await asyncio.to_thread(self._rooms.passwords.read, row.id)
            async with self._engine.guest(SandboxId(str(row.sandbox_id))) as guest:
                await server.set_password(guest, verifier_of(password))
            row = await self._shelf.change(row.id, lambda r: replace(r, is_password_set=True))
        return row

    async def rebuilt(self, row: DatabaseRow) -> DatabaseRow:
        """Make a new machine for a database whose own is gone, or goes now. Its turn is held.

        On failure it has no machine, and the data is as it was.
        """
        if row.volume_id is None:
            raise DataDamaged(f"database {row.name} has no volume", database=row.name)
        if row.sandbox_id is not None:
            await self.discard(row.sandbox_id)
        fresh = SandboxId(new_id("sbx"))
        row = await self._shelf.change(row.id, lambda r: replace(r, sandbox_id=fresh))
        try:
            await self.boot(row)
        except BaseException:
            await finish(self.discard(fresh), within_s=_END_S)
            raise
        return row

    async def boot(self, row: DatabaseRow, *, more: Sequence[VolumeMount] = ()) -> None:
        """Make the machine of a row, with its volume, and start the server in it."""
        assert row.volume_id is not None
        mounts = (VolumeMount(volume=row.volume_id, path=server.PLACE), *more)
        await self.make_machine(row, mounts)
        async with self._engine.guest(SandboxId(str(row.sandbox_id))) as guest:
            self._note_room(row, has_reserve=await server.start(guest, row.name))

    async def make_machine(self, row: DatabaseRow, mounts: Sequence[VolumeMount]) -> SandboxInfo:
        """Make the machine of a row; the server is not started."""
        return await self._engine.create(
            SandboxSpec(
                template=server.TEMPLATE,
                vcpus=row.vcpus,
                ram_mib=row.ram_mib,
                network="none",
                metadata=metadata_of(row),
                idle_seconds=row.idle_seconds,
                workspace=row.workspace,
                sandbox_id=SandboxId(str(row.sandbox_id)),
                volumes=tuple(mounts),
            )
        )

    async def discard(self, sandbox_id: str) -> None:
        """Delete a machine and the snapshots that were taken of it along the way; its volumes stay. Idempotent."""
        with contextlib.suppress(NotFound):
            await self._engine.delete(SandboxId(sandbox_id))
        for snapshot in await self._engine.snapshots(SandboxId(sandbox_id)):
            if snapshot.reason in ("hibernate", "fork") and snapshot.label is None:
                try:
                    await self._engine.delete_snapshot(snapshot.id)
                except (Conflict, NotFound) as exc:
                    self._rooms.report(f"snapshot {snapshot.id}", exc)

    async def check_unneeded(self, row: DatabaseRow) -> None:
        """Raise what forbids that a database's volume goes, before anything of it does.

        Raises:
            VolumeHeld: the volume is attached to another sandbox.
            Conflict: snapshots of the database's machine, or of another with its volume, are kept.
        """
        volumes = await self._engine.volumes.list()
        volume = next((v for v in volumes if v.id == row.volume_id), None)
        others = [h for h in volume.holders if h.sandbox_id != row.sandbox_id] if volume else []
        if others:
            raise VolumeHeld(
                f"the volume of database {row.name} is attached to sandbox {others[0].sandbox_id}",
                hint=f"detach it there: torpor volume detach {others[0].sandbox_id} {others[0].path}; "
                f"or keep it: torpor db rm {row.name} --keep-volume",
                holders=[h.sandbox_id for h in others],
            )
        kept = [s.id for s in await self._engine.snapshots() if _needs(s, row, volume)]
        if kept:
            raise Conflict(
                f"{len(kept)} snapshots with the volume of database {row.name} are kept, such as {kept[0]}",
                hint=f"delete those first: torpor snapshot rm {kept[0]}",
                snapshots=kept[:20],
            )

    async def stop(self, row: DatabaseRow) -> None:
        """Stop a database's server cleanly, if its machine answers; if not, its log does as well."""
        if await self.machine_of(row) is None:
            return
        try:
            async with self._engine.guest(SandboxId(str(row.sandbox_id))) as guest:
                await server.stop(guest)
        except TorporError as exc:
            self._rooms.report(f"stopping {row.name}", exc)


def _port_of(guest: Guest) -> AbstractAsyncContextManager[PortStream]:
    return guest.open_port(server.PORT, address=LOOPBACK)


def _needs(snapshot: SnapshotInfo, row: DatabaseRow, volume: VolumeInfo | None) -> bool:
    """Return whether a snapshot that is not made along the way needs a database's volume."""
    if snapshot.sandbox_id == row.sandbox_id:
        by_the_way = snapshot.reason in ("hibernate", "fork") and snapshot.label is None
        return not by_the_way or bool(snapshot.protected)
    has_it = volume is not None and volume.name in snapshot.volumes.values()
    return has_it and snapshot.workspace == row.workspace and snapshot.volumes_mode != "detach"


def metadata_of(row: DatabaseRow) -> dict[str, str]:
    """Return what a database's machine is marked with."""
    return {"database": row.name, "database_id": row.id}

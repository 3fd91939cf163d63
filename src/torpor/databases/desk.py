"""`DatabaseDesk`: all that may be asked about databases. One a daemon, over its engine.

What works on one database waits for its turn. A row says what is meant before anything is made, and what is so when
it is; what a daemon left half-made, the next one removes. A caller that goes away breaks nothing off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from torpor.base.aio import Supervisor, closing
from torpor.base.clock import Clock, SystemClock
from torpor.base.home import Home
from torpor.databases import query, server
from torpor.databases.attachments import Attachments
from torpor.databases.branches import Branches, CloneSpec, find_snapshot
from torpor.databases.forward import Client, Forwards, carry
from torpor.databases.lives import Lives, Rooms
from torpor.databases.making import Making, check_size
from torpor.databases.passwords import Passwords, new_password, url_of
from torpor.databases.points import Points
from torpor.databases.refusals import refuse
from torpor.databases.seeds import Seeds
from torpor.databases.shelf import DatabaseShelf
from torpor.db.databases import DatabaseRow, DatabaseRows
from torpor.errors import (
    DatabaseFull,
    GenerationChanged,
    GuestUnreachable,
    PortClosed,
    TorporError,
    WrongState,
)
from torpor.guest.port import Guest
from torpor.model import SandboxId
from torpor.model_databases import (
    DATABASE,
    DatabaseId,
    DatabaseInfo,
    DatabaseSnapshot,
    DatabaseSpec,
    DatabaseStep,
    Progress,
)
from torpor.sandboxes.port import EnginePort
from torpor.sandboxes.requests import check_idle

log = logging.getLogger(__name__)

T = TypeVar("T")

_AS_EVER: Final = (PortClosed, GenerationChanged, GuestUnreachable, DatabaseFull)
"""What keeps a client from its database and is told to nobody else: its machine goes down, or its user was told before."""
_UPKEEP_S: Final = 600.0
_SNAPSHOT_EACH: Final = timedelta(days=1)
SNAPSHOTS_KEPT: Final = timedelta(days=7)
"""How far back in time a clone can be made, as far as the archive has room for the log."""


def open_databases(home: Home, engine: EnginePort) -> DatabaseDesk:
    """Return the desk of a home whose engine is open; `start` it before use. Blocks."""
    return DatabaseDesk(
        home,
        engine,
        DatabaseRows.attach(home.database),
        lambda name, exc: log.error("%s: %s", name, exc, exc_info=exc),
    )


class DatabaseDesk:
    """Owns the databases of one host."""

    def __init__(
        self,
        home: Home,
        engine: EnginePort,
        rows: DatabaseRows,
        report: Callable[[str, BaseException], None],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._shelf = DatabaseShelf(rows)
        self._passwords = Passwords(home.databases)
        self._clock = clock or SystemClock()
        self._report = report
        rooms = Rooms(engine, self._shelf, self._passwords, self._clock, report)
        self._lives = Lives(rooms)
        self._forwards = Forwards(self._serve, report)
        self._seeds = Seeds(rooms)
        self._making = Making(rooms, self._lives, self._seeds, self._forwards)
        self._branches = Branches(rooms, self._lives, self._making)
        self._points = Points(rooms)
        self._attachments = Attachments(rooms, self._lives)
        self._work = Supervisor(lambda _name, _error: None)  # each failure is its caller's
        self._background = Supervisor(report)

    async def start(self) -> None:
        """Take up what an earlier daemon left; after the engine has started, before anybody is served."""
        await self._shelf.load()
        for row in self._shelf.all():
            try:
                if row.state == "ready":
                    port = await self._forwards.listen(row.id, row.port)
                    row = await self._shelf.change(row.id, lambda r, p=port: replace(r, port=p))  # type: ignore[misc]
                    await self._points.tidy(row)
                else:
                    await self._making.undo(row.id, keep_volume=row.keeps_volume)
            except TorporError as exc:  # the others are served
                self._report(f"database {row.name}", exc)
        try:
            await self._seeds.clean()
            await asyncio.to_thread(self._forget_passwords)
        except (TorporError, OSError) as exc:
            self._report("databases", exc)
        self._attachments.begin()
        self._background.launch(self._upkeep(), name="upkeep of databases")

    def _forget_passwords(self) -> None:
        for database_id in self._passwords.known():
            if self._shelf.find(database_id) is None:
                self._passwords.remove(database_id)

    async def aclose(self) -> None:
        """Stop: clients are cut off, machines run on. Before the engine is closed."""
        await self._background.aclose()
        await self._attachments.aclose()
        await self._forwards.aclose()
        await self._work.aclose()
        await asyncio.to_thread(self._rows.close)

    # ---- what there is ----

    async def list(self) -> tuple[DatabaseInfo, ...]:
        """Return all databases, by name."""
        return tuple([await self._info(row) for row in self._shelf.all()])

    async def get(self, name: str) -> DatabaseInfo:
        """Return a database, by id, or by name in the workspace `default`. Raises `NotFound`."""
        return await self._info(self._shelf.get(name))

    async def url(self, name: str) -> str:
        """Return the URL that clients connect with; it has the password.

        Raises:
            NotFound: there is no such database.
            WrongState: it is not made yet, or is going.
        """
        row = self._ready(name)
        assert row.port is not None
        return url_of(await asyncio.to_thread(self._passwords.read, row.id), row.port)

    def _ready(self, name: str) -> DatabaseRow:
        row = self._shelf.get(name)
        if row.state != "ready" or row.port is None:
            raise WrongState(f"database {row.name} is {row.state}", database=row.name)
        return row

    async def _info(self, row: DatabaseRow) -> DatabaseInfo:
        machine = await self._lives.machine_of(row)
        return DatabaseInfo(
            id=row.id,
            name=row.name,
            state=await self._lives.state_of(row),
            created_at=row.created_at,
            size_bytes=row.size_bytes,
            ram_mib=row.ram_mib,
            vcpus=row.vcpus,
            idle_seconds=row.idle_seconds,
            sandbox_id=None if machine is None else machine.id,
            volume_id=row.volume_id,
            port=row.port,
            server_version=row.server_version,
            parent=row.parent,
            recoverable_from=min((s.at for s in row.snapshots), default=None),
            attachments=await self._attachments.present(row),
            workspace=row.workspace,
        )

    # ---- making and removing ----

    async def create(self, spec: DatabaseSpec, progress: Progress = lambda _: None) -> DatabaseInfo:
        """Make a database, and return when a query through its URL was answered.

        Raises:
            InvalidRequest: a name that cannot be one, or a size that is too small.
            Conflict: the name is taken.
            LimitExceeded: a quota of volumes is full.
            InsufficientResources: the host has no memory or disk for it.
            TorporError: something else failed. In any case nothing is left.
        """
        return await self._done(self._making.create(spec, progress), f"create {spec.name}")

    async def clone(
        self, name: str, spec: CloneSpec, progress: Progress = lambda _: None
    ) -> DatabaseInfo:
        """Make a database that begins as another is, or was; copy-on-write, with a password of its own.

        Raises:
            OutsideArchive: the log does not reach that time; facts say from when on it does.
            NotFound: there is no such database or snapshot.
            TorporError: as `create`.
        """
        row = self._ready(name)

        async def work() -> DatabaseRow:
            async with self._shelf.turn(row.id) as source:
                return await self._branches.clone(source, spec, progress)

        return await self._done(work(), f"clone {row.name}")

    async def delete(self, name: str, *, keep_volume: bool = False) -> None:
        """Delete a database with its machine, and its volume unless that is kept. Its clones stay.

        Raises:
            NotFound: there is no such database.
            Conflict: snapshots of its machine are kept, or its volume is attached to another sandbox.
        """
        row = self._shelf.get(name)

        async def work() -> None:
            async with self._shelf.turn(row.id) as found:
                if not keep_volume:
                    await self._lives.check_unneeded(found)
                await self._shelf.change(
                    row.id, lambda r: replace(r, state="deleting", keeps_volume=keep_volume)
                )
                if keep_volume:
                    found = await self._points.tidy(found)
                    await self._forwards.close(row.id)
                    await self._lives.stop(found)
                await self._attachments.stop(row.id)
                await self._making.undo(row.id, keep_volume=keep_volume)

        await self._whole(work(), f"delete {row.name}")

    # ---- its life ----

    async def wake(self, name: str) -> DatabaseInfo:
        """Return when a database runs: one that sleeps is woken, one without a machine gets one. Idempotent."""
        row = self._ready(name)

        async def work() -> DatabaseRow:
            async with self._lives.guest(row.id):
                return self._shelf.get(row.id)

        return await self._done(work(), f"wake {row.name}")

    async def hibernate(self, name: str) -> DatabaseInfo:
        """Put a database to sleep: connections are broken off, and the next one wakes it. Idempotent."""
        row = self._ready(name)

        async def work() -> DatabaseRow:
            async with self._shelf.turn(row.id) as found:
                if await self._lives.machine_of(found) is not None:
                    await self._engine.hibernate(SandboxId(str(found.sandbox_id)))
                return found

        return await self._done(work(), f"hibernate {row.name}")

    async def set_idle(self, name: str, idle_seconds: int | None) -> DatabaseInfo:
        """Let a database hibernate by itself after so long without a connection; None: never."""
        check_idle(idle_seconds)
        row = self._ready(name)

        async def work() -> DatabaseRow:
            async with self._shelf.turn(row.id) as found:
                if await self._lives.machine_of(found) is not None:
                    await self._engine.set_idle(SandboxId(str(found.sandbox_id)), idle_seconds)
                return await self._shelf.change(
                    row.id, lambda r: replace(r, idle_seconds=idle_seconds)
                )

        return await self._done(work(), f"set idle of {row.name}")

    async def grow(self, name: str, size_bytes: int) -> DatabaseInfo:
        """Make a database's volume larger, while it runs; one that is down comes up. Can be asked again.

        Raises:
            InvalidRequest: it would become smaller.
            LimitExceeded, InsufficientResources: no quota or no disk; nothing was changed.
        """
        check_size(size_bytes)
        row = self._ready(name)

        async def work() -> DatabaseRow:
            async with self._shelf.turn(row.id) as found:
                await self._lives.grown(found, size_bytes)
                return await self._shelf.change(row.id, lambda r: replace(r, size_bytes=size_bytes))

        return await self._done(work(), f"grow {row.name}")

    async def reset_password(self, name: str) -> str:
        """Give a database a new password and end all sessions; return its URL.

        After a failure the new one is kept, and is set before anyone connects.
        """
        row = self._ready(name)
        password = new_password()

        async def work() -> None:
            async with self._shelf.turn(row.id):
                await self._shelf.change(row.id, lambda r: replace(r, is_password_set=False))
                await asyncio.to_thread(self._passwords.write, row.id, password)
                await self._lives.raised(self._shelf.get(row.id))

        await self._whole(work(), f"reset password of {row.name}")
        return await self.url(row.id)

    async def upgrade(
        self, name: str, *, build: bool = True, progress: Progress = lambda _: None
    ) -> DatabaseInfo:
        """Give a database a new machine of the newest build of its template: PostgreSQL's newest minor version.

        It is stopped cleanly, and a snapshot is taken before. On failure it has no machine or the old one, and the
        next connection gets it one; the data is as it was.

        Args:
            name: which.
            build: build the template anew before; else the one that is there is taken.
            progress: is told the steps.
        """
        row = self._ready(name)

        async def work() -> DatabaseRow:
            if build:
                await self._seeds.build(progress, force=True)
            async with self._shelf.turn(row.id) as found:
                found = await self._lives.raised(found)
                progress(DatabaseStep("snapshot", "keeping its present state"))
                found = await self._points.take(found, None)
                progress(DatabaseStep("stop", "stopping the server cleanly"))
                await self._lives.stop(found)
                progress(DatabaseStep("machine", "making a new machine"))
                found = await self._lives.rebuilt(found)
                password = await asyncio.to_thread(self._passwords.read, row.id)
            assert found.port is not None
            version = await query.server_version(password, found.port)
            return await self._shelf.change(row.id, lambda r: replace(r, server_version=version))

        return await self._done(work(), f"upgrade {row.name}")

    # ---- snapshots ----

    async def snapshot(self, name: str, *, label: str | None = None) -> DatabaseSnapshot:
        """Take a snapshot of a database while it runs; a clone can begin at it, and the log leads on from it.

        Raises:
            Conflict: a snapshot of it has that label.
        """
        row = self._ready(name)

        async def work() -> DatabaseRow:
            async with self._shelf.turn(row.id) as found:
                return await self._points.take(await self._lives.raised(found), label)

        return (await self._whole(work(), f"snapshot {row.name}")).snapshots[-1]

    async def snapshots(self, name: str) -> tuple[DatabaseSnapshot, ...]:
        """Return a database's snapshots, the newest first."""
        return self._shelf.get(name).snapshots[::-1]

    async def delete_snapshot(self, name: str, snapshot: str) -> None:
        """Delete a snapshot of a database, by id or label. Raises `NotFound`."""
        row = self._shelf.get(name)

        async def work() -> None:
            async with self._shelf.turn(row.id) as found:
                await self._points.drop(found, find_snapshot(found, snapshot))

        await self._whole(work(), f"delete snapshot of {row.name}")

    # ---- sandboxes that reach it ----

    async def attend(self, machine: Any, guest: Guest) -> None:
        """Serve a machine whose guest was just connected the databases that it is attached to; returns at once."""
        await self._attachments.attend(machine, guest)

    async def attach(self, name: str, sandbox_id: str, port: int = server.PORT) -> str:
        """Let a sandbox's programs reach a database at 127.0.0.1 and that port; return the URL that they use.

        It needs no network. It lasts, also when the sandbox sleeps or goes back, until `detach` or either is deleted;
        a fork of the sandbox does not have it. Idempotent.

        Raises:
            NotFound: there is no such sandbox in the database's workspace.
            WrongState: it has failed or ended.
            Conflict: something in it listens on that port.
        """
        row = self._ready(name)

        async def work() -> None:
            async with self._shelf.turn(row.id) as found:
                await self._attachments.attach(found, sandbox_id, port)

        await self._whole(work(), f"attach {row.name}")
        return url_of(await asyncio.to_thread(self._passwords.read, row.id), port)

    async def detach(self, name: str, sandbox_id: str) -> None:
        """Let a sandbox reach a database no more. Raises `NotFound` when it is not attached."""
        row = self._ready(name)

        async def work() -> None:
            async with self._shelf.turn(row.id) as found:
                await self._attachments.detach(found, sandbox_id)

        await self._whole(work(), f"detach {row.name}")

    # ---- what is in it ----

    async def dump(self, name: str, database: str = DATABASE) -> AsyncGenerator[bytes, None]:
        """Yield a consistent dump of one database of the server, in `pg_dump`'s custom format.

        It is made in the machine before its first byte comes, so that a dump that cannot be made is an error and not
        half a file.

        Raises:
            GuestFailed: `pg_dump` failed; the message has its words.
            TorporError: no machine could be had.
        """
        row = self._ready(name)
        async with (
            self._lives.guest(row.id) as guest,
            server.dumped(guest, database) as path,
            closing(guest.read(path)) as chunks,
        ):
            async for chunk in chunks:
                yield chunk

    # ---- inside ----

    async def _serve(self, database_id: DatabaseId, client: Client) -> None:
        """Carry a client's bytes to the server and back; who connects wakes it. A failure to is told to the client."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                stream = await stack.enter_async_context(self._lives.port(database_id))
            except TorporError as exc:
                row = self._shelf.find(database_id)
                name = database_id if row is None else row.name
                if not isinstance(exc, _AS_EVER):
                    self._report(f"a client of {name}", exc)
                await refuse(client, name, exc)
                return
            await carry(client, stream)

    async def _done(self, work: Coroutine[Any, Any, DatabaseRow], name: str) -> DatabaseInfo:
        return await self._info(await self._whole(work, name))

    async def _whole(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Do `work` to its end, also when the caller goes away."""
        return await asyncio.shield(self._work.spawn(work, name=name))

    async def _upkeep(self) -> None:
        while True:
            await asyncio.sleep(_UPKEEP_S)
            for row in self._shelf.all():
                try:
                    await self.keep(row.id)
                except TorporError as exc:  # at the next turn again
                    self._report(f"upkeep of database {row.name}", exc)

    async def keep(self, database_id: DatabaseId) -> None:
        """Take a day's snapshot of a database that runs, and drop those that are too old and have no label."""
        row = self._shelf.get(database_id)
        await self._attachments.forget_gone(row)
        now = self._clock.now()
        if row.state != "ready" or await self._lives.state_of(row) != "running":
            return
        newest = max((s.at for s in row.snapshots), default=None)
        async with self._shelf.turn(database_id) as found:
            await self._lives.keep_room(found)
            if newest is None or newest < now - _SNAPSHOT_EACH:
                found = await self._points.take(found, None)
            # never the newest: from it the log leads to now
            old = [
                s for s in found.snapshots[:-1] if s.label is None and s.at < now - SNAPSHOTS_KEPT
            ]
            for snapshot in old:
                await self._points.drop(self._shelf.get(database_id), snapshot)
            if old:
                await self._trim(self._shelf.get(database_id))

    async def _trim(self, row: DatabaseRow) -> None:
        """Remove what no snapshot needs from the archive of the log."""
        oldest = min((s.wal_file for s in row.snapshots), default=None)
        if oldest is not None:
            async with self._engine.guest(SandboxId(str(row.sandbox_id))) as guest:
                await server.trim(guest, oldest)

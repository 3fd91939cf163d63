"""Making databases: new ones from the seed, and clones of others. Each is there whole, or nothing of it is."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import Final

from torpor.base.aio import finish
from torpor.base.ids import new_id
from torpor.base.units import GIB, format_bytes
from torpor.databases import query, server
from torpor.databases.forward import Forwards
from torpor.databases.lives import Lives, Rooms, metadata_of
from torpor.databases.passwords import new_password, verifier_of
from torpor.databases.seeds import Seeds
from torpor.db.databases import DatabaseRow
from torpor.errors import DataDamaged, InvalidRequest, NotFound, SnapshotUnusable, TorporError
from torpor.model import RestoreSpec, SandboxId, SnapshotId, TemplateInfo
from torpor.model_databases import (
    LEAST_BYTES,
    DatabaseId,
    DatabaseSnapshot,
    DatabaseSpec,
    DatabaseStep,
    Progress,
)
from torpor.sandboxes.requests import check_idle

_END_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Making:
    """Makes databases."""

    rooms: Rooms
    lives: Lives
    seeds: Seeds
    forwards: Forwards

    async def create(self, spec: DatabaseSpec, progress: Progress) -> DatabaseRow:
        """Make a database; see `DatabaseDesk.create`."""
        check_size(spec.size_bytes)
        check_idle(spec.idle_seconds)
        await self.check_new(spec.name, spec.size_bytes, spec.workspace)
        template = await self.seeds.template(progress)
        row = _row(spec, template, self.rooms)
        await self.rooms.shelf.insert(row)
        async with self.rooms.shelf.turn(row.id):  # who deletes it meanwhile finds all of it
            try:
                return await self._filled(row, template, progress)
            except BaseException:
                await finish(self.undo(row.id), within_s=_END_S)
                raise

    async def check_new(self, name: str, size_bytes: int, workspace: str) -> None:
        """Raise what forbids a new database of that name and size."""
        self.rooms.shelf.check_name(name, workspace)
        await self.rooms.engine.volumes.check_new(
            volume_name(name), size_bytes / GIB, workspace=workspace
        )

    async def _filled(
        self, row: DatabaseRow, template: TemplateInfo, progress: Progress
    ) -> DatabaseRow:
        password = new_password()
        await asyncio.to_thread(self.rooms.passwords.write, row.id, password)
        known = None
        if (row.ram_mib, row.vcpus) == (template.ram_mib, template.vcpus):
            row = await self._from_seed(row, template, progress)
            known = await self.seeds.password()
        else:
            row = await self._booted(row, progress)
        return await self.opened(row, password, progress, known=known)

    async def _from_seed(
        self, row: DatabaseRow, template: TemplateInfo, progress: Progress
    ) -> DatabaseRow:
        """Restore the seed; one that this host cannot restore any more is taken anew, once."""
        seed = await self.seeds.get(template, progress)
        progress(DatabaseStep("machine", "restoring a running PostgreSQL"))
        try:
            await self._restore(row, seed)
        except (SnapshotUnusable, DataDamaged, NotFound):
            await self.seeds.drop()
            await self._restore(row, await self.seeds.get(template, progress))
        return await self.keep_volume(row)

    async def _restore(self, row: DatabaseRow, seed: SnapshotId) -> None:
        await self.rooms.engine.restore(seed, restore_spec(row))

    async def keep_volume(self, row: DatabaseRow) -> DatabaseRow:
        """Make the volume that came with a restored or forked machine the database's own, in its size."""
        volumes = self.rooms.engine.volumes
        sandbox_id = SandboxId(str(row.sandbox_id))
        found = next(
            v
            for v in await volumes.of_sandbox(sandbox_id)
            if any(h.path == server.PLACE and h.sandbox_id == sandbox_id for h in v.holders)
        )
        row = await self.rooms.shelf.change(row.id, lambda r: replace(r, volume_id=found.id))
        await volumes.keep(found.id, new_name=volume_name(row.name))
        if row.size_bytes > found.size_bytes:
            await volumes.grow(found.id, row.size_bytes / GIB)
            async with self.rooms.engine.guest(sandbox_id) as guest:
                await server.configure(guest, row.name)
        return row

    async def _booted(self, row: DatabaseRow, progress: Progress) -> DatabaseRow:
        """Make a machine of another size than the seed's, with an empty volume, and let it set itself up."""
        progress(DatabaseStep("volume", f"making a volume of {format_bytes(row.size_bytes)}"))
        made = await self.rooms.engine.volumes.create(
            first_name(row), row.size_bytes / GIB, workspace=row.workspace
        )
        row = await self.rooms.shelf.change(row.id, lambda r: replace(r, volume_id=made.id))
        await self.rooms.engine.volumes.keep(made.id, new_name=volume_name(row.name))
        progress(DatabaseStep("machine", f"starting a machine with {row.ram_mib} MiB"))
        await self.lives.boot(row)
        return row

    async def opened(
        self, row: DatabaseRow, password: str, progress: Progress, *, known: str | None
    ) -> DatabaseRow:
        """Give a database its password, its port and its first snapshot, and see that it answers.

        `known` is the password that the server has until then, if it has one that is known.
        """
        progress(DatabaseStep("password", "giving it a password of its own"))
        shelf, engine = self.rooms.shelf, self.rooms.engine
        port = await self.forwards.listen(row.id, None)
        wal_file = await self._begun_anew(row, verifier_of(password), port, known)
        row = await shelf.change(row.id, lambda r: replace(r, is_password_set=True, port=port))
        progress(DatabaseStep("connection", "waiting for the answer to a query"))

        async def keep_point() -> None:
            point = await engine.volumes.snapshot(str(row.volume_id))
            first = DatabaseSnapshot(
                id=point.id, label=None, at=point.created_at, wal_file=wal_file
            )
            await shelf.change(row.id, lambda r: replace(r, snapshots=(first,)))

        async def ask() -> None:
            version = await query.server_version(password, port)
            await shelf.change(row.id, lambda r: replace(r, server_version=version))
            async with engine.guest(SandboxId(str(row.sandbox_id))) as guest:
                await server.empty_archive(guest)

        # neither is broken off when the other fails
        for end in await asyncio.gather(keep_point(), ask(), return_exceptions=True):
            if isinstance(end, BaseException):
                raise end
        return await shelf.change(row.id, lambda r: replace(r, state="ready"))

    async def _begun_anew(
        self, row: DatabaseRow, verifier: str, port: int, known: str | None
    ) -> str:
        """Make the server's password ours, and return the segment of the log that its first snapshot needs.

        A program in the machine takes a second where its CPU is emulated, so it is asked through its port.
        """
        if known is not None:
            with contextlib.suppress(TorporError):  # somebody changed the password in the server
                return await query.begin_anew(known, port, verifier)
        async with self.rooms.engine.guest(SandboxId(str(row.sandbox_id))) as guest:
            return await server.begin_anew(guest, verifier)

    async def undo(self, database_id: DatabaseId, *, keep_volume: bool = False) -> None:
        """Remove all of a database: port, machine, volume, password, and at last its row. Can be done again."""
        await self.forwards.close(database_id)
        row = self.rooms.shelf.find(database_id)
        if row is None:
            return
        if row.sandbox_id is not None:
            await self.lives.discard(row.sandbox_id)
        if row.volume_id is not None and not keep_volume:
            with contextlib.suppress(NotFound):
                await self.rooms.engine.volumes.delete(row.volume_id, snapshots=True)
        await self._drop_leftover(row, keep_volume=keep_volume)
        await asyncio.to_thread(self.rooms.passwords.remove, database_id)
        await self.rooms.shelf.remove(database_id)

    async def _drop_leftover(self, row: DatabaseRow, *, keep_volume: bool) -> None:
        """Remove the volume of a create that ended before its row knew it."""
        if row.state != "creating" or keep_volume:
            return
        for volume in await self.rooms.engine.volumes.list():
            if volume.name in (first_name(row), log_name(row)) and not volume.holders:
                await self.rooms.engine.volumes.delete(volume.id, snapshots=True)


def volume_name(name: str) -> str:
    """Return the name of a database's volume."""
    return f"db-{name}"


def first_name(row: DatabaseRow) -> str:
    """Return the name of a database's volume until its row knows it: nobody else's is called that."""
    return f"db-{row.id.removeprefix('db_')}"


def log_name(row: DatabaseRow) -> str:
    """Return the name of the volume that a clone as of a time finds the log on, while it is made."""
    return f"{first_name(row)}-log"


def check_size(size_bytes: int) -> None:
    """Raise `InvalidRequest` for a size that no database can have."""
    if size_bytes < LEAST_BYTES:
        raise InvalidRequest(
            f"a database of {format_bytes(size_bytes)} is too small; {format_bytes(LEAST_BYTES)} or more is wanted",
            hint="it is what its volume may grow to hold, and takes what is written: size=1g",
            size_bytes=size_bytes,
            least_bytes=LEAST_BYTES,
        )


def restore_spec(row: DatabaseRow) -> RestoreSpec:
    """Return how the machine of a row is made from a snapshot of another."""
    return RestoreSpec(
        metadata=metadata_of(row),
        network="none",
        idle_seconds=row.idle_seconds,
        workspace=row.workspace,
        sandbox_id=SandboxId(str(row.sandbox_id)),
        volumes="include",
    )


def _row(spec: DatabaseSpec, template: TemplateInfo, rooms: Rooms) -> DatabaseRow:
    return DatabaseRow(
        id=DatabaseId(new_id("db")),
        name=spec.name,
        workspace=spec.workspace,
        created_at=rooms.clock.now(),
        state="creating",
        size_bytes=spec.size_bytes,
        ram_mib=spec.ram_mib or template.ram_mib,
        vcpus=spec.vcpus or template.vcpus,
        idle_seconds=spec.idle_seconds,
        sandbox_id=new_id("sbx"),
    )

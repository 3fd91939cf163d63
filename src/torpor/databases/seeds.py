"""The snapshot that new databases begin from: a machine with PostgreSQL initialised and running on a volume.

It is taken once for each build of the template, when the first database is made. A create is then a restore: the
machine goes on where the seed was, on a copy-on-write clone of its volume.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from torpor.base.aio import closing, finish
from torpor.base.ids import is_id, new_id
from torpor.base.units import GIB
from torpor.databases import server
from torpor.databases.lives import Rooms
from torpor.databases.passwords import new_password, verifier_of
from torpor.errors import NotFound, TorporError
from torpor.model import SandboxId, SandboxSpec, SnapshotId, SnapshotInfo, TemplateInfo
from torpor.model_databases import LEAST_BYTES, DatabaseId, DatabaseStep, Progress
from torpor.model_volumes import VolumeMount

_MARK: Final = "database_seed"
"""In a seed's metadata: the digest of its template."""
_HOLDER: Final = "databases"
_REASON: Final = "new databases begin from it"
"""Metadata is anybody's; that a snapshot is protected for this, nobody else can say."""
_VOLUME: Final = "postgres-seed-"
_SEED: Final = DatabaseId("seed")
"""What its password is kept for."""
_END_S: Final = 120.0


class Seeds:
    """Finds and takes them, one at a time."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._engine = rooms.engine
        self._taking = asyncio.Lock()

    async def template(self, progress: Progress) -> TemplateInfo:
        """Return the template of databases, built now if it is not there. Raises as `EnginePort.build_template`."""
        with contextlib.suppress(NotFound):
            return await self._engine.template(server.TEMPLATE)
        return await self.build(progress)

    async def build(self, progress: Progress, *, force: bool = False) -> TemplateInfo:
        """Build the template, with the packages that Debian has now if `force`."""
        async with closing(self._engine.build_template(server.TEMPLATE, force=force)) as events:
            async for event in events:
                progress(DatabaseStep("template", f"{event.step}: {event.message}"))
                if event.template is not None:
                    return event.template
        raise NotFound(f"the build of {server.TEMPLATE} ended without a template")

    async def get(self, template: TemplateInfo, progress: Progress) -> SnapshotId:
        """Return the seed for a template, taken now if there is none."""
        async with self._taking:
            found = self._known(await self._engine.snapshots(), template.digest)
            if found is not None:
                return found
            progress(DatabaseStep("seed", "setting a first PostgreSQL up; the next have it"))
            await self.drop()
            return await self._take(template)

    def _known(self, snapshots: tuple[SnapshotInfo, ...], digest: str) -> SnapshotId | None:
        marked = (s for s in snapshots if s.metadata.get(_MARK) == digest)
        return next((s.id for s in marked if _REASON in s.protected), None)

    async def drop(self) -> None:
        """Remove all seeds, such as those of templates that were built anew or that this host cannot restore."""
        for snapshot in await self._engine.snapshots():
            if _MARK not in snapshot.metadata or _REASON not in snapshot.protected:
                continue
            await self._engine.unprotect(snapshot.id, _HOLDER)
            try:
                await self._engine.delete_snapshot(snapshot.id)
                for volume in set(snapshot.volumes.values()):
                    await self._engine.volumes.delete(volume, snapshots=True)
            except TorporError as exc:  # somebody begins from it now; the next turn may do better
                self._rooms.report(f"seed {snapshot.id}", exc)

    async def password(self) -> str | None:
        """Return the password of a machine that was restored from the seed; an older version's seed has none."""
        return await asyncio.to_thread(self._rooms.passwords.find, _SEED)

    async def _take(self, template: TemplateInfo) -> SnapshotId:
        sandbox_id = SandboxId(new_id("sbx"))
        name = _VOLUME + sandbox_id.removeprefix("sbx_")
        await self._engine.volumes.create(name, LEAST_BYTES / GIB)
        try:
            await self._engine.create(
                SandboxSpec(
                    template=server.TEMPLATE,
                    network="none",
                    metadata={"database": "(seed)"},
                    sandbox_id=sandbox_id,
                    volumes=(VolumeMount(volume=name, path=server.PLACE),),
                )
            )
            async with self._engine.guest(sandbox_id) as guest:
                await server.start(guest, "(seed)")
                password = new_password()
                await asyncio.to_thread(self._rooms.passwords.write, _SEED, password)
                await server.set_password(guest, verifier_of(password))
                await server.checkpoint(guest)
            made = await self._engine.snapshot(
                sandbox_id, metadata={_MARK: template.digest}, volumes="include"
            )
            await self._engine.protect(made.id, _HOLDER, _REASON)
            await self._engine.delete(sandbox_id)
        except BaseException:
            await finish(self._undo(sandbox_id, name), within_s=_END_S)
            raise
        return made.id

    async def _undo(self, sandbox_id: SandboxId, volume: str) -> None:
        with contextlib.suppress(NotFound):
            await self._engine.delete(sandbox_id)
        for snapshot in await self._engine.snapshots(sandbox_id):
            await self._engine.unprotect(snapshot.id, _HOLDER)
            await self._engine.delete_snapshot(snapshot.id)
        await self._engine.volumes.delete(volume, snapshots=True)

    async def clean(self) -> None:
        """Remove what an earlier daemon left half-made: volumes of seeds that no seed needs, with their machines."""
        needed = {
            name
            for snapshot in await self._engine.snapshots()
            if _REASON in snapshot.protected
            for name in snapshot.volumes.values()
        }
        for volume in await self._engine.volumes.list():
            maker = "sbx_" + volume.name.removeprefix(_VOLUME)
            is_seeds = volume.name.startswith(_VOLUME) and is_id(maker, "sbx")
            if is_seeds and volume.name not in needed:
                await self._undo(SandboxId(maker), volume.id)

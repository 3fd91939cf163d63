"""`VolumeShelf`: all volumes of a home in memory, each change written down before it is so.

One change is made at a time, and a change looks at what is so when it is made: two who want the same lease cannot
both get it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

from torpor.base.aio import finish
from torpor.base.ids import check_name, is_id
from torpor.db.volumes import VolumeRow, VolumeRows, VolumeSnapshotRow
from torpor.errors import Conflict, NotFound
from torpor.layers.merges import Merges
from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_volumes import VolumeHolder, VolumeId, VolumeSnapshotId
from torpor.volumes.missing import no_volume

_SAVE_S = 60.0


class VolumeShelf:
    """The rows of volumes and of their snapshots."""

    def __init__(self, rows: VolumeRows) -> None:
        self._rows = rows
        self._volumes: dict[VolumeId, VolumeRow] = {}
        self._snapshots: dict[VolumeSnapshotId, VolumeSnapshotRow] = {}
        self._changing = asyncio.Lock()
        self._turns: defaultdict[VolumeId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.version = 0
        """Raised by every change of layers that anything needs."""

    async def load(self) -> None:
        """Read all rows."""
        volumes, snapshots = await asyncio.to_thread(
            lambda: (self._rows.all(), self._rows.snapshots())
        )
        self._volumes = {row.id: row for row in volumes}
        self._snapshots = {row.info.id: row for row in snapshots}

    # ---- volumes ----

    def all(self) -> list[VolumeRow]:
        """Return all volumes, by name."""
        return sorted(self._volumes.values(), key=lambda row: row.name)

    def find(self, name_or_id: str, workspace: str = DEFAULT_WORKSPACE) -> VolumeRow | None:
        """Return a volume by its id, or by its name in a workspace; or None."""
        if is_id(name_or_id, "vol"):
            return self._volumes.get(VolumeId(name_or_id))
        wanted = (workspace, name_or_id)
        rows = self._volumes.values()
        return next((row for row in rows if (row.workspace, row.name) == wanted), None)

    def get(self, name_or_id: str) -> VolumeRow:
        """Return a volume. Raises `NotFound`."""
        found = self.find(name_or_id)
        if found is None:
            raise no_volume(
                name_or_id,
                (r.name for r in self._volumes.values() if r.workspace == DEFAULT_WORKSPACE),
            )
        return found

    def held_by(self, sandbox_id: str) -> list[tuple[VolumeRow, VolumeHolder]]:
        """Return the volumes that a sandbox has, by place."""
        found = [
            (row, holder)
            for row in list(self._volumes.values())
            if (holder := row.held_by(sandbox_id)) is not None
        ]
        return sorted(found, key=lambda pair: pair[1].slot)

    def bound_to(self, sandbox_id: str) -> list[VolumeRow]:
        """Return the volumes that go with a sandbox."""
        return [row for row in list(self._volumes.values()) if row.bound_to == sandbox_id]

    def free_name(self, wanted: str, workspace: str) -> str:
        """Return a name that is not taken in a workspace: `wanted`, or with a number behind it."""
        taken = {row.name for row in self._volumes.values() if row.workspace == workspace}
        name, number = wanted, 1
        while name in taken:
            number += 1
            name = f"{wanted}-{number}"
        return name

    @contextlib.asynccontextmanager
    async def turn(self, volume_id: VolumeId) -> AsyncIterator[None]:
        """Hold a volume's files: nobody else takes, seals or lets go of them meanwhile."""
        async with self._turns[volume_id]:
            yield

    async def insert(self, row: VolumeRow, check: Callable[[], None]) -> None:
        """Add a volume, unless `check` raises. Raises `Conflict` when its name is taken."""
        check_name(row.name, "volume")
        async with self._changing:
            if self.find(row.name, row.workspace) is not None:
                raise Conflict(
                    f"there is a volume {row.name} already",
                    hint="choose another name, or use that one",
                    volume=row.name,
                )
            check()
            await self._write(lambda: self._rows.insert(row), lambda: self._put(row))

    async def change(
        self, volume_id: VolumeId, edit: Callable[[VolumeRow], VolumeRow]
    ) -> VolumeRow:
        """Change a volume and return it. What `edit` raises is raised, and nothing is changed.

        Raises:
            NotFound: it is gone.
        """
        async with self._changing:
            before = self.get(volume_id)
            after = edit(before)
            if after != before:
                await self._write(lambda: self._rows.save(after), lambda: self._put(after))
            return after

    async def remove(self, volume_id: VolumeId, check: Callable[[VolumeRow], None]) -> None:
        """Forget a volume and its snapshots, unless `check` raises."""
        async with self._changing:
            check(self.get(volume_id))

            def drop() -> None:
                del self._volumes[volume_id]
                for snapshot in self.snapshots(volume_id):
                    del self._snapshots[snapshot.info.id]
                self._turns.pop(volume_id, None)
                self.version += 1

            await self._write(lambda: self._rows.delete(volume_id), drop)

    def _put(self, row: VolumeRow) -> None:
        self._volumes[row.id] = row
        self.version += 1

    # ---- snapshots ----

    def snapshots(self, volume_id: VolumeId | None = None) -> list[VolumeSnapshotRow]:
        """Return the snapshots of one volume, or all, the newest first."""
        found = [
            row
            for row in self._snapshots.values()
            if volume_id is None or row.info.volume_id == volume_id
        ]
        return sorted(found, key=lambda row: (row.info.created_at, row.info.id), reverse=True)

    def get_snapshot(self, snapshot_id: str) -> VolumeSnapshotRow:
        """Return a snapshot. Raises `NotFound`."""
        found = self._snapshots.get(VolumeSnapshotId(snapshot_id))
        if found is None:
            raise NotFound(
                f"there is no volume snapshot {snapshot_id}",
                hint="list them: torpor volume snapshots NAME",
            )
        return found

    async def insert_snapshot(self, row: VolumeSnapshotRow) -> None:
        """Add a snapshot. Raises `NotFound` when its volume is gone, and `Conflict` when its label is taken."""

        def put() -> None:
            self._snapshots[row.info.id] = row
            self.version += 1

        async with self._changing:
            self.check_label(row.info.volume_id, row.info.label)
            await self._write(lambda: self._rows.insert_snapshot(row), put)

    def check_label(self, volume_id: VolumeId, label: str | None) -> None:
        """Raise `Conflict` when a snapshot of a volume has that label, and `NotFound` when the volume is gone."""
        volume = self.get(volume_id)
        if label is not None and any(s.info.label == label for s in self.snapshots(volume_id)):
            raise Conflict(
                f"volume {volume.name} has a snapshot with the label {label!r} already",
                hint="choose another label or delete that snapshot",
            )

    async def remove_snapshot(self, snapshot_id: VolumeSnapshotId) -> None:
        """Forget a snapshot."""

        def drop() -> None:
            self._snapshots.pop(snapshot_id, None)
            self.version += 1

        async with self._changing:
            await self._write(lambda: self._rows.delete_snapshot(snapshot_id), drop)

    def layer_uses(self, merges: Merges) -> list[tuple[str, frozenset[str]]]:
        """Return volumes and their snapshots with the layers that each needs, merged ones where those stand for them.

        A volume needs what its row names until it is attached the next time, and what it will begin with then.
        """
        found: list[tuple[str, frozenset[str]]] = [
            (row.id, row.layers.ids.union(merges.shortest(row.layers.disk)))
            for row in list(self._volumes.values())
        ]
        return found + [
            (snapshot.info.id, frozenset(ref.id for ref in merges.shortened(snapshot.disk)))
            for snapshot in list(self._snapshots.values())
        ]

    async def _write(self, store: Callable[[], None], then: Callable[[], None]) -> None:
        """Write durably, then let it be so; a cancelled caller leaves no half of that."""

        async def both() -> None:
            await asyncio.to_thread(store)
            then()

        await finish(both(), within_s=_SAVE_S)

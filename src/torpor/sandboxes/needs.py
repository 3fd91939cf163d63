"""Who needs what: snapshots, layers and templates that sandboxes stand on, and the removal of what nobody needs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from torpor.base.ids import is_id
from torpor.db.sandboxes import SandboxRow
from torpor.layers.store import LayerUse, Needed
from torpor.model import SandboxId, SandboxState, SnapshotId
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.task import SandboxTask
from torpor.sandboxes.template_users import template_users

_STANDS_ON_SNAPSHOT = frozenset(
    {
        SandboxState.CREATING,
        SandboxState.HIBERNATING,
        SandboxState.HIBERNATED,
        SandboxState.WAKING,
        SandboxState.RESTORING,
    }
)
"""States in which a sandbox is nothing without the snapshot that it comes from, or goes to."""


class Needs:
    """Answers from the sandboxes' tasks, as they are at that moment."""

    def __init__(self, parts: Parts, tasks: Mapping[SandboxId, SandboxTask]) -> None:
        self._parts = parts
        self._tasks = tasks

    def template_users(self) -> Mapping[str, Sequence[str]]:
        """Return who needs a template, by its digest."""
        living = [task.info for task in self._tasks.values()]
        store = self._parts.layers
        return template_users(living, store.snapshots(), store.damaged)

    def stand_on(self, snapshot_id: SnapshotId) -> tuple[SandboxId, ...]:
        """Return the sandboxes that are nothing without a snapshot: they come from it, or sleep at it."""
        return tuple(
            t.info.id
            for t in self._tasks.values()
            if snapshot_id in (t.info.parent_snapshot, t.machine.row.layers.taking)
            and t.info.state in _STANDS_ON_SNAPSHOT
        )

    def is_free(self, snapshot_id: SnapshotId) -> bool:
        """Return whether a snapshot is there, and nobody stands on it, begins from it or protects it."""
        return (
            self._parts.layers.has(snapshot_id)
            and snapshot_id not in self._parts.going
            and not self.stand_on(snapshot_id)
            and snapshot_id not in self._parts.pins.now
            and snapshot_id not in self._parts.protections
        )

    def mapped(self) -> frozenset[SnapshotId]:
        """Return the snapshots whose RAM images machines map, or are about to."""
        images = (row.layers.image for row in self._awake())
        return frozenset(image for image in images if image is not None)

    def images_in_use(self) -> tuple[frozenset[SnapshotId], frozenset[SnapshotId]]:
        """Return the snapshots whose RAM images machines map or are about to, and those at which sandboxes sleep."""
        asleep = (
            task.info.parent_snapshot
            for task in list(self._tasks.values())
            if task.info.state is SandboxState.HIBERNATED
        )
        begun = frozenset(SnapshotId(p) for p in self._parts.pins.now if is_id(p, "snap"))
        return self.mapped() | begun, frozenset(found for found in asleep if found is not None)

    async def uses(self) -> tuple[LayerUse, ...]:
        """Return every layer and RAM image with its size and who needs it."""
        store, rows = self._parts.layers, self._awake()
        layers: list[tuple[str, Collection[str]]] = [(r.info.id, r.layers.ids) for r in rows]
        layers += self._parts.volumes.shelf.layer_uses(store.merges)
        images = [(row.info.id, row.layers.image) for row in rows]
        return (
            *await asyncio.to_thread(store.uses, layers),
            *await asyncio.to_thread(store.image_uses, images),
        )

    async def remove(self, snapshot_id: SnapshotId) -> None:
        """Remove a snapshot that nothing stands on; nothing begins from it any more from now on."""
        self._parts.going.add(snapshot_id)
        try:
            await asyncio.to_thread(self._parts.layers.remove, snapshot_id)
            await self._parts.good.forget(snapshot_id)
        finally:
            self._parts.going.discard(snapshot_id)

    async def collect(self) -> int:
        """Remove what nothing needs; return the bytes freed."""

        def needed() -> Needed:
            volumes = self._parts.volumes.shelf.layer_uses(self._parts.layers.merges)
            layers = self._parts.pins.now.union(
                *(ids for _, ids in volumes), *(row.layers.ids for row in self._awake())
            )
            return Needed(layers, self.mapped())

        return await asyncio.to_thread(self._parts.layers.collect, needed)

    def _awake(self) -> tuple[SandboxRow, ...]:
        """Return the rows whose layers are needed; one that sleeps needs those of its snapshot, and no others."""
        rows = [task.machine.row for task in list(self._tasks.values())]
        return tuple(row for row in rows if row.info.state is not SandboxState.HIBERNATED)

"""What may be asked about snapshots; see `EnginePort` for what each call promises."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping

from torpor.db.protections import Protection
from torpor.errors import Conflict
from torpor.layers.store import LayerUse
from torpor.layers.verify import Damage
from torpor.model import Consistency, Goodness, SandboxId, SnapshotId, SnapshotInfo
from torpor.model_inventory import Inventory
from torpor.model_quiesce import QuiesceReport, QuiesceSpec, quiesce_spec
from torpor.model_volumes import VolumesMode
from torpor.sandboxes.capture import Wish
from torpor.sandboxes.needs import Needs
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.requests import check_quiesce, check_snapshot, check_snapshot_id
from torpor.sandboxes.task import SandboxTask
from torpor.sandboxes.volume_capture import check_mode


class SnapshotCalls(ABC):
    """The engine's answers about snapshots and the layers that they are made of."""

    _parts: Parts
    _tasks: dict[SandboxId, SandboxTask]
    _needs: Needs

    @abstractmethod
    async def _task(self, sandbox_id: SandboxId) -> SandboxTask:
        """Return the task of a living sandbox."""

    async def snapshot(
        self,
        sandbox_id: SandboxId,
        *,
        label: str | None = None,
        consistency: Consistency = "filesystem",
        metadata: Mapping[str, str] | None = None,
        quiesce: QuiesceSpec | None = None,
        snapshot_id: SnapshotId | None = None,
        volumes: VolumesMode = "include",
    ) -> SnapshotInfo:
        """Take a snapshot; the sandbox goes on."""
        check_mode(volumes)
        wish = Wish(
            reason="snapshot",
            label=label,
            consistency=consistency,
            metadata=metadata or {},
            quiesce=check_quiesce(consistency, quiesce),
            snapshot_id=snapshot_id,
            volumes=volumes,
        )
        check_snapshot(wish)
        task = await self._task(sandbox_id)
        return self._parts.seen(await task.snapshot(wish))

    async def test_quiesce(
        self, sandbox_id: SandboxId, quiesce: QuiesceSpec | None = None
    ) -> QuiesceReport:
        """Bring a sandbox's programs to rest and let them go on, without a snapshot."""
        return await (await self._task(sandbox_id)).test_quiesce(quiesce_spec(quiesce))

    async def snapshots(self, sandbox_id: SandboxId | None = None) -> tuple[SnapshotInfo, ...]:
        """Return the snapshots, newest first; of one sandbox, or all."""
        return tuple(self._parts.seen(m) for m in self._parts.layers.snapshots(sandbox_id))

    async def get_snapshot(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Return one snapshot."""
        return self._parts.seen(self._parts.layers.get(check_snapshot_id(snapshot_id)))

    async def protect(self, snapshot_id: SnapshotId, holder: str, reason: str) -> None:
        """Keep a snapshot from being deleted until `holder` lets go."""
        self._parts.origin(check_snapshot_id(snapshot_id))
        wanted = Protection(snapshot_id, holder, reason)
        await self._parts.protections.put(wanted, self._parts.clock.now())

    async def unprotect(self, snapshot_id: SnapshotId | None, holder: str) -> None:
        """Let go of a snapshot, or of all that `holder` protects."""
        await self._parts.protections.drop(snapshot_id, holder)

    async def mark_good(self, snapshot_id: SnapshotId, found_by: str, reason: str) -> None:
        """Note that a snapshot is known to be good."""
        self._parts.origin(check_snapshot_id(snapshot_id))
        mark = Goodness(found_by=found_by, reason=reason, found_at=self._parts.clock.now())
        await self._parts.good.mark(snapshot_id, mark)

    async def unmark_good(self, snapshot_id: SnapshotId) -> None:
        """Note that a snapshot is not known to be good any more."""
        await self._parts.good.forget(snapshot_id)

    async def last_good(self, sandbox_id: SandboxId) -> SnapshotInfo | None:
        """Return the newest snapshot of a sandbox that is known to be good."""
        infos = [self._parts.seen(m) for m in self._parts.layers.snapshots(sandbox_id)]
        return self._parts.good.last(infos).get(sandbox_id)

    async def delete_snapshot(self, snapshot_id: SnapshotId, *, force: bool = False) -> int:
        """Remove a snapshot; return the bytes that this freed."""
        manifest = self._parts.layers.get(check_snapshot_id(snapshot_id))
        asleep = self._needs.stand_on(manifest.info.id)
        if asleep:
            raise Conflict(
                f"snapshot {snapshot_id} is needed: sandbox {asleep[0]} sleeps at it or is made from it",
                hint=f"wake it (torpor wake {asleep[0]}) or delete it first",
                sandboxes=asleep,
            )
        if manifest.info.id in self._parts.pins.now:
            raise Conflict(
                f"snapshot {snapshot_id} is needed: a sandbox is being made from it",
                hint="try again in a moment",
            )
        self._parts.protections.check_free(manifest.info.id)
        if not force and manifest.info.sandbox_id in self._tasks:
            infos = [m.info for m in self._parts.layers.snapshots(manifest.info.sandbox_id)]
            self._parts.good.check_not_last(manifest.info, infos)
        await self._needs.remove(manifest.info.id)
        return await self.collect()

    async def verify_snapshot(self, snapshot_id: SnapshotId) -> tuple[Damage, ...]:
        """Read all that a snapshot needs and compare it with its digests; return what is damaged."""
        store, mapped = self._parts.layers, self._needs.mapped()
        check_snapshot_id(snapshot_id)
        return tuple(await asyncio.to_thread(store.verify, snapshot_id, mapped=mapped))

    async def snapshot_inventory(self, snapshot_id: SnapshotId) -> Inventory:
        """Return what a snapshot's machine held when it was taken."""
        check_snapshot_id(snapshot_id)
        return await asyncio.to_thread(self._parts.layers.inventory, snapshot_id)

    async def layers(self) -> tuple[LayerUse, ...]:
        """Return every layer and RAM image with its size and who needs it."""
        return await self._needs.uses()

    async def collect(self) -> int:
        """Remove what nothing needs; return the bytes freed."""
        return await self._needs.collect()

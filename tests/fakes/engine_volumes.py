"""The fake engine's volumes: names, sizes and leases in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from torpor.base.ids import new_id
from torpor.base.units import GIB
from torpor.errors import Busy, Conflict, InvalidRequest, NotFound, VolumeHeld
from torpor.model import SandboxId, SandboxInfo
from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_volumes import (
    VolumeHolder,
    VolumeId,
    VolumeInfo,
    VolumeMount,
    VolumeSnapshotId,
    VolumeSnapshotInfo,
)

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class FakeVolumes:
    """See `VolumesPort`."""

    def __init__(self, sandbox: Callable[[SandboxId], SandboxInfo]) -> None:
        self._sandbox = sandbox
        self.found: dict[str, VolumeInfo] = {}
        self.points: list[VolumeSnapshotInfo] = []
        self.busy: set[str] = set()
        self.repaired: list[str] = []

    async def create(
        self, name: str, size_gib: float = 1, *, workspace: str = DEFAULT_WORKSPACE
    ) -> VolumeInfo:
        if size_gib < 0.0625:
            raise InvalidRequest(f"a volume of {size_gib} GiB is too small")
        return self._made(name, int(size_gib * GIB), None, workspace)

    def _made(self, name: str, size_bytes: int, parent: str | None, workspace: str) -> VolumeInfo:
        if any((v.name, v.workspace) == (name, workspace) for v in self.found.values()):
            raise Conflict(f"there is a volume {name} already", volume=name)
        made = VolumeId(new_id("vol"))
        self.found[made] = VolumeInfo(
            id=made,
            name=name,
            size_bytes=size_bytes,
            allocated_bytes=4096,
            used_bytes=None,
            used_at=None,
            created_at=_NOW,
            parent=parent,
            holders=(),
            clean=True,
            bound_to=None,
            snapshots=0,
            workspace=workspace,
        )
        return self.found[made]

    def at(self, sandbox_id: SandboxId) -> dict[str, str]:
        """Return the names of a sandbox's volumes, by path."""
        return {
            held.path: info.name
            for info in self.found.values()
            for held in info.holders
            if held.sandbox_id == sandbox_id
        }

    def _get(self, name: str) -> VolumeInfo:
        for info in self.found.values():
            if name in (info.name, info.id):
                return info
        raise NotFound(f"there is no volume {name}", volume=name)

    def _put(self, info: VolumeInfo) -> VolumeInfo:
        self.found[info.id] = info
        return info

    async def list(self) -> tuple[VolumeInfo, ...]:
        return tuple(sorted(self.found.values(), key=lambda info: info.name))

    async def get(self, name: str) -> VolumeInfo:
        return self._get(name)

    async def delete(self, name: str, *, snapshots: bool = False) -> int:
        info = self._get(name)
        if info.holders:
            raise VolumeHeld(f"volume {name} cannot be deleted now", holders=["x"])
        if info.snapshots and not snapshots:
            raise Conflict(f"volume {name} has {info.snapshots} snapshots of its own")
        del self.found[info.id]
        return 4096

    async def grow(self, name: str, size_gib: float) -> VolumeInfo:
        info = self._get(name)
        if size_gib * GIB < info.size_bytes:
            raise InvalidRequest(f"volume {name} cannot become smaller")
        return self._put(replace(info, size_bytes=int(size_gib * GIB)))

    async def check_new(
        self, name: str, size_gib: float, *, workspace: str = DEFAULT_WORKSPACE
    ) -> None:
        if any((v.name, v.workspace) == (name, workspace) for v in self.found.values()):
            raise Conflict(f"there is a volume {name} already", volume=name)

    async def keep(self, name: str, *, new_name: str | None = None) -> VolumeInfo:
        info = self._get(name)
        return self._put(replace(info, bound_to=None, name=new_name or info.name))

    async def snapshot(
        self,
        name: str,
        *,
        label: str | None = None,
        snapshot_id: VolumeSnapshotId | None = None,
    ) -> VolumeSnapshotInfo:
        info = self._get(name)
        self.points.append(
            VolumeSnapshotInfo(
                id=snapshot_id or VolumeSnapshotId(new_id("vsnap")),
                volume_id=info.id,
                label=label,
                reason="snapshot",
                created_at=_NOW,
                size_bytes=info.size_bytes,
                clean=True,
            )
        )
        self._put(replace(info, snapshots=info.snapshots + 1))
        return self.points[-1]

    async def snapshots(self, name: str) -> tuple[VolumeSnapshotInfo, ...]:
        return tuple(p for p in reversed(self.points) if p.volume_id == self._get(name).id)

    async def delete_snapshot(self, name: str, snapshot: str) -> int:
        for point in await self.snapshots(name):
            if snapshot in (point.id, point.label):
                self.points.remove(point)
                return 512
        raise NotFound(f"volume {name} has no snapshot {snapshot}")

    async def clone(self, name: str, new_name: str, *, snapshot: str | None = None) -> VolumeInfo:
        info = self._get(name)
        if snapshot is not None and not any(
            snapshot in (p.id, p.label) for p in await self.snapshots(name)
        ):
            raise NotFound(f"volume {name} has no snapshot {snapshot}")
        return self._made(new_name, info.size_bytes, info.id, info.workspace)

    async def attach(
        self, sandbox_id: SandboxId, mount: VolumeMount, *, repair: bool = False
    ) -> VolumeHolder:
        self._sandbox(sandbox_id)
        info = self._get(mount.volume)
        if info.holders and not (mount.read_only and all(h.read_only for h in info.holders)):
            raise VolumeHeld(f"volume {info.name} cannot be written now", holders=["x"])
        if repair:
            self.repaired.append(info.name)
        holder = VolumeHolder(
            sandbox_id=sandbox_id, path=mount.path, read_only=mount.read_only, slot=1, serial="s"
        )
        self._put(replace(info, holders=(*info.holders, holder)))
        return holder

    async def detach(self, sandbox_id: SandboxId, path: str) -> None:
        for info in list(self.found.values()):
            for holder in info.holders:
                if holder.sandbox_id == sandbox_id and path in (holder.path, info.name):
                    if holder.path in self.busy:
                        raise Busy(f"{path} is in use by 17 sh", holders="17 sh")
                    left = tuple(h for h in info.holders if h is not holder)
                    self._put(replace(info, holders=left))
                    return
        raise NotFound(f"sandbox {sandbox_id} has no volume at {path}")

    def release(self, sandbox_id: SandboxId) -> None:
        """Let go of what a sandbox that was deleted had."""
        for info in list(self.found.values()):
            left = tuple(h for h in info.holders if h.sandbox_id != sandbox_id)
            if left != info.holders:
                self._put(replace(info, holders=left))

    async def of_sandbox(self, sandbox_id: SandboxId) -> tuple[VolumeInfo, ...]:
        return tuple(
            info
            for info in self.found.values()
            if any(h.sandbox_id == sandbox_id for h in info.holders)
        )

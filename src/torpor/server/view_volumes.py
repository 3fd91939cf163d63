"""`VolumesView`: the volumes as one request sees them; those of other workspaces do not exist for it.

Here names become ids: a name is looked up among what the request sees, in its own workspace first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from torpor.access.principal import Principal
from torpor.model import SandboxId, SandboxInfo
from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_volumes import (
    VolumeHolder,
    VolumeInfo,
    VolumeMount,
    VolumeSnapshotId,
    VolumeSnapshotInfo,
)
from torpor.sandboxes.volume_port import VolumesPort
from torpor.volumes.missing import no_volume


class VolumesView:
    """What a principal sees of the volumes, and may do with them. See `VolumesPort`."""

    def __init__(
        self,
        volumes: VolumesPort,
        principal: Principal,
        sandbox: Callable[[SandboxId], Awaitable[SandboxInfo]],
    ) -> None:
        self._volumes = volumes
        self._principal = principal
        self._sandbox = sandbox

    async def list(self) -> tuple[VolumeInfo, ...]:
        """Return the workspace's volumes."""
        return tuple(v for v in await self._volumes.list() if self._principal.sees(v.workspace))

    async def id_of(self, name: str, workspace: str | None = None) -> str:
        """Return the id of a volume that the request sees. Raises `NotFound`."""
        home = workspace or self._principal.workspace
        there = await self.list()
        seen = [info for info in there if name in (info.id, info.name)]
        for info in seen:
            if name == info.id or info.workspace == home:
                return info.id
        if len(seen) == 1:
            return seen[0].id
        raise no_volume(name, (info.name for info in there))

    async def mounts(
        self, mounts: Sequence[VolumeMount], workspace: str | None = None
    ) -> tuple[VolumeMount, ...]:
        """Return the mounts with ids instead of names."""
        return tuple([replace(m, volume=await self.id_of(m.volume, workspace)) for m in mounts])

    async def create(
        self, name: str, size_gib: float = 1, *, workspace: str = DEFAULT_WORKSPACE
    ) -> VolumeInfo:
        """Make a volume in the workspace."""
        return await self._volumes.create(name, size_gib, workspace=self._principal.workspace)

    async def check_new(
        self, name: str, size_gib: float, *, workspace: str = DEFAULT_WORKSPACE
    ) -> None:
        """Raise what forbids a new volume of the workspace."""
        await self._volumes.check_new(name, size_gib, workspace=self._principal.workspace)

    async def get(self, name: str) -> VolumeInfo:
        """Return a volume of the workspace."""
        return await self._volumes.get(await self.id_of(name))

    async def delete(self, name: str, *, snapshots: bool = False) -> int:
        """Delete a volume of the workspace."""
        return await self._volumes.delete(await self.id_of(name), snapshots=snapshots)

    async def grow(self, name: str, size_gib: float) -> VolumeInfo:
        """Make a volume of the workspace larger."""
        return await self._volumes.grow(await self.id_of(name), size_gib)

    async def keep(self, name: str, *, new_name: str | None = None) -> VolumeInfo:
        """Let a volume of the workspace stay."""
        return await self._volumes.keep(await self.id_of(name), new_name=new_name)

    async def snapshot(
        self,
        name: str,
        *,
        label: str | None = None,
        snapshot_id: VolumeSnapshotId | None = None,
    ) -> VolumeSnapshotInfo:
        """Take a snapshot of a volume of the workspace."""
        return await self._volumes.snapshot(
            await self.id_of(name), label=label, snapshot_id=snapshot_id
        )

    async def snapshots(self, name: str) -> tuple[VolumeSnapshotInfo, ...]:
        """Return the snapshots of a volume of the workspace."""
        return await self._volumes.snapshots(await self.id_of(name))

    async def delete_snapshot(self, name: str, snapshot: str) -> int:
        """Delete a snapshot of a volume of the workspace."""
        return await self._volumes.delete_snapshot(await self.id_of(name), snapshot)

    async def clone(self, name: str, new_name: str, *, snapshot: str | None = None) -> VolumeInfo:
        """Clone a volume of the workspace into it."""
        return await self._volumes.clone(await self.id_of(name), new_name, snapshot=snapshot)

    async def attach(
        self, sandbox_id: SandboxId, mount: VolumeMount, *, repair: bool = False
    ) -> VolumeHolder:
        """Attach a volume to a sandbox; both are in the workspace."""
        info = await self._sandbox(sandbox_id)
        (found,) = await self.mounts([mount], info.workspace)
        return await self._volumes.attach(sandbox_id, found, repair=repair)

    async def detach(self, sandbox_id: SandboxId, path: str) -> None:
        """Detach a volume from a sandbox of the workspace."""
        await self._sandbox(sandbox_id)
        await self._volumes.detach(sandbox_id, path)

    async def of_sandbox(self, sandbox_id: SandboxId) -> tuple[VolumeInfo, ...]:
        """Return the volumes of a sandbox of the workspace."""
        await self._sandbox(sandbox_id)
        return await self._volumes.of_sandbox(sandbox_id)

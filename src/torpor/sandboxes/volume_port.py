"""`VolumesPort`: all that the server may ask about volumes. `EngineVolumes` implements it; tests of the server use a fake."""

from __future__ import annotations

from typing import Protocol

from torpor.model import SandboxId
from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_volumes import (
    VolumeHolder,
    VolumeInfo,
    VolumeMount,
    VolumeSnapshotId,
    VolumeSnapshotInfo,
)


class VolumesPort(Protocol):
    """Owns all volumes of one host. A volume is named by its id, or by its name in the workspace `default`.

    `NotFound` is raised when there is none.
    """

    async def create(
        self, name: str, size_gib: float = 1, *, workspace: str = DEFAULT_WORKSPACE
    ) -> VolumeInfo:
        """Make a volume with an empty ext4 file system. It takes disk as it is written to.

        Raises:
            InvalidRequest: the name cannot be one, or the size is too small.
            Conflict: the name is taken.
            LimitExceeded: a quota is full.
            InsufficientResources: the host has no disk for it; nothing was made.
        """
        ...

    async def check_new(
        self, name: str, size_gib: float, *, workspace: str = DEFAULT_WORKSPACE
    ) -> None:
        """Raise what `create` would raise for that name and size; nothing is made."""
        ...

    async def list(self) -> tuple[VolumeInfo, ...]:
        """Return all volumes, by name."""
        ...

    async def get(self, name: str) -> VolumeInfo:
        """Return a volume; a running sandbox that has it mounted is asked how full it is."""
        ...

    async def delete(self, name: str, *, snapshots: bool = False) -> int:
        """Delete a volume; return the bytes freed.

        Raises:
            VolumeHeld: a sandbox has it.
            Conflict: snapshots of machines need it, or it has snapshots of its own and `snapshots` is off.
        """
        ...

    async def grow(self, name: str, size_gib: float) -> VolumeInfo:
        """Make a volume and its file system larger, also while a running sandbox writes to it. Can be asked again.

        Raises:
            InvalidRequest: it would become smaller.
            VolumeHeld: sandboxes have it that read only.
            WrongState: its sandbox sleeps or is paused.
            LimitExceeded, InsufficientResources: no quota or no disk; nothing was changed.
        """
        ...

    async def keep(self, name: str, *, new_name: str | None = None) -> VolumeInfo:
        """Let a volume that was made for a restored or forked sandbox stay when that is deleted. Idempotent.

        Args:
            name: which.
            new_name: what it is called from now on; None: as before. Raises `Conflict` when that is taken.
        """
        ...

    async def snapshot(
        self,
        name: str,
        *,
        label: str | None = None,
        snapshot_id: VolumeSnapshotId | None = None,
    ) -> VolumeSnapshotInfo:
        """Take a snapshot. Of one that a running sandbox writes to, its file systems are frozen for that moment.

        With `snapshot_id`, which must be fresh, it gets that id.

        Raises:
            Conflict: the volume has a snapshot with that label.
        """
        ...

    async def snapshots(self, name: str) -> tuple[VolumeSnapshotInfo, ...]:
        """Return a volume's own snapshots, the newest first."""
        ...

    async def delete_snapshot(self, name: str, snapshot: str) -> int:
        """Delete a volume's snapshot, by id or label; return the bytes freed."""
        ...

    async def clone(self, name: str, new_name: str, *, snapshot: str | None = None) -> VolumeInfo:
        """Make a volume that begins as another is now, or was at its snapshot. Raises as `create`."""
        ...

    async def attach(
        self, sandbox_id: SandboxId, mount: VolumeMount, *, repair: bool = False
    ) -> VolumeHolder:
        """Attach a volume to a running sandbox, one that sleeps is woken, and mount it.

        Raises:
            VolumeHeld: another sandbox has it in a way that forbids this; it is named.
            Conflict: the sandbox has it already, the path is taken, or its journal is to be replayed first.
            WrongState: the sandbox is not running.
            GuestFailed: it cannot be mounted; nothing was changed, and the hint says what to do.
        """
        ...

    async def detach(self, sandbox_id: SandboxId, path: str) -> None:
        """Unmount the volume at `path`, or of that name, and take it off. A sandbox that has ended lets go of it.

        Raises:
            Busy: processes use it; they are named. It stays as it was.
        """
        ...

    async def of_sandbox(self, sandbox_id: SandboxId) -> tuple[VolumeInfo, ...]:
        """Return the volumes that a sandbox has."""
        ...

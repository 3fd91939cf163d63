"""`Volume`: the synchronous face of `AsyncVolume`, call for call; and that of a sandbox's part about volumes."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Self

from typing_extensions import override

from torpor.model_volumes import VolumeHolder, VolumeId, VolumeInfo, VolumeSnapshotInfo
from torpor.sdk.client import Client
from torpor.sdk.dual import dual
from torpor.sdk.loop import loop_thread
from torpor.sdk.results import Transfer
from torpor.sdk.sync_handle import Handle
from torpor.sdk.volumes import AsyncVolume

_COPY_CLEANUP_S = 900.0
"""For the sandbox that a copy was made through to be deleted."""


class Volume:
    """One volume. Made by `create`, `get` or `list`; `torpor.sdk.volumes.AsyncVolume` says more of each call."""

    def __init__(self, volume: AsyncVolume) -> None:
        self._volume = volume

    @classmethod
    def create(cls, name: str, size_gib: float = 1, *, client: Client | None = None) -> Self:
        """Make a volume with an empty ext4 file system. It takes disk of the host as it is written to.

        Raises:
            Conflict: the name is taken.
            InvalidRequest: the name cannot be one, or the size is too small.
            LimitExceeded: a quota of the daemon is full.
            InsufficientResources: the host has no disk for it; nothing was made.
        """
        return cls(loop_thread.run(AsyncVolume.create(name, size_gib, client=client)))

    @classmethod
    def get(cls, name: str, *, client: Client | None = None) -> Self:
        """Return the volume with that name or id. Raises `NotFound`."""
        return cls(loop_thread.run(AsyncVolume.get(name, client=client)))

    @classmethod
    def list(cls, *, client: Client | None = None) -> builtins.list[Self]:
        """Return all volumes, by name."""
        return [cls(found) for found in loop_thread.run(AsyncVolume.list(client=client))]

    @classmethod
    def handle(cls, name: str, *, client: Client | None = None) -> Self:
        """Return an object for a name or id without asking the daemon whether it exists."""
        return cls(AsyncVolume.handle(name, client=client))

    @override
    def __repr__(self) -> str:
        return repr(self._volume).replace("AsyncVolume", type(self).__name__)

    @property
    def name(self) -> str:
        """Its name."""
        return self._volume.name

    @property
    def id(self) -> VolumeId:
        """Its id, `vol_…`."""
        return self._volume.id

    @property
    def info(self) -> VolumeInfo:
        """What was so when the daemon was last asked; `refresh` asks again."""
        return self._volume.info

    @property
    def client(self) -> Client:
        """The daemon that has it."""
        return self._volume.client

    def refresh(self) -> VolumeInfo:
        """Ask what is so about the volume; a running sandbox that has it is asked how full it is."""
        return loop_thread.run(self._volume.refresh())

    def delete(self, *, snapshots: bool = False) -> int:
        """Delete the volume; return the bytes freed. Raises `VolumeHeld`, or `Conflict` if snapshots need it."""
        return loop_thread.run(self._volume.delete(snapshots=snapshots))

    def grow(self, size_gib: float) -> VolumeInfo:
        """Make the volume and its file system larger, also while a running sandbox writes to it. Can be repeated."""
        return loop_thread.run(self._volume.grow(size_gib))

    def keep(self) -> VolumeInfo:
        """Let a volume that was made for a restored or forked sandbox stay when that is deleted. Idempotent."""
        return loop_thread.run(self._volume.keep())

    def snapshot(self, *, label: str | None = None) -> VolumeSnapshotInfo:
        """Take a snapshot of the volume alone, attached or not."""
        return loop_thread.run(self._volume.snapshot(label=label))

    def snapshots(self) -> builtins.list[VolumeSnapshotInfo]:
        """Return the volume's own snapshots, the newest first."""
        return loop_thread.run(self._volume.snapshots())

    def delete_snapshot(self, snapshot: str) -> int:
        """Delete a snapshot of the volume, by id or label; return the bytes freed. Raises `NotFound`."""
        return loop_thread.run(self._volume.delete_snapshot(snapshot))

    def clone(self, name: str, *, snapshot: str | None = None) -> Self:
        """Make a volume that begins as this one is now, or was at a snapshot of it; copy-on-write."""
        return type(self)(loop_thread.run(self._volume.clone(name, snapshot=snapshot)))

    def copy_in(self, local: str | Path, remote: str = "/", *, user: str | None = None) -> Transfer:
        """Copy a file or folder into the volume, as `cp -r` does, without a sandbox of yours."""
        return loop_thread.run(
            self._volume.copy_in(local, remote, user=user), cleanup_limit_s=_COPY_CLEANUP_S
        )

    def copy_out(self, remote: str, local: str | Path) -> Transfer:
        """Copy a file or folder out of the volume, as `cp -r` does, without a sandbox of yours."""
        return loop_thread.run(
            self._volume.copy_out(remote, local), cleanup_limit_s=_COPY_CLEANUP_S
        )


class SandboxVolumes(Handle):
    """The part of `Sandbox` about volumes. All of it also works on the class with an id."""

    @dual
    def attach_volume(
        self, volume: str, path: str, *, read_only: bool = False, repair: bool = False
    ) -> VolumeHolder:
        """Attach a volume to the running sandbox and mount it; one that sleeps is woken.

        Raises:
            NotFound: there is no such volume.
            VolumeHeld: another sandbox has it in a way that forbids this; the message names it.
            Conflict: it is attached already, the path is taken, or its journal is to be replayed first.
            WrongState: the sandbox is not running.
            GuestFailed: it cannot be mounted; nothing was changed, and the hint says what to do.
        """
        return loop_thread.run(
            self._sandbox.attach_volume(volume, path, read_only=read_only, repair=repair)
        )

    @dual
    def detach_volume(self, path: str) -> None:
        """Unmount the volume at a path (or of that name) and take it off. Raises `Busy`, naming who uses it."""
        loop_thread.run(self._sandbox.detach_volume(path))

    @dual
    def volumes(self) -> builtins.list[Volume]:
        """Return the volumes that the sandbox has."""
        return [Volume(found) for found in loop_thread.run(self._sandbox.volumes())]

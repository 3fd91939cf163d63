"""The shapes of requests and replies about volumes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from pydantic import Field

from torpor.base.units import GIB, MIB
from torpor.errors import InvalidRequest
from torpor.model_volumes import (
    HolderState,
    VolumeHolder,
    VolumeInfo,
    VolumeMount,
    VolumeSnapshotInfo,
)
from torpor.server.wire import Wire


class VolumeRequest(Wire):
    """What POST /v1/volumes takes; only `name` is needed."""

    name: str
    size_gib: Annotated[float | None, Field(description="GiB; default: 1.")] = None
    size_mb: Annotated[float | None, Field(description="Alias: MiB instead of GiB.")] = None

    def gib(self) -> float:
        """Return the size in GiB. Raises `InvalidRequest` when both are given."""
        if self.size_gib is not None and self.size_mb is not None:
            raise InvalidRequest("size_gib and size_mb are both given", hint="give one of them")
        if self.size_mb is not None:
            return self.size_mb * MIB / GIB
        return 1 if self.size_gib is None else self.size_gib


class GrowRequest(Wire):
    """What POST …/grow takes: the new size."""

    size_gib: float


class VolumeSnapshotRequest(Wire):
    """What POST …/snapshots of a volume takes; nothing is needed."""

    label: str | None = None


class CloneRequest(Wire):
    """What POST …/clone takes."""

    name: Annotated[str, Field(description="Of the new volume.")]
    snapshot: Annotated[
        str | None, Field(description="Id or label of a snapshot of it; null: as it is now.")
    ] = None


class AttachRequest(Wire):
    """What POST …/volumes of a sandbox takes."""

    volume: Annotated[str, Field(description="Name or id.")]
    path: Annotated[str, Field(description="Absolute path in the guest.")]
    read_only: bool = False
    repair: Annotated[bool, Field(description="Check and mend its file system first.")] = False

    def mount(self) -> VolumeMount:
        """Return it in the engine's words."""
        return VolumeMount(volume=self.volume, path=self.path, read_only=self.read_only)


class HolderWire(Wire):
    """A sandbox that has a volume."""

    sandbox_id: str
    path: str
    read_only: bool
    slot: int
    state: HolderState

    @staticmethod
    def of(holder: VolumeHolder) -> HolderWire:
        """Return `holder` as JSON has it."""
        return HolderWire(
            sandbox_id=holder.sandbox_id,
            path=holder.path,
            read_only=holder.read_only,
            slot=holder.slot,
            state=holder.state,
        )


class VolumeWire(Wire):
    """One volume."""

    id: str
    name: str
    size_bytes: int
    size_mb: Annotated[int, Field(description="Alias of `size_bytes`, in MiB.")]
    allocated_bytes: Annotated[int, Field(description="Disk of the host that its layers take.")]
    used_bytes: Annotated[
        int | None, Field(description="What its file system last said was used; null: never asked.")
    ]
    used_at: datetime | None
    created_at: datetime
    parent: str | None
    holders: Sequence[HolderWire]
    clean: bool
    bound_to: Annotated[str | None, Field(description="The sandbox that it goes with.")]
    snapshots: Annotated[int, Field(description="How many of its own it has.")]

    @staticmethod
    def of(info: VolumeInfo) -> VolumeWire:
        """Return `info` as JSON has it."""
        return VolumeWire(
            id=info.id,
            name=info.name,
            size_bytes=info.size_bytes,
            size_mb=info.size_bytes // MIB,
            allocated_bytes=info.allocated_bytes,
            used_bytes=info.used_bytes,
            used_at=info.used_at,
            created_at=info.created_at,
            parent=info.parent,
            holders=[HolderWire.of(holder) for holder in info.holders],
            clean=info.clean,
            bound_to=info.bound_to,
            snapshots=info.snapshots,
        )


class VolumeListWire(Wire):
    """Volumes, by name."""

    volumes: list[VolumeWire]

    @staticmethod
    def of(found: Sequence[VolumeInfo]) -> VolumeListWire:
        """Return `found` as JSON has it."""
        return VolumeListWire(volumes=[VolumeWire.of(info) for info in found])


class VolumeDeletedWire(Wire):
    """A volume, or a snapshot of one, that is gone, and the bytes that this freed at once."""

    deleted: str
    freed_bytes: int


class VolumeSnapshotWire(Wire):
    """A point of a volume."""

    id: str
    volume_id: str
    label: str | None
    reason: str
    created_at: datetime
    size_bytes: int
    clean: bool

    @staticmethod
    def of(info: VolumeSnapshotInfo) -> VolumeSnapshotWire:
        """Return `info` as JSON has it."""
        return VolumeSnapshotWire(
            id=info.id,
            volume_id=info.volume_id,
            label=info.label,
            reason=info.reason,
            created_at=info.created_at,
            size_bytes=info.size_bytes,
            clean=info.clean,
        )


class VolumeSnapshotListWire(Wire):
    """Points of a volume, the newest first."""

    snapshots: list[VolumeSnapshotWire]

    @staticmethod
    def of(found: Sequence[VolumeSnapshotInfo]) -> VolumeSnapshotListWire:
        """Return `found` as JSON has it."""
        return VolumeSnapshotListWire(snapshots=[VolumeSnapshotWire.of(info) for info in found])

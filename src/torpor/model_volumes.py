"""The plain values of volumes: durable storage outside any sandbox. See `torpor.model`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NewType

from torpor.model_access import DEFAULT_WORKSPACE

VolumeId = NewType("VolumeId", str)
VolumeSnapshotId = NewType("VolumeSnapshotId", str)

VolumesMode = Literal["include", "detach", "keep-current"]
"""What a snapshot of a machine does with its volumes. `include`: their point is part of it. `detach`: they are
taken off before it, and it knows nothing of them. `keep-current`: they are taken off before it and put back, as
they are then, by whoever goes back to it."""

HolderState = Literal["attaching", "attached", "parted", "detaching"]
"""`parted`: taken off for a snapshot, to be put back right after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMount:
    """A wish: this volume at that path of a sandbox."""

    volume: str
    """Name or id."""
    path: str
    """Absolute path in the guest."""
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeHolder:
    """A sandbox that has a volume."""

    sandbox_id: str
    path: str
    read_only: bool
    slot: int
    """Which of the machine's places for volumes it is in, from 1 on."""
    serial: str
    """What its guest knows the disk by; of a fork's clone: what its source was known by."""
    state: HolderState = "attached"


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeInfo:
    """What is so about one volume."""

    id: VolumeId
    name: str
    size_bytes: int
    """What it may grow to hold; it takes what was written."""
    allocated_bytes: int
    """Disk of the host that its layers take; some of them may be shared with snapshots and clones."""
    used_bytes: int | None
    """What its file system said was used when it was last asked; None: never."""
    used_at: datetime | None
    created_at: datetime
    parent: str | None
    """The volume or volume snapshot that it was cloned from."""
    holders: tuple[VolumeHolder, ...]
    clean: bool
    """Its file system was unmounted or frozen; else its journal is replayed when it is next mounted."""
    bound_to: str | None
    """The sandbox it was made for by a restore or fork, and goes with; None: it stays."""
    snapshots: int
    """How many snapshots it has of its own."""
    workspace: str = DEFAULT_WORKSPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSnapshotInfo:
    """A point of a volume. Immutable."""

    id: VolumeSnapshotId
    volume_id: VolumeId
    label: str | None
    reason: Literal["snapshot", "rollback"]
    """`rollback`: what was in the volume before a rollback of its sandbox put it back."""
    created_at: datetime
    size_bytes: int
    clean: bool


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    """What the guest says of a mounted file system."""

    total_bytes: int
    used_bytes: int

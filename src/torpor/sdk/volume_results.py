"""Volumes as JSON has them, made into values, and back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from torpor.model_volumes import (
    VolumeHolder,
    VolumeId,
    VolumeInfo,
    VolumeSnapshotId,
    VolumeSnapshotInfo,
)

LIFE_LIMIT_S = 600.0
"""Seconds for a call that waits for a guest; a large file system to grow can take minutes."""


class VolumeWish(TypedDict, total=False):
    """How a sandbox is to have a volume, where more than its name is said."""

    volume: str
    read_only: bool


Volumes = Mapping[str, "str | VolumeWish"]
"""Volumes by path: a name, or `{"volume": name, "read_only": True}`."""


def volumes_body(volumes: Volumes | None) -> dict[str, Any]:
    """Return the volumes of a request."""
    return {
        path: wish if isinstance(wish, str) else dict(wish)
        for path, wish in (volumes or {}).items()
    }


def volume_info(body: Mapping[str, Any]) -> VolumeInfo:
    """Return the volume in `body`."""
    used_at = body["used_at"]
    return VolumeInfo(
        id=VolumeId(body["id"]),
        name=body["name"],
        size_bytes=body["size_bytes"],
        allocated_bytes=body["allocated_bytes"],
        used_bytes=body["used_bytes"],
        used_at=None if used_at is None else datetime.fromisoformat(used_at),
        created_at=datetime.fromisoformat(body["created_at"]),
        parent=body["parent"],
        holders=tuple(holder(found) for found in body["holders"]),
        clean=body["clean"],
        bound_to=body["bound_to"],
        snapshots=body["snapshots"],
    )


def holder(body: Mapping[str, Any]) -> VolumeHolder:
    """Return the holder in `body`."""
    return VolumeHolder(
        sandbox_id=body["sandbox_id"],
        path=body["path"],
        read_only=body["read_only"],
        slot=body["slot"],
        serial="",
        state=body["state"],
    )


def volume_snapshot_info(body: Mapping[str, Any]) -> VolumeSnapshotInfo:
    """Return the volume's snapshot in `body`."""
    return VolumeSnapshotInfo(
        id=VolumeSnapshotId(body["id"]),
        volume_id=VolumeId(body["volume_id"]),
        label=body["label"],
        reason=body["reason"],
        created_at=datetime.fromisoformat(body["created_at"]),
        size_bytes=body["size_bytes"],
        clean=body["clean"],
    )

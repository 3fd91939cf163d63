"""Rows of volumes and of their snapshots."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import DatabaseError

from torpor.db.database import Database, translate
from torpor.db.tables import volume, volume_snapshot
from torpor.layers.manifest import LayerRef
from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_volumes import (
    VolumeHolder,
    VolumeId,
    VolumeSnapshotId,
    VolumeSnapshotInfo,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class VolumeLayers:
    """What a volume is made of, by layer id."""

    disk: tuple[str, ...] = ()
    """Immutable layers, the oldest first."""
    active: str = ""
    """The overlay that takes what is written."""
    next_active: str | None = None
    """The overlay that a snapshot is about to switch to. Whichever is in use: the disk is the same with both."""
    written: bool = False
    """Whether something may be in `active`."""
    clean: bool = True
    """Whether the file system was unmounted, or frozen, at its last point."""

    @property
    def ids(self) -> frozenset[str]:
        """All layers that it needs."""
        return frozenset({*self.disk, *(one for one in (self.active, self.next_active) if one)})


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRow:
    """A volume as the daemon keeps it."""

    id: VolumeId
    name: str
    size_bytes: int
    created_at: datetime
    workspace: str = DEFAULT_WORKSPACE
    parent: str | None = None
    bound_to: str | None = None
    used_bytes: int | None = None
    used_at: datetime | None = None
    layers: VolumeLayers = field(default_factory=VolumeLayers)
    holders: tuple[VolumeHolder, ...] = ()

    def held_by(self, sandbox_id: str) -> VolumeHolder | None:
        """Return how a sandbox holds it."""
        return next((h for h in self.holders if h.sandbox_id == sandbox_id), None)


@dataclass(frozen=True, slots=True)
class VolumeSnapshotRow:
    """A volume's snapshot and the layers that it is."""

    info: VolumeSnapshotInfo
    disk: tuple[LayerRef, ...]


class VolumeRows:
    """Reads and writes them. Every method blocks, and is durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[VolumeRow]:
        """Return all volumes, by name."""
        with self._database.begin() as connection:
            found = connection.execute(select(volume).order_by(volume.c.name)).mappings()
            return [_row(row) for row in found]

    def insert(self, row: VolumeRow) -> None:
        """Add a volume."""
        self._write(insert(volume).values(**_values(row)))

    def save(self, row: VolumeRow) -> None:
        """Write all of a volume that exists."""
        self._write(update(volume).where(volume.c.id == row.id).values(**_values(row)))

    def delete(self, volume_id: VolumeId) -> None:
        """Forget a volume and its snapshots."""
        self._write(
            delete(volume_snapshot).where(volume_snapshot.c.volume_id == volume_id),
            delete(volume).where(volume.c.id == volume_id),
        )

    def snapshots(self) -> list[VolumeSnapshotRow]:
        """Return the snapshots of all volumes, the oldest first."""
        with self._database.begin() as connection:
            found = connection.execute(
                select(volume_snapshot).order_by(volume_snapshot.c.created_at, volume_snapshot.c.id)
            ).mappings()
            return [_snapshot(row) for row in found]

    def insert_snapshot(self, row: VolumeSnapshotRow) -> None:
        """Add a snapshot."""
        info = row.info
        self._write(
            insert(volume_snapshot).values(
                id=info.id,
                volume_id=info.volume_id,
                label=info.label,
                reason=info.reason,
                created_at=_micros(info.created_at),
                size_bytes=info.size_bytes,
                clean=int(info.clean),
                disk=json.dumps([asdict(ref) for ref in row.disk], sort_keys=True),
            )
        )

    def delete_snapshot(self, snapshot_id: VolumeSnapshotId) -> None:
        """Forget a snapshot."""
        self._write(delete(volume_snapshot).where(volume_snapshot.c.id == snapshot_id))

    def _write(self, *statements: Any) -> None:
        try:
            with self._database.begin() as connection:
                for statement in statements:
                    connection.execute(statement)
        except DatabaseError as exc:
            raise translate(exc, str(self._database.engine.url.database)) from exc


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def _time(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _values(row: VolumeRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "workspace": row.workspace,
        "name": row.name,
        "size_bytes": row.size_bytes,
        "parent": row.parent,
        "bound_to": row.bound_to,
        "created_at": _micros(row.created_at),
        "used_bytes": row.used_bytes,
        "used_at": None if row.used_at is None else _micros(row.used_at),
        "layers": json.dumps(asdict(row.layers), sort_keys=True),
        "holders": json.dumps([asdict(holder) for holder in row.holders], sort_keys=True),
    }


def _row(raw: Any) -> VolumeRow:
    layers = json.loads(raw["layers"])
    layers["disk"] = tuple(layers["disk"])
    return VolumeRow(
        id=VolumeId(raw["id"]),
        workspace=raw["workspace"],
        name=raw["name"],
        size_bytes=raw["size_bytes"],
        created_at=_time(raw["created_at"]),
        parent=raw["parent"],
        bound_to=raw["bound_to"],
        used_bytes=raw["used_bytes"],
        used_at=None if raw["used_at"] is None else _time(raw["used_at"]),
        layers=VolumeLayers(**layers),
        holders=tuple(VolumeHolder(**holder) for holder in json.loads(raw["holders"])),
    )


def _snapshot(raw: Any) -> VolumeSnapshotRow:
    return VolumeSnapshotRow(
        VolumeSnapshotInfo(
            id=VolumeSnapshotId(raw["id"]),
            volume_id=VolumeId(raw["volume_id"]),
            label=raw["label"],
            reason=raw["reason"],
            created_at=_time(raw["created_at"]),
            size_bytes=raw["size_bytes"],
            clean=bool(raw["clean"]),
        ),
        tuple(LayerRef(**ref) for ref in json.loads(raw["disk"])),
    )

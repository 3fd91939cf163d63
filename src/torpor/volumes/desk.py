"""`VolumeDesk`: volumes as files. Made, sealed, cloned, put back, made larger and deleted without any machine.

A volume is a chain of immutable layers and one overlay that takes what is written, as a sandbox's disk is. Its first
layer holds the empty file system. Layers are shared by clones, snapshots and machines' snapshots, and collected when
nothing needs them; so a point of a volume costs an empty overlay, whatever the volume's size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torpor.base.clock import Clock
from torpor.base.faults import reach
from torpor.base.fsio import allocated_bytes, fsync_dir, fsync_file
from torpor.base.ids import check_name, new_id
from torpor.base.units import format_bytes
from torpor.db.volumes import VolumeLayers, VolumeRow, VolumeSnapshotRow
from torpor.errors import Conflict, InvalidRequest
from torpor.layers.manifest import LayerRef
from torpor.layers.seal import reclaim
from torpor.layers.space import full_disk_told
from torpor.layers.store import LayerStore
from torpor.layers.whole import is_unfilled
from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_volumes import (
    VolumeHolder,
    VolumeId,
    VolumeInfo,
    VolumeSnapshotId,
    VolumeSnapshotInfo,
)
from torpor.vmm.base import Driver
from torpor.volumes.quota import VolumeQuota
from torpor.volumes.shelf import VolumeShelf


@dataclass(frozen=True, slots=True)
class Point:
    """What a volume is at one instant, by immutable layers."""

    disk: tuple[LayerRef, ...]
    size_bytes: int
    clean: bool


class VolumeDesk:
    """Works on volumes that no machine writes."""

    def __init__(
        self,
        shelf: VolumeShelf,
        layers: LayerStore,
        driver: Driver,
        clock: Clock,
        quota: VolumeQuota | None = None,
    ) -> None:
        self.shelf = shelf
        self.layers = layers
        self.quota = quota or VolumeQuota()
        self._driver = driver
        self._clock = clock

    async def create(
        self, name: str, size_bytes: int, workspace: str = DEFAULT_WORKSPACE
    ) -> VolumeRow:
        """Make a volume with an empty ext4 file system.

        Raises:
            InvalidRequest, LimitExceeded: the name or size cannot be; see `VolumeQuota`.
            Conflict: the name is taken.
            InsufficientResources: the disk is full; nothing is left.
        """
        self.check_new(name, size_bytes, workspace)
        base = new_id("lyr")
        with self.layers.pins.held(base):
            await self._driver.format_volume(self.layers.disk_path(base), size_bytes)
            reach("volume.formatted")
            await self._ref(base)
            return await self._insert(name, (base,), size_bytes, workspace=workspace)

    def check_new(self, name: str, size_bytes: int, workspace: str = DEFAULT_WORKSPACE) -> None:
        """Raise what forbids a new volume of that name and size."""
        check_name(name, "volume")
        if self.shelf.find(name, workspace) is not None:
            raise Conflict(
                f"there is a volume {name} already",
                hint="choose another name, or use that one",
                volume=name,
            )
        self.quota.check(size_bytes, self._sizes())

    def check_clones(self, sizes: Sequence[int]) -> None:
        """Raise `LimitExceeded` unless a quota has room for clones of those sizes, which a machine brings along."""
        self.quota.check_together(sizes, self._sizes(), "leave them out (volumes=detach), ")

    def _sizes(self) -> dict[str, int]:
        return {row.id: row.size_bytes for row in self.shelf.all()}

    async def clone(
        self,
        point: Point,
        name: str,
        *,
        parent: str,
        workspace: str,
        bound_to: str | None = None,
        holders: tuple[VolumeHolder, ...] = (),
        counts: bool = True,
    ) -> VolumeRow:
        """Make a volume that begins as `point`, copy-on-write. Its layers are pinned by the caller, or needed.

        Args:
            point: what it begins as.
            name: what it is called.
            parent: whose clone it is.
            workspace: where it is.
            bound_to: the sandbox that it goes with.
            holders: who has it from the beginning.
            counts: refuse it when a quota is full.
        """
        disk = tuple(ref.id for ref in point.disk)
        writes = any(not holder.read_only for holder in holders)
        return await self._insert(
            name,
            disk,
            point.size_bytes,
            parent=parent,
            workspace=workspace,
            bound_to=bound_to,
            holders=holders,
            clean=point.clean and not writes,
            written=writes,
            counts=counts,
        )

    async def _insert(
        self,
        name: str,
        disk: Sequence[str],
        size_bytes: int,
        *,
        workspace: str,
        parent: str | None = None,
        bound_to: str | None = None,
        holders: tuple[VolumeHolder, ...] = (),
        clean: bool = True,
        written: bool = False,
        counts: bool = True,
    ) -> VolumeRow:
        disk = self._short(disk)
        with self.layers.pins.held(*disk):
            active = new_id("lyr")
            with self.layers.pins.held(active):
                await self._overlay(active, size_bytes)
                reach("volume.made")
                row = VolumeRow(
                    id=VolumeId(new_id("vol")),
                    name=name,
                    size_bytes=size_bytes,
                    created_at=self._clock.now(),
                    workspace=workspace,
                    parent=parent,
                    bound_to=bound_to,
                    layers=VolumeLayers(disk, active, written=written, clean=clean),
                    holders=holders,
                )
                sizes = [size_bytes] if counts else []
                # others may have been made since it was looked
                await self.shelf.insert(
                    row, lambda: self.quota.check_together(sizes, self._sizes())
                )
        return row

    async def point(self, volume_id: VolumeId) -> Point:
        """Return what a volume is now. No machine may write to it meanwhile: hold its turn, or be its writer's task."""
        row = self.shelf.get(volume_id)
        if row.layers.written:
            row = await self.seal(volume_id)
        return await self.point_of(row)

    async def point_of(self, row: VolumeRow) -> Point:
        """Return the point that a volume's immutable layers are."""
        refs = [await self._ref(layer) for layer in row.layers.disk]
        return Point(tuple(refs), row.size_bytes, row.layers.clean)

    async def seal(self, volume_id: VolumeId, *, written: bool = False) -> VolumeRow:
        """Make what was written to a volume that no machine has an immutable layer of it; a new overlay takes its place.

        Args:
            volume_id: which.
            written: what its row says of the new overlay.
        """
        row = self.shelf.get(volume_id)
        old, new = row.layers.active, new_id("lyr")
        below = self._short(row.layers.disk)
        with self.layers.pins.held(new, old, *below):
            await self._overlay(new, row.size_bytes)
            path = self.layers.disk_path(old)
            if not await asyncio.to_thread(is_unfilled, path):  # else it never came to a machine
                await self._ref(old)
                below = self.layers.needed_disks((*below, old))
            reach("volume.sealed")
            layers = replace(row.layers, disk=below, active=new, written=written)
            return await self.shelf.change(volume_id, lambda r: replace(r, layers=layers))

    async def _in_own_format(self, row: VolumeRow) -> VolumeRow:
        """Give a volume whose overlay another driver made one that this driver's machines can write."""
        if self.layers.disk_path(row.layers.active).suffix == self._driver.disk_suffix:
            return row
        return await self.seal(row.id, written=row.layers.written)

    async def stand_on(
        self, volume_id: VolumeId, disk: Sequence[str], size_bytes: int, *, clean: bool
    ) -> VolumeRow:
        """Let a volume be exactly those layers, with an empty overlay that its machine is about to write to.

        What its overlay held is not part of it any more; see `keep`.
        """
        below, new = self._short(disk), new_id("lyr")
        with self.layers.pins.held(new, *below, *disk):
            await self._overlay(new, size_bytes)
            layers = VolumeLayers(below, new, written=False, clean=clean)
            return await self.shelf.change(
                volume_id, lambda r: replace(r, layers=layers, size_bytes=size_bytes)
            )

    async def snapshot(
        self,
        volume_id: VolumeId,
        point: Point,
        *,
        label: str | None,
        reason: Literal["snapshot", "rollback"] = "snapshot",
        snapshot_id: VolumeSnapshotId | None = None,
    ) -> VolumeSnapshotRow:
        """Keep a point of a volume. Raises `Conflict` when a snapshot of it has that label."""
        row = VolumeSnapshotRow(
            VolumeSnapshotInfo(
                id=snapshot_id or VolumeSnapshotId(new_id("vsnap")),
                volume_id=volume_id,
                label=label,
                reason=reason,
                created_at=self._clock.now(),
                size_bytes=point.size_bytes,
                clean=point.clean,
            ),
            point.disk,
        )
        await self.shelf.insert_snapshot(row)
        return row

    async def keep(self, volume_id: VolumeId) -> VolumeSnapshotRow | None:
        """Before a volume is put back: keep what is in it as a snapshot; None when there is nothing to keep."""
        row = self.shelf.get(volume_id)
        newest = next(iter(self.shelf.snapshots(volume_id)), None)
        if not row.layers.written and newest is not None:
            kept = tuple(ref.id for ref in newest.disk)
            if self._first(kept) == self._first(row.layers.disk):
                return newest
        return await self.snapshot(
            volume_id, await self.point(volume_id), label=None, reason="rollback"
        )

    def same_point(self, row: VolumeRow, disk: Sequence[str]) -> bool:
        """Return whether a volume is, but for an overlay that nobody wrote to, those layers."""
        return not row.layers.written and self._first(row.layers.disk) == self._first(disk)

    async def grow(self, volume_id: VolumeId, size_bytes: int) -> VolumeRow:
        """Make a volume that nobody has larger; its file system follows when it is next mounted read-write."""
        row = await self.shelf.change(volume_id, lambda r: self.grown(r, size_bytes))
        reach("grow.intent")
        row = await self._in_own_format(row)
        await self._driver.resize_overlay(self.layers.disk_path(row.layers.active), size_bytes)
        reach("grow.resized")
        return row

    def grown(self, row: VolumeRow, size_bytes: int) -> VolumeRow:
        """Return a volume in that size. Raises as `check_grow`: another may have made it larger still."""
        self.check_grow(row, size_bytes)
        return replace(row, size_bytes=size_bytes)

    def check_grow(self, row: VolumeRow, size_bytes: int) -> None:
        """Raise unless a volume may have that size."""
        if size_bytes < row.size_bytes:
            raise InvalidRequest(
                f"volume {row.name} has {format_bytes(row.size_bytes)}; it cannot become smaller",
                hint="make a smaller volume and copy",
                size_bytes=row.size_bytes,
            )
        others: dict[str, int] = {r.id: r.size_bytes for r in self.shelf.all() if r.id != row.id}
        self.quota.check(size_bytes, others)

    async def reclaim(self, row: VolumeRow) -> None:
        """Take the overlay back from the user that a VMM ran as."""
        path = self.layers.disk_path(row.layers.active)
        await asyncio.to_thread(reclaim, path)

    async def hand_out(self, row: VolumeRow) -> VolumeRow:
        """Prepare a volume's files for a machine; return it, with as few layers as can be."""
        row = await self._in_own_format(row)
        below = self._short(row.layers.disk)
        path = self.layers.disk_path(row.layers.active)
        # a sum of what it once held would be believed later; see `LayerStore.ref`
        await asyncio.to_thread(path.with_suffix(".sum").unlink, missing_ok=True)
        with self.layers.pins.held(*below):
            await self.refs(
                below
            )  # one that a crash kept from being sealed belongs to a VMM's user
            if below == row.layers.disk:
                return row
            return await self.shelf.change(
                row.id, lambda r: replace(r, layers=replace(r.layers, disk=below))
            )

    async def info(self, row: VolumeRow) -> VolumeInfo:
        """Return what users are told of a volume."""

        def allocated() -> int:
            paths = [self.layers.disk_path(layer) for layer in row.layers.ids]
            return sum(allocated_bytes(path) for path in paths if path.exists())

        return VolumeInfo(
            id=row.id,
            name=row.name,
            size_bytes=row.size_bytes,
            allocated_bytes=await asyncio.to_thread(allocated),
            used_bytes=row.used_bytes,
            used_at=row.used_at,
            created_at=row.created_at,
            parent=row.parent,
            holders=row.holders,
            clean=row.layers.clean,
            bound_to=row.bound_to,
            snapshots=len(self.shelf.snapshots(row.id)),
            workspace=row.workspace,
        )

    async def new_overlay(self, layer: str, size_bytes: int) -> Path:
        """Make an empty overlay, durably; its id is pinned by the caller."""
        await self._overlay(layer, size_bytes)
        return self.layers.disk_path(layer)

    def short(self, chain: Sequence[str]) -> tuple[str, ...]:
        """Return as few layers as hold the same; those that are there."""
        return self._short(chain)

    async def refs(self, chain: Sequence[str]) -> tuple[LayerRef, ...]:
        """Make layers immutable and durable; return them with their digests."""
        return tuple([await self._ref(layer) for layer in chain])

    async def _overlay(self, layer: str, size_bytes: int) -> None:
        path = self.layers.disk_path(layer)
        await self._driver.create_overlay(path, size_bytes)

        def durable() -> None:
            with full_disk_told(f"layer {layer}"):
                fsync_file(path)
                fsync_dir(path.parent)

        await asyncio.to_thread(durable)

    async def _ref(self, layer: str) -> LayerRef:
        return await asyncio.to_thread(self.layers.ref, layer, self.layers.disk_path(layer))

    def _short(self, chain: Sequence[str]) -> tuple[str, ...]:
        short = self.layers.merges.shortest(chain)
        there = all(self.layers.disk_path(layer).exists() for layer in short)
        return self.layers.needed_disks(short if there else chain)

    def _first(self, chain: Sequence[str]) -> tuple[str, ...]:
        return self.layers.needed_disks(self.layers.merges.first_layers(chain))

"""/v1/volumes and …/sandboxes/{id}/volumes: durable storage outside any sandbox."""

from __future__ import annotations

from fastapi import APIRouter, Response

from torpor.model import SandboxId
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine
from torpor.server.wire_volumes import (
    AttachRequest,
    CloneRequest,
    GrowRequest,
    HolderWire,
    VolumeDeletedWire,
    VolumeListWire,
    VolumeRequest,
    VolumeSnapshotListWire,
    VolumeSnapshotRequest,
    VolumeSnapshotWire,
    VolumeWire,
)

router = APIRouter(prefix="/v1", tags=["volumes"], responses=FAILURES)


@router.post("/volumes", status_code=201, response_model=VolumeWire)
async def create_volume(body: VolumeRequest, engine: Engine) -> Reply:
    """Make a volume with an empty file system."""
    return Reply(VolumeWire.of(await engine.volumes.create(body.name, body.gib())), 201)


@router.get("/volumes", response_model=VolumeListWire)
async def list_volumes(engine: Engine) -> Reply:
    """List the volumes, by name."""
    return Reply(VolumeListWire.of(await engine.volumes.list()))


@router.get("/volumes/{volume}", response_model=VolumeWire)
async def get_volume(volume: str, engine: Engine) -> Reply:
    """Return one volume, by name or id; a machine that has it is asked how full it is."""
    return Reply(VolumeWire.of(await engine.volumes.get(volume)))


@router.delete("/volumes/{volume}", response_model=VolumeDeletedWire)
async def delete_volume(volume: str, engine: Engine, snapshots: bool = False) -> Reply:
    """Delete a volume that nobody has and no snapshot needs; with `snapshots` its own ones with it."""
    freed = await engine.volumes.delete(volume, snapshots=snapshots)
    return Reply(VolumeDeletedWire(deleted=volume, freed_bytes=freed))


@router.post("/volumes/{volume}/grow", response_model=VolumeWire)
async def grow_volume(volume: str, body: GrowRequest, engine: Engine) -> Reply:
    """Make a volume larger, also while a running sandbox uses it."""
    return Reply(VolumeWire.of(await engine.volumes.grow(volume, body.size_gib)))


@router.post("/volumes/{volume}/keep", response_model=VolumeWire)
async def keep_volume(volume: str, engine: Engine) -> Reply:
    """Let a volume that was made for a restored or forked sandbox stay when that is deleted."""
    return Reply(VolumeWire.of(await engine.volumes.keep(volume)))


@router.post("/volumes/{volume}/clone", status_code=201, response_model=VolumeWire)
async def clone_volume(volume: str, body: CloneRequest, engine: Engine) -> Reply:
    """Make a volume that begins as this one is, or was at a snapshot of it; copy-on-write."""
    made = await engine.volumes.clone(volume, body.name, snapshot=body.snapshot)
    return Reply(VolumeWire.of(made), 201)


@router.post("/volumes/{volume}/snapshots", status_code=201, response_model=VolumeSnapshotWire)
async def take_volume_snapshot(
    volume: str, engine: Engine, body: VolumeSnapshotRequest | None = None
) -> Reply:
    """Take a snapshot of a volume, attached or not."""
    wish = body or VolumeSnapshotRequest()
    return Reply(
        VolumeSnapshotWire.of(await engine.volumes.snapshot(volume, label=wish.label)), 201
    )


@router.get("/volumes/{volume}/snapshots", response_model=VolumeSnapshotListWire)
async def list_volume_snapshots(volume: str, engine: Engine) -> Reply:
    """List a volume's own snapshots, the newest first."""
    return Reply(VolumeSnapshotListWire.of(await engine.volumes.snapshots(volume)))


@router.delete("/volumes/{volume}/snapshots/{snapshot}", response_model=VolumeDeletedWire)
async def delete_volume_snapshot(volume: str, snapshot: str, engine: Engine) -> Reply:
    """Delete a volume's snapshot, by id or label; layers that others need stay."""
    freed = await engine.volumes.delete_snapshot(volume, snapshot)
    return Reply(VolumeDeletedWire(deleted=snapshot, freed_bytes=freed))


@router.get("/sandboxes/{sandbox_id}/volumes", response_model=VolumeListWire)
async def list_volumes_of_sandbox(sandbox_id: str, engine: Engine) -> Reply:
    """List the volumes that a sandbox has."""
    await engine.get(SandboxId(sandbox_id))
    return Reply(VolumeListWire.of(await engine.volumes.of_sandbox(SandboxId(sandbox_id))))


@router.post("/sandboxes/{sandbox_id}/volumes", status_code=201, response_model=HolderWire)
async def attach_volume(sandbox_id: str, body: AttachRequest, engine: Engine) -> Reply:
    """Attach a volume to a running sandbox and mount it; one that sleeps is woken."""
    holder = await engine.volumes.attach(SandboxId(sandbox_id), body.mount(), repair=body.repair)
    return Reply(HolderWire.of(holder), 201)


@router.delete("/sandboxes/{sandbox_id}/volumes", status_code=204)
async def detach_volume(sandbox_id: str, path: str, engine: Engine) -> Response:
    """Unmount and take off the volume at `path` (or of that name); refused while processes use it."""
    await engine.volumes.detach(SandboxId(sandbox_id), path)
    return Response(status_code=204)

"""/pandastack/v1/volumes: storage outside any sandbox."""

from __future__ import annotations

from fastapi import APIRouter, Response

from torpor.server.compat.dispatch import PREFIX
from torpor.server.compat.wire import VolumeAskedNew, VolumesTold, VolumeTold
from torpor.server.compat.words import wanted
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine

MOST_MIB = 64 << 20

router = APIRouter(prefix=f"{PREFIX}/v1/volumes", tags=["pandastack"], responses=FAILURES)


@router.post("", status_code=201, response_model=VolumeTold)
async def pandastack_create_volume(body: VolumeAskedNew, engine: Engine) -> Reply:
    """Make a volume with an empty file system; a sandbox that has it finds it at `/mnt/NAME`."""
    size_mib = wanted(body.size_mb, "size_mb", 1, MOST_MIB)
    return Reply(VolumeTold.of(await engine.volumes.create(body.name, size_mib / 1024)), 201)


@router.get("", response_model=VolumesTold)
async def pandastack_list_volumes(engine: Engine) -> Reply:
    """List the volumes, by name."""
    return Reply(VolumesTold(items=[VolumeTold.of(v) for v in await engine.volumes.list()]))


@router.get("/{volume}", response_model=VolumeTold)
async def pandastack_get_volume(volume: str, engine: Engine) -> Reply:
    """Return one volume."""
    return Reply(VolumeTold.of(await engine.volumes.get(volume)))


@router.delete("/{volume}", status_code=204)
async def pandastack_delete_volume(volume: str, engine: Engine) -> Response:
    """Delete a volume; refused while a sandbox has it or a snapshot needs it."""
    await engine.volumes.delete(volume)
    return Response(status_code=204)

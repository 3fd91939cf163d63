"""Whether the files that a machine is about to start from are there, looked at before anything is ended for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from torpor.errors import DataDamaged
from torpor.layers.manifest import LayerRef, Manifest, VolumePoint
from torpor.layers.seal import seal_again
from torpor.layers.store import LayerStore
from torpor.layers.verify import misfit_of
from torpor.sandboxes.parts import Parts


async def check_files(
    parts: Parts, manifest: Manifest, volumes: Iterable[VolumePoint], *, devices: bool
) -> None:
    """Raise `DataDamaged`, with its name, when a file has gone or has another size than it was written with.

    Contents are not read. Whether the RAM is there shows when its image is made. A file that only lost its owner or
    mode is sealed again, so that the machine can read it.

    Args:
        parts: the rooms below.
        manifest: the snapshot, as it is now (see `LayerStore.shortened`).
        volumes: those whose layers the machine is given.
        devices: whether its CPUs and devices go on, too.
    """
    disks = [*manifest.disk, *(ref for point in volumes for ref in point.disk)]
    await asyncio.to_thread(_check, parts.layers, manifest, disks, devices)


def _check(store: LayerStore, manifest: Manifest, disks: Iterable[LayerRef], devices: bool) -> None:
    wanted = [(f"layer {ref.id}", ref, store.disk_path(ref.id)) for ref in disks]
    if devices:
        wanted.append(("devices", manifest.devices, store.devices(manifest.info.id)))
    for name, ref, path in wanted:
        problem = misfit_of(ref, path)
        if problem is not None:
            raise DataDamaged(
                f"snapshot {manifest.info.id} cannot be gone back to: {name}: {problem}",
                hint=f"see what else is damaged: torpor snapshot verify {manifest.info.id}",
                snapshot_id=manifest.info.id,
            )
        seal_again(path)
    with contextlib.suppress(FileNotFoundError):  # they need not be there
        seal_again(store.devices(manifest.info.id))

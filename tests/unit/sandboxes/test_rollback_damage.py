"""Going back to a snapshot that is not whole any more: no machine is ended for it, and none is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.sandboxes.world import Play, World
from torpor.errors import DataDamaged
from torpor.layers.manifest import Manifest
from torpor.model import MemoryChoice, RestoreSpec, SandboxFilter, SandboxState

S = SandboxState


def _file(world: World, manifest: Manifest, what: str) -> tuple[str, Path]:
    """Return what a file of a snapshot is called in an error, and where it is."""
    store, layer = world.engine._parts.layers, manifest.disk[-1].id
    if what == "disk":
        return layer, store.disk_path(layer)
    return "devices", store.devices(manifest.info.id)


@pytest.mark.parametrize("harm", ["gone", "cut"])
@pytest.mark.parametrize(
    ("memory", "what"), [("ram", "disk"), ("cold", "disk"), ("ram", "devices")]
)
def test_a_rollback_to_what_is_damaged_touches_nothing(
    play: Play, memory: MemoryChoice, what: str, harm: str
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        await world.engine.snapshot(info.id)
        manifest = world.engine._parts.layers.get(snap.id)
        process = world.vmm(info.id).process
        name, path = _file(world, manifest, what)
        data = path.read_bytes()
        path.unlink()
        if harm == "cut":
            path.write_bytes(data + b"x")
        before = await world.engine.get(info.id)
        with pytest.raises(DataDamaged, match=f"{name}: it "):
            await world.engine.rollback(info.id, snap.id, memory=memory)
        assert process.alive(), "the machine was ended"
        assert await world.engine.get(info.id) == before

    play(scene)


def test_a_cold_rollback_needs_no_devices(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        world.engine._parts.layers.devices(snap.id).unlink()
        assert (await world.engine.rollback(info.id, snap.id, memory="cold")).state is S.RUNNING

    play(scene)


@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_restore_or_fork_of_what_is_damaged_leaves_nothing(play: Play, harm: str) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        name, path = _file(world, world.engine._parts.layers.get(snap.id), "disk")
        data = path.read_bytes()
        path.unlink()
        if harm == "cut":
            path.write_bytes(data + b"x")
        with pytest.raises(DataDamaged, match=f"{name}: it "):
            await world.engine.restore(snap.id, RestoreSpec(allow_cold=True))
        forks = await world.engine.fork(snap.id, RestoreSpec(), count=2)
        assert [type(fork) for fork in forks] == [DataDamaged, DataDamaged]
        there = await world.engine.list(SandboxFilter())
        assert [found.id for found in there.items] == [info.id], "no failed ones are left"
        assert there.items[0].state is S.RUNNING

    play(scene)


def test_a_layer_whose_mode_was_lost_is_sealed_again(play: Play) -> None:
    """By a copy of the home that keeps no modes, say: no machine could read it."""

    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        manifest = world.engine._parts.layers.get(snap.id)
        paths = [_file(world, manifest, what)[1] for what in ("disk", "devices")]
        sealed = [path.stat() for path in paths]
        for how in ("rollback", "restore"):
            for path in paths:
                path.chmod(0o600)
            if how == "rollback":
                await world.engine.rollback(info.id, snap.id)
            else:
                await world.engine.restore(snap.id, RestoreSpec())
            for path, before in zip(paths, sealed, strict=True):
                assert path.stat()[:6] == before[:6], how

    play(scene)

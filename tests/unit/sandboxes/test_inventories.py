"""Inventories of snapshots: taken before the machine is quieted, kept beside the manifest, never a reason to fail."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.recovery.inventories import entry, inventory, section
from tests.unit.sandboxes.world import Play, World
from torpor.errors import DataDamaged, GuestFailed, NotFound
from torpor.layers.inventories import INVENTORY
from torpor.layers.manifest import MANIFEST, read_manifest
from torpor.model import SnapshotId
from torpor.model_inventory import Inventory
from torpor.sandboxes import inventories

FOUND = inventory({"skills": section(entry("notes", content="1"))})


def _taking(world: World, result: Inventory | BaseException = FOUND) -> list[list[str]]:
    """Let the engine take inventories; return what each agent had been asked before."""
    asked: list[list[str]] = []

    async def take(guest: Any) -> Inventory:
        asked.append(list(guest.calls))
        if isinstance(result, BaseException):
            raise result
        return result

    world.engine._parts.take_inventory = take
    return asked


def _folder(world: World, snapshot_id: SnapshotId) -> Path:
    return world.home.snapshots / snapshot_id


def test_it_is_taken_before_the_machine_is_quieted_and_kept(play: Play) -> None:
    async def scene(world: World) -> None:
        asked = _taking(world)
        info = await world.create()
        taken = await world.engine.snapshot(info.id)
        assert taken.inventory == "taken"
        assert "freeze" not in asked[-1]
        assert await world.engine.snapshot_inventory(taken.id) == FOUND
        file = _folder(world, taken.id) / INVENTORY
        assert file.stat().st_mode & 0o777 == 0o400
        assert await world.engine.verify_snapshot(taken.id) == ()
        await world.restart()
        assert await world.engine.snapshot_inventory(taken.id) == FOUND
        assert (await world.engine.get_snapshot(taken.id)).inventory == "taken"
        file.chmod(0o600)
        file.write_text(file.read_text().replace("notes", "nodes"))
        (damage,) = await world.engine.verify_snapshot(taken.id)
        assert (damage.layer, damage.problem) == (
            "inventory",
            "its content is not what was written",
        )
        with pytest.raises(DataDamaged, match="is damaged"):
            await world.engine.snapshot_inventory(taken.id)
        file.unlink()
        (damage,) = await world.engine.verify_snapshot(taken.id)
        assert damage.problem == "it is missing"
        await world.engine.delete_snapshot(taken.id)
        assert not _folder(world, taken.id).exists()

    play(scene)


def test_a_sleep_and_a_second_label_of_it(play: Play) -> None:
    async def scene(world: World) -> None:
        _taking(world)
        info = await world.create()
        asleep = await world.engine.hibernate(info.id)
        second = await world.engine.snapshot(info.id, label="x")
        assert (asleep.inventory, second.inventory) == ("taken", "taken")
        assert await world.engine.snapshot_inventory(second.id) == FOUND
        assert await world.engine.verify_snapshot(second.id) == ()

    play(scene)


def test_a_fork_s_snapshot_and_a_template_s_have_none(play: Play) -> None:
    async def scene(world: World) -> None:
        asked = _taking(world)
        info = await world.create()
        from torpor.model import RestoreSpec

        await world.engine.fork(info.id, RestoreSpec())
        assert asked == []
        (forked,) = await world.engine.snapshots(info.id)
        assert forked.inventory == "not taken: a snapshot for a fork has none"
        with pytest.raises(NotFound, match="for a fork has none"):
            await world.engine.snapshot_inventory(forked.id)

    play(scene)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (GuestFailed("no such luck"), "not taken: no such luck"),
        (RuntimeError("a fault of ours"), "not taken: RuntimeError('a fault of ours')"),
        (TimeoutError(), "not taken: the machine took longer than 12 s"),
    ],
)
def test_a_failure_is_said_in_the_snapshot(play: Play, failure: Exception, told: str) -> None:
    async def scene(world: World) -> None:
        _taking(world, failure)
        info = await world.create()
        taken = await world.engine.snapshot(info.id)
        assert taken.inventory == told
        assert not (_folder(world, taken.id) / INVENTORY).exists()
        with pytest.raises(NotFound, match="has no inventory"):
            await world.engine.snapshot_inventory(taken.id)
        assert await world.engine.verify_snapshot(taken.id) == ()
        await world.engine.pause(info.id)
        assert (
            await world.engine.snapshot(info.id)
        ).inventory == "not taken: the sandbox was paused"

    play(scene)


def test_a_machine_that_hangs_is_not_waited_for(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventories, "LIMIT_S", 0.05)

    async def scene(world: World) -> None:
        async def take(_: Any) -> Inventory:
            await asyncio.Event().wait()
            raise AssertionError

        world.engine._parts.take_inventory = take
        info = await world.create()
        taken = await world.engine.snapshot(info.id)
        assert taken.inventory == "not taken: the machine took longer than 0.05 s"

    play(scene)


def test_what_was_cut_short_is_said(play: Play) -> None:
    async def scene(world: World) -> None:
        cut = replace(section(entry("a")), is_complete=False, notes=("x", "it took too long"))
        _taking(world, inventory({"skills": cut}))
        info = await world.create()
        taken = await world.engine.snapshot(info.id)
        assert taken.inventory == "incomplete: skills: it took too long"
        assert not (await world.engine.snapshot_inventory(taken.id)).is_complete

    play(scene)


def test_a_manifest_of_before_has_none(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        taken = await world.engine.snapshot(info.id)
        assert taken.inventory == "not taken: this engine takes none"
        path = _folder(world, taken.id) / MANIFEST
        raw = json.loads(path.read_text())
        raw["inventory"] = None
        from torpor.layers.manifest import _checksum

        raw["checksum"] = _checksum({k: v for k, v in raw.items() if k != "checksum"})
        path.chmod(0o600)
        path.write_text(json.dumps(raw))
        found = read_manifest(path.parent)
        assert found.info.inventory == "not taken: by an earlier version"
        assert not found.inventory.is_there

    play(scene)

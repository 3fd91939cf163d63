"""RAM images are a cache: made when missing, removed when space is short."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.unit.layers.shelf import Shelf
from torpor.errors import DataDamaged, InsufficientResources
from torpor.layers import images as module
from torpor.layers.manifest import Manifest
from torpor.layers.store import Needed


def _made(shelf: Shelf, count: int) -> list[Manifest]:
    found = [shelf.snapshot([], [shelf.ram({0: n + 1})]) for n in range(count)]
    for manifest in found:
        shelf.store.image(manifest)
    return found


def test_the_longest_unused_goes_first_and_no_more_than_needed(shelf: Shelf) -> None:
    one, two, three = _made(shelf, 3)
    shelf.store.image(one)  # is used again
    images = shelf.store.images
    assert images.made() == [two.info.id, three.info.id, one.info.id]
    assert images.evict(1, lambda: ((), ())) > 0
    assert images.made() == [three.info.id, one.info.id]
    assert shelf.store.image(two).exists(), "it is made again"
    for age, manifest in ((1, two), (2, three), (3, one)):
        os.utime(images.path(manifest.info.id), (age, age))
    assert shelf.again().images.made() == [two.info.id, three.info.id, one.info.id]


def test_what_machines_map_or_may_want_soon_stays(shelf: Shelf) -> None:
    mapped, young, old, free = _made(shelf, 4)
    os.utime(shelf.store.images.path(old.info.id), (1, 1))
    asleep = {young.info.id, old.info.id}
    shelf.store.images.evict(1 << 40, lambda: ({mapped.info.id}, asleep))
    assert set(shelf.store.images.made()) == {mapped.info.id, young.info.id}
    assert free.info.id not in shelf.store.images.made()


def test_another_boots_images_and_half_made_ones_go(shelf: Shelf) -> None:
    (one,) = _made(shelf, 1)
    half = shelf.home.images / "snap_x.tmp"
    half.touch()
    shelf.store.collect(lambda: Needed([]))
    assert not half.exists()
    assert shelf.store.images.made() == [one.info.id]
    (shelf.home.images / "boot_id").write_text("another")
    assert shelf.again().images.made() == []


def test_those_of_snapshots_that_are_gone_stay_while_mapped(shelf: Shelf) -> None:
    (one,) = _made(shelf, 1)
    shelf.store.remove(one.info.id)
    shelf.store.collect(lambda: Needed([], [one.info.id]))
    assert shelf.store.images.made() == [one.info.id]
    (use,) = shelf.store.image_uses([("sbx_1", one.info.id), ("sbx_2", None)])
    assert (use.kind, use.id, use.snapshots, use.sandboxes) == (
        "image",
        one.info.id,
        (),
        ("sbx_1",),
    )
    assert use.size_bytes > 0
    shelf.store.collect(lambda: Needed([]))
    assert shelf.store.images.made() == []


def test_a_full_disk_and_a_missing_layer_are_told_apart(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = shelf.snapshot([], [shelf.ram({0: 1})])

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "compose", full)
    with pytest.raises(InsufficientResources, match="RAM image"):
        shelf.store.image(manifest)
    monkeypatch.undo()
    shelf.store.ram_path(manifest.ram[0].id).unlink()
    with pytest.raises(DataDamaged, match="is missing"):
        shelf.store.image(manifest)

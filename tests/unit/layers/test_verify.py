"""A flipped bit is found in whatever file it is; so is one that is missing or cut off."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.layers.shelf import Shelf
from torpor.layers.manifest import Manifest
from torpor.layers.merges import Merged
from torpor.layers.ram_merge import merge
from torpor.layers.store import LayerStore

KINDS = ["disk", "ram", "merged", "devices", "manifest", "image"]


def _snapshot(shelf: Shelf) -> tuple[Manifest, dict[str, tuple[Path, str]]]:
    """Return a snapshot with a file of every kind, and where each is and what it is called."""
    rams = [shelf.ram({0: 1, 2: 0}), shelf.ram({1: 2}), shelf.ram({1: 3, 5: 5})]
    disk = shelf.disk(random.Random(1).randbytes(5000))
    manifest = shelf.snapshot([disk], rams, label="x")
    out = shelf.store.ram_path("lyr_merged")
    merge([shelf.store.ram_path(ref.id) for ref in rams[:2]], out)
    ref = shelf.store.ref("lyr_merged", out)
    shelf.store.add_merged(Merged(ref, "ram", tuple(r.id for r in rams[:2])))
    folder = shelf.store.folder(manifest.info.id)
    return manifest, {
        "disk": (shelf.store.disk_path(disk.id), disk.id),
        "ram": (shelf.store.ram_path(rams[2].id), rams[2].id),
        "merged": (out, "lyr_merged"),
        "devices": (folder / "devices", "devices"),
        "manifest": (folder / "manifest.json", "manifest"),
        "image": (shelf.store.image(manifest), "image"),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit(shelf: Shelf, kind: str) -> None:
    manifest, files = _snapshot(shelf)
    assert shelf.store.verify(manifest.info.id) == []
    path, name = files[kind]
    path.chmod(0o600)
    good = path.read_bytes()
    chooser = random.Random(len(good))
    for _ in range(30):
        bad = bytearray(good)
        bad[chooser.randrange(len(bad))] ^= 1 << chooser.randrange(8)
        path.write_bytes(bytes(bad))
        (damage,) = shelf.store.verify(manifest.info.id)
        assert (damage.layer, damage.dependents) == (name, (manifest.info.id,))
    path.write_bytes(good)
    assert shelf.store.verify(manifest.info.id) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_and_a_cut_off_file(shelf: Shelf, kind: str) -> None:
    manifest, files = _snapshot(shelf)
    path, name = files[kind]
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-2])
    (damage,) = shelf.store.verify(manifest.info.id)
    assert damage.layer == name
    path.unlink()
    found = shelf.store.verify(manifest.info.id, mapped=[manifest.info.id])
    assert [d.layer for d in found] == [name]
    assert "missing" in found[0].problem
    if kind == "image":
        assert shelf.store.verify(manifest.info.id) == [], "one that no machine maps is made again"


def test_a_flipped_bit_in_a_manifest_is_found_by_the_next_daemon(shelf: Shelf) -> None:
    manifest, files = _snapshot(shelf)
    path, _ = files["manifest"]
    path.chmod(0o600)
    good = path.read_bytes()
    chooser = random.Random(5)
    for _ in range(40):
        bad = bytearray(good)
        bad[chooser.randrange(len(bad))] ^= 1 << chooser.randrange(8)
        path.write_bytes(bytes(bad))
        store = LayerStore(shelf.home)
        assert len(store.load()) == 1
        assert store.snapshots() == []
    path.write_bytes(good)
    assert shelf.again().get(manifest.info.id) == manifest


def test_all_that_need_a_damaged_layer_are_named(shelf: Shelf) -> None:
    shared, own = shelf.ram({0: 1}), shelf.ram({1: 1})
    one, two = shelf.snapshot([], [shared]), shelf.snapshot([], [shared, own])
    shelf.store.ram_path(shared.id).unlink()
    (damage,) = shelf.store.verify(one.info.id)
    assert set(damage.dependents) == {one.info.id, two.info.id}

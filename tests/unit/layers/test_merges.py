"""Notes of merged layers: what they stand for, through merges of merges, restarts and collection."""

from __future__ import annotations

import shutil

import pytest

from tests.unit.layers.shelf import Shelf, memory
from torpor.base.ids import new_id
from torpor.errors import DataDamaged, InsufficientResources
from torpor.layers import merges as module
from torpor.layers.manifest import LayerRef
from torpor.layers.merges import Merged
from torpor.layers.ram_merge import merge
from torpor.layers.store import LayerStore, Needed


def _merge(shelf: Shelf, run: list[LayerRef]) -> LayerRef:
    layer = new_id("lyr")
    out = shelf.store.ram_path(layer)
    merge([shelf.store.ram_path(ref.id) for ref in run], out)
    ref = shelf.store.ref(layer, out)
    first = shelf.store.merges.first_layers(r.id for r in run)
    shelf.store.add_merged(Merged(ref, "ram", first))
    return ref


def test_it_takes_the_place_of_what_it_stands_for(shelf: Shelf) -> None:
    a, b, c, d = (shelf.ram({n: n + 1}) for n in range(4))
    short, long = shelf.snapshot([], [a, b]), shelf.snapshot([], [a, b, c, d])
    other = shelf.snapshot([], [a, c])
    merged = _merge(shelf, [b, c])
    for store in (shelf.store, shelf.again()):
        assert store.shortened(long).ram == (a, merged, d)
        assert store.shortened(short) == short
        assert store.shortened(other) == other, "side by side in that order, or not at all"
        assert store.get(long.info.id) == long, "the manifest itself never changes"
        assert store.verify(long.info.id) == []
        assert store.image(long).read_bytes() == memory({0: 1}, {1: 2}, {2: 3}, {3: 4})
        store.images.evict(1 << 40, lambda: ((), ()))


def test_merged_layers_are_merged_again_and_stand_for_first_layers(shelf: Shelf) -> None:
    refs = [shelf.ram({n: n + 1}) for n in range(6)]
    old = shelf.snapshot([], refs)
    one = _merge(shelf, refs[:3])
    assert shelf.store.shortened(old).ram == (one, *refs[3:])
    # a machine that began after the first merge names it
    newer = shelf.snapshot([], [one, *refs[3:], shelf.ram({7: 9})])
    two = _merge(shelf, [one, *refs[3:5]])
    assert shelf.store.merges.first_layers([two.id]) == tuple(ref.id for ref in refs[:5])
    for store in (shelf.store, shelf.again()):
        assert store.shortened(old).ram == (two, refs[5])
        assert store.shortened(newer).ram == (two, refs[5], newer.ram[-1])
        assert store.verify(newer.info.id) == []
    shelf.store.collect(lambda: Needed([]))
    kept = {ref.id for ref in (two, refs[5], newer.ram[-1])}
    assert {name.partition(".")[0] for name in shelf.files() if name.endswith(".ram")} == kept
    assert f"{one.id}.merged" in shelf.files(), (
        "a manifest names it: what it stood for is still asked"
    )
    store = shelf.again()
    assert store.shortened(newer).ram == (two, refs[5], newer.ram[-1])
    assert store.image(newer).read_bytes() == memory(*({n: n + 1} for n in range(6)), {7: 9})
    store.remove(newer.info.id)
    store.collect(lambda: Needed([]))
    assert f"{one.id}.merged" not in shelf.files()
    store.remove(old.info.id)
    store.collect(lambda: Needed([]))
    assert shelf.files() == set()


def test_layers_that_somebody_still_needs_stay(shelf: Shelf) -> None:
    a, b, c = (shelf.ram({n: n + 1}) for n in range(3))
    prefix, whole = shelf.snapshot([], [a]), shelf.snapshot([], [a, b, c])
    _merge(shelf, [a, b, c])
    shelf.store.collect(lambda: Needed([b.id]))  # a machine runs on it
    ids = {name.partition(".")[0] for name in shelf.files()}
    assert {a.id, b.id} <= ids
    assert c.id not in ids
    assert shelf.store.verify(prefix.info.id) == []
    assert shelf.store.verify(whole.info.id) == []


def test_an_image_is_made_over_the_nearest_that_can_be(shelf: Shelf) -> None:
    refs = [shelf.ram({n: n + 1}) for n in range(4)]
    below, above = shelf.snapshot([], refs[:1]), shelf.snapshot([], refs)
    base = shelf.store.image(below)
    assert shelf.store._recipe(above).base == base
    merged = _merge(shelf, refs)
    assert len(shelf.store._recipe(above).layers) == 1
    want = memory(*({n: n + 1} for n in range(4)))
    shelf.store.collect(lambda: Needed([]))  # layers 1 to 3 are gone: only the merged one has them
    assert shelf.store.shortened(above).ram == (merged,)
    assert shelf.store._recipe(above).base is None
    assert shelf.store.image(above).read_bytes() == want


@pytest.mark.parametrize("name", ["kind", "replaces", "sha256", "format", "checksum"])
def test_a_damaged_note_is_none(shelf: Shelf, name: str) -> None:
    a, b = shelf.ram({0: 1}), shelf.ram({1: 1})
    manifest = shelf.snapshot([], [a, b])
    merged = _merge(shelf, [a, b])
    path = shelf.store.merges.path(merged.id)
    path.chmod(0o600)
    path.write_text(path.read_text().replace(f'"{name}"', f'"{name}x"'))
    store = LayerStore(shelf.home)
    (problem,) = store.load()
    assert isinstance(problem, DataDamaged)
    assert store.shortened(manifest) == manifest
    store.collect(lambda: Needed([]))
    assert store.verify(manifest.info.id) == []
    assert not path.exists()


def test_a_note_under_another_name_is_none(shelf: Shelf) -> None:
    a, b = shelf.ram({0: 1}), shelf.ram({1: 1})
    shelf.snapshot([], [a, b])
    merged = _merge(shelf, [a, b])
    path = shelf.store.merges.path(merged.id)
    shutil.copy(path, shelf.store.merges.path(a.id))
    store = LayerStore(shelf.home)
    (problem,) = store.load()
    assert "not what was written" in str(problem)


def test_a_layer_whose_file_is_gone_stands_for_nothing(shelf: Shelf) -> None:
    a, b = shelf.ram({0: 1}), shelf.ram({1: 1})
    manifest = shelf.snapshot([], [a, b])
    merged = _merge(shelf, [a, b])
    shelf.store.ram_path(merged.id).unlink()
    assert shelf.again().shortened(manifest) == manifest


def test_a_note_that_cannot_be_written_says_so(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = shelf.ram({0: 1}), shelf.ram({1: 1})
    manifest = shelf.snapshot([], [a, b])

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr(module, "write_json", full)
    with pytest.raises(InsufficientResources):
        _merge(shelf, [a, b])
    assert shelf.store.shortened(manifest) == manifest
    shelf.store.collect(lambda: Needed([]))
    assert len(shelf.files()) == 4

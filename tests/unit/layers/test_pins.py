"""What is held is not collected, whenever it was taken hold of."""

from __future__ import annotations

from tests.unit.layers.shelf import Shelf
from torpor.layers.pins import Pins
from torpor.layers.store import Needed


def test_held_as_often_as_it_was_taken() -> None:
    pins, done = Pins(), list[str]()
    with pins.held("a", "b"):
        with pins.held("a"):
            assert pins.now == {"a", "b"}
        assert not pins.if_free("a", lambda: done.append("a"))
    assert pins.now == frozenset()
    assert pins.if_free("a", lambda: done.append("a"))
    assert done == ["a"]


def test_what_is_held_after_the_collection_began_stays(shelf: Shelf) -> None:
    ref = shelf.disk()
    needed = shelf.store.pins.now  # asked before
    with shelf.store.pins.held(ref.id):
        shelf.store.collect(lambda: Needed(needed))
        assert shelf.store.disk_path(ref.id).exists()
    shelf.store.collect(lambda: Needed(needed))
    assert shelf.files() == set()


def test_what_a_crash_left_half_removed_is_removed(shelf: Shelf) -> None:
    (shelf.home.layers / ".lyr_x.qcow2").touch()
    shelf.again()
    assert shelf.files() == set()

"""The notes beside layers: a damaged one is not believed, and stops nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.layers.shelf import Shelf
from torpor.errors import DataDamaged, NotFound
from torpor.layers.digests import read_note, write_note
from torpor.layers.manifest import LayerRef


def _other_digest(note: Path) -> None:
    body = json.loads(note.read_text())
    note.unlink()
    note.write_text(json.dumps(body | {"sha256": "0" * 64}))


def _no_checksum(note: Path) -> None:
    body = json.loads(note.read_text())
    del body["checksum"]
    note.unlink()
    note.write_text(json.dumps(body))


def _no_json(note: Path) -> None:
    note.unlink()
    note.write_bytes(b"\xff{")


def _a_list(note: Path) -> None:
    note.unlink()
    note.write_text("[]")


def _deep(note: Path) -> None:
    note.unlink()
    note.write_text("[" * 4000)


HARMS = [_other_digest, _no_checksum, _no_json, _a_list, _deep]


def test_a_note_says_what_was_written_and_nothing_of_another_layer(tmp_path: Path) -> None:
    note = tmp_path / "lyr_a.sum"
    with pytest.raises(NotFound):
        read_note(note, "lyr_a")
    written = LayerRef("lyr_a", 7, "1" * 64)
    write_note(note, written)
    assert read_note(note, "lyr_a") == written
    with pytest.raises(DataDamaged, match=r"lyr_a\.sum"):
        read_note(note, "lyr_b")


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_note_is_written_again_from_the_layer(
    shelf: Shelf, harm: Callable[[Path], None]
) -> None:
    layer = shelf.disk()
    path = shelf.store.disk_path(layer.id)
    written = shelf.store.ref(layer.id, path)
    note = path.with_suffix(".sum")
    harm(note)
    with pytest.raises(DataDamaged):
        read_note(note, layer.id)
    assert shelf.store.ref(layer.id, path) == written
    assert read_note(note, layer.id) == written


@pytest.mark.parametrize("harm", HARMS)
def test_a_manifest_knows_better_than_a_layer_whose_note_is_damaged(
    shelf: Shelf, harm: Callable[[Path], None]
) -> None:
    layer = shelf.disk()
    path = shelf.store.disk_path(layer.id)
    written = shelf.store.ref(layer.id, path)
    snapshot = shelf.snapshot([written], [shelf.ram({0: 1})])
    harm(path.with_suffix(".sum"))
    path.unlink()
    path.write_bytes(b"damaged, too")
    assert shelf.store.ref(layer.id, path) == written, "the damage would be in the next manifest"
    assert [found.layer for found in shelf.store.verify(snapshot.info.id)] == [layer.id]

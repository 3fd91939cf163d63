"""A machine that is captured again and again while its layers are merged: the layers always make its memory."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.unit.layers.shelf import PAGES, Shelf
from torpor.base.ids import new_id
from torpor.db.sandboxes import MachineLayers
from torpor.layers.merges import Merged
from torpor.layers.ram import PAGE, RamLayerWriter, compose
from torpor.layers.ram_merge import merge


def _capture(path: Path, memory: bytearray, changed: set[int], previous: list[Path]) -> None:
    with RamLayerWriter(path, PAGES * PAGE, previous) as writer:
        for page in sorted(changed):
            writer.add(np.array([page]), memoryview(bytes(memory[page * PAGE : (page + 1) * PAGE])))
        writer.finish()


@pytest.mark.parametrize("seed", range(12))
def test_the_chain_makes_the_memory(shelf: Shelf, tmp_path: Path, seed: int) -> None:
    chooser, store = random.Random(seed), shelf.store
    memory, changed = bytearray(PAGES * PAGE), set[int]()
    layers = MachineLayers()
    for step in range(30):
        for _ in range(chooser.randrange(4)):
            page = chooser.randrange(PAGES)
            memory[page * PAGE : (page + 1) * PAGE] = bytes([chooser.randrange(3)]) * PAGE
            changed.add(page)
        layers = layers.shortened(store.merges)
        assert layers.ram[len(layers.ram) - len(layers.session) :] == layers.session
        layer = new_id("lyr")
        _capture(
            store.ram_path(layer), memory, changed, [store.ram_path(one) for one in layers.session]
        )
        layers = MachineLayers(ram=(*layers.ram, layer), session=(*layers.session, layer))
        image = tmp_path / f"image{step}"
        compose([store.ram_path(one) for one in layers.ram], image)
        assert image.read_bytes() == bytes(memory)
        if chooser.random() < 0.2:  # it sleeps and wakes
            layers, changed = MachineLayers(ram=layers.ram), set()
        if len(layers.ram) > 2 and chooser.random() < 0.4:
            start = chooser.randrange(2)
            run = layers.ram[start : start + chooser.randrange(2, len(layers.ram))]
            out = new_id("lyr")
            merge([store.ram_path(one) for one in run], store.ram_path(out))
            ref = store.ref(out, store.ram_path(out))
            store.add_merged(Merged(ref, "ram", store.merges.first_layers(run)))

"""Layers over layers give the memory that was written, whatever was written."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.errors import DataDamaged
from torpor.layers.ram import PAGE, RamLayerWriter, compose, read_layer

PAGES = 24

contents = st.sampled_from([b"\0", b"a", b"b", b"c"])
generation = st.dictionaries(st.integers(0, PAGES - 1), contents, max_size=PAGES)


def _page(letter: bytes) -> bytes:
    return letter * PAGE


def _add(writer: RamLayerWriter, pages: list[int], content: list[bytes]) -> None:
    writer.add(np.array(pages, dtype=np.int64), memoryview(b"".join(content)))


def _write(path: Path, changes: dict[int, bytes]) -> None:
    with RamLayerWriter(path, PAGES * PAGE) as writer:
        numbers = sorted(changes)
        for begin in range(0, len(numbers), 5):
            some = numbers[begin : begin + 5]
            _add(writer, some, [_page(changes[n]) for n in some])
        writer.finish()


@settings(max_examples=60)
@given(st.lists(generation, min_size=1, max_size=4), st.integers(0, 3))
def test_composed_image_is_the_memory_that_was(
    generations: list[dict[int, bytes]], cut: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        memory = [_page(b"\0")] * PAGES
        layers = []
        for number, changes in enumerate(generations):
            path = folder / f"{number}.ram"
            _write(path, changes)
            layers.append(path)
            for page, letter in changes.items():
                memory[page] = _page(letter)
            stored = read_layer(path)
            assert stored.data_pages == sum(letter != b"\0" for letter in changes.values())
        compose(layers, folder / "all")
        assert (folder / "all").read_bytes() == b"".join(memory)

        cut = min(cut, len(layers) - 1)
        if cut:  # in two steps, over an image made before
            compose(layers[:cut], folder / "lower")
            lower = (folder / "lower").read_bytes()
            compose(layers[cut:], folder / "upper", base=folder / "lower")
            assert (folder / "upper").read_bytes() == b"".join(memory)
            assert (folder / "lower").read_bytes() == lower, (
                "an image that others map must not change"
            )


@settings(max_examples=60)
@given(st.lists(generation, min_size=2, max_size=4))
def test_a_session_writes_each_change_once(generations: list[dict[int, bytes]]) -> None:
    """A machine that goes on shows all it changed since its start; only what is new is written."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        memory = [_page(b"\0")] * PAGES
        seen: dict[int, bytes] = {}
        layers: list[Path] = []
        for number, changes in enumerate(generations):
            before = list(memory)
            for page, letter in changes.items():
                memory[page] = _page(letter)
            new = {n for n in {*seen, *changes} if n not in seen or before[n] != memory[n]}
            seen.update(changes)
            path = folder / f"{number}.ram"
            with RamLayerWriter(path, PAGES * PAGE, layers) as writer:
                _add(writer, sorted(seen), [memory[page] for page in sorted(seen)])
                written = writer.finish()
            layers.append(path)
            assert sum(run.pages for run in written.runs) == len(new)
            compose(layers, folder / f"{number}.img")
            assert (folder / f"{number}.img").read_bytes() == b"".join(memory)


@settings(max_examples=80)
@given(st.data())
def test_damage_is_found_or_harmless(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "x.ram"
        _write(path, {1: b"a", 2: b"\0", 9: b"b"})
        good = path.read_bytes()
        at = data.draw(st.integers(0, len(good) - 1))
        if data.draw(st.booleans()):
            path.write_bytes(good[:at])
        else:
            path.write_bytes(
                good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
            )
        try:
            layer = read_layer(path)
            compose([path], Path(name) / "image")
        except DataDamaged:
            assert not (Path(name) / "image").exists()
        else:  # the damage is inside a page (found by the digest) or in the header's padding
            assert layer.ram_bytes == PAGES * PAGE


def test_a_layer_that_was_not_finished_leaves_no_file(tmp_path: Path) -> None:
    with RamLayerWriter(tmp_path / "x", PAGE) as writer:
        _add(writer, [0], [_page(b"a")])
    assert list(tmp_path.iterdir()) == []


def test_layers_of_different_machines_are_not_mixed(tmp_path: Path) -> None:
    for name, pages in (("a", 1), ("b", 2)):
        with RamLayerWriter(tmp_path / name, pages * PAGE) as writer:
            writer.finish()
    with pytest.raises(DataDamaged, match="different sizes"):
        compose([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_writers_refuse_what_would_not_be_a_layer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="whole pages"):
        RamLayerWriter(tmp_path / "x", 5)
    for pages in ([2, 2], [4]):
        with RamLayerWriter(tmp_path / "x", 4 * PAGE) as writer:
            _add(writer, pages, [_page(b"a")] * len(pages))
            with pytest.raises(ValueError, match="twice, or is beyond"):
                writer.finish()
    assert list(tmp_path.iterdir()) == []

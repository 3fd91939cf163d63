"""One RAM layer of many: it holds the same, and is none if it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.layers.shelf import PAGES, Pages, memory, write_ram
from torpor.errors import DataDamaged
from torpor.layers import ram_merge as module
from torpor.layers.ram import PAGE, RamLayerWriter, compose, read_layer
from torpor.layers.ram_merge import is_image_of, main, merge, merge_apart

Chain = list[dict[int, int]]
CHAINS = st.lists(
    st.dictionaries(st.integers(0, PAGES - 1), st.integers(0, 3), max_size=6),
    min_size=1,
    max_size=6,
)
"""Layers; a byte of 0 is a page of zeros, which takes no place in a layer."""


def _written(folder: Path, chain: list[Pages] | Chain) -> list[Path]:
    paths = []
    for number, pages in enumerate(chain):
        paths.append(folder / f"{number}.ram")
        write_ram(paths[-1], pages)
    return paths


@settings(deadline=None, max_examples=40)
@given(chain=CHAINS, below=CHAINS)
def test_what_it_holds_is_what_the_layers_hold(
    tmp_path_factory: pytest.TempPathFactory, chain: Chain, below: Chain
) -> None:
    folder = tmp_path_factory.mktemp("chain")
    paths = _written(folder, below + chain)
    out = folder / "out.ram"
    merge(paths[len(below) :], out)
    merged = read_layer(out)
    held = {page for layer in chain for page in layer}
    assert sum(run.pages for run in merged.runs) == len(held)
    for name, layers in (("one", paths), ("two", [*paths[: len(below)], out])):
        compose(layers, folder / name)
        assert (folder / name).read_bytes() == memory(*below, *chain)
        assert is_image_of(layers, folder / name)
        assert is_image_of(paths, folder / name)


def test_it_can_be_done_apart_and_says_why_it_cannot(tmp_path: Path) -> None:
    paths = _written(tmp_path, [{0: 1, 1: 2}, {1: 3}])
    out = tmp_path / "out.ram"
    asyncio.run(merge_apart(paths, out))
    compose([out], tmp_path / "image")
    assert (tmp_path / "image").read_bytes() == memory({0: 1, 1: 3})
    out.unlink()
    paths[1].write_bytes(b"rubbish")
    with pytest.raises(DataDamaged, match="no RAM layer"):
        asyncio.run(merge_apart(paths, out))
    assert not out.exists()
    write_ram(tmp_path / "other", {0: 1}, total=PAGES * 2)
    assert main([str(out), str(paths[0]), str(tmp_path / "other")]) == DataDamaged.exit_code
    assert not out.exists()


def test_a_merge_that_is_broken_off_leaves_nothing(tmp_path: Path) -> None:
    paths = _written(tmp_path, [{0: 1}, {1: 3}])
    out = tmp_path / "out.ram"

    async def broken_off() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await merge_apart(paths, out)

    asyncio.run(broken_off())
    assert not out.exists()


def test_a_copy_that_is_not_the_same_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = _written(tmp_path, [{0: 1}, {1: 3}])

    class Lossy(RamLayerWriter):
        def add(self, pages, data):  # type: ignore[no-untyped-def]
            super().add(pages, memoryview(bytes(data).replace(b"\x03", b"\x02")))

    monkeypatch.setattr(module, "RamLayerWriter", Lossy)
    with pytest.raises(DataDamaged, match="does not hold what"):
        merge(paths, tmp_path / "out.ram")
    assert not (tmp_path / "out.ram").exists()


def test_an_image_with_one_flipped_bit_is_found(tmp_path: Path) -> None:
    chain = [{0: 1, 3: 0}, {5: 2}]
    paths = _written(tmp_path, chain)
    image = tmp_path / "image"
    for page in range(PAGES):  # held, zero, and in no layer at all
        data = bytearray(memory(*chain))
        data[page * PAGE + 77] ^= 16
        image.write_bytes(bytes(data))
        assert not is_image_of(paths, image)
    image.write_bytes(memory(*chain)[:-PAGE])
    assert not is_image_of(paths, image)

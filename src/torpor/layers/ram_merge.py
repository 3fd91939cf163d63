"""Making one RAM layer of many, and comparing what layers and images hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from torpor.errors import DataDamaged
from torpor.layers.ram import PAGE, KnownPages, RamLayer, RamLayerWriter, read_layer

_PAGES = 1024
"""Pages that are read and written at a time: 4 MiB."""


def merge(layers: Sequence[Path], out: Path, *, go_on: Callable[[], None] = lambda: None) -> None:
    """Write to `out` (new) one layer that holds what `layers`, the oldest first, hold together; durable.

    `go_on` is called now and then; what it raises ends the work. On any failure `out` is gone.

    Raises:
        DataDamaged: a layer is damaged, the layers are of different machines, or the copy is not equal.
        OSError: a layer is missing, or the disk is full.
    """
    ram_bytes = _size(layers)
    with _known(layers, ram_bytes) as known, RamLayerWriter(out, ram_bytes) as writer:
        held = known.held
        for begin in range(0, len(held), _PAGES):
            go_on()
            pages = held[begin : begin + _PAGES]
            writer.add(pages, memoryview(known.read(pages)).cast("B"))
        written = writer.finish()
        go_on()
        if not _holds_the_same(known, written, go_on):
            out.unlink()
            raise DataDamaged(f"{out} does not hold what its {len(layers)} layers hold", path=out)


def is_image_of(layers: Sequence[Path], image: Path) -> bool:
    """Return whether a RAM image is what `layers`, the oldest first, make.

    Raises:
        DataDamaged: a layer is damaged.
        OSError: a file is missing or cannot be read.
    """
    ram_bytes = _size(layers)
    if image.stat().st_size != ram_bytes:
        return False
    with _known(layers, ram_bytes) as known, image.open("rb") as file:
        for begin in range(0, ram_bytes // PAGE, _PAGES):
            words = np.frombuffer(file.read(_PAGES * PAGE), dtype=np.uint64).reshape(-1, PAGE // 8)
            pages = np.arange(begin, begin + len(words))
            filled = words.any(axis=1)
            if not (known.same(pages, words, filled) | (~filled & ~known.holds(pages))).all():
                return False
    return True


def _holds_the_same(known: KnownPages, written: RamLayer, go_on: Callable[[], None]) -> bool:
    with _known((written.path,), written.ram_bytes) as copy:
        held = known.held
        if not np.array_equal(held, copy.held):
            return False
        for begin in range(0, len(held), _PAGES):
            go_on()
            pages = held[begin : begin + _PAGES]
            words = copy.read(pages)
            if not known.same(pages, words, words.any(axis=1)).all():
                return False
    return True


def _size(layers: Sequence[Path]) -> int:
    sizes = {read_layer(path).ram_bytes for path in layers}
    if len(sizes) != 1:
        raise DataDamaged(f"the layers {layers} are of different sizes of RAM: {sorted(sizes)}")
    return sizes.pop()


@contextlib.contextmanager
def _known(layers: Sequence[Path], ram_bytes: int) -> Iterator[KnownPages]:
    known = KnownPages(layers, ram_bytes // PAGE)
    try:
        yield known
    finally:
        known.close()

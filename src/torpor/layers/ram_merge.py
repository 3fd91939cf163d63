"""Making one RAM layer of many, and comparing what layers and images hold.

`python -m torpor.layers.ram_merge OUT LAYER...` is how the daemon does the first, in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import torpor
from torpor.base.proc import HostCommandFailed, run, safe_env
from torpor.errors import DataDamaged, InsufficientResources, TorporError
from torpor.layers.lowly import lowly
from torpor.layers.ram import PAGE, KnownPages, RamLayer, RamLayerWriter, read_layer
from torpor.layers.space import full_disk_told

_MERGE_S = 6 * 3600.0
_PAGES = 1024
"""Pages that are read and written at a time: 4 MiB."""


def merge(layers: Sequence[Path], out: Path) -> None:
    """Write to `out` (new) one layer that holds what `layers`, the oldest first, hold together; durable.

    It is read again and compared. On any failure `out` is gone.

    Raises:
        DataDamaged: a layer is damaged, the layers are of different machines, or the copy is not equal.
        OSError: a layer is missing, or the disk is full.
    """
    ram_bytes = _size(layers)
    with _known(layers, ram_bytes) as known, RamLayerWriter(out, ram_bytes) as writer:
        held = known.held
        for begin in range(0, len(held), _PAGES):
            pages = held[begin : begin + _PAGES]
            writer.add(pages, memoryview(known.read(pages)).cast("B"))
        written = writer.finish()
        if not _holds_the_same(known, written):
            out.unlink()
            raise DataDamaged(f"{out} does not hold what its {len(layers)} layers hold", path=out)


async def merge_apart(layers: Sequence[Path], out: Path) -> None:
    """Do `merge` in a process of its own, at the lowest priority; cancellation ends it. `out` is new.

    Raises:
        DataDamaged, InsufficientResources: as `merge`.
        HostCommandFailed: it ended otherwise.
    """
    source = str(Path(torpor.__file__).parent.parent)
    argv = [sys.executable, "-m", __name__, str(out), *map(str, layers)]
    try:
        await run(
            lowly(argv), timeout_s=_MERGE_S, cwd=out.parent, env=safe_env({"PYTHONPATH": source})
        )
    except BaseException as exc:
        await asyncio.to_thread(out.unlink, missing_ok=True)
        if isinstance(exc, HostCommandFailed):
            for kind in (DataDamaged, InsufficientResources):
                if exc.facts.get("status") == kind.exit_code:
                    raise kind(f"merging RAM layers failed: {exc.facts.get('stderr')}") from exc
        raise


def main(argv: Sequence[str]) -> int:
    """Do `merge`; return the exit status, with the failure's words on stderr."""
    out, *layers = (Path(word) for word in argv)
    try:
        with full_disk_told(str(out)):
            merge(layers, out)
    except TorporError as exc:
        sys.stderr.write(exc.message)
        return exc.exit_code
    return 0


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


def _holds_the_same(known: KnownPages, written: RamLayer) -> bool:
    with _known((written.path,), written.ram_bytes) as copy:
        held = known.held
        if not np.array_equal(held, copy.held):
            return False
        for begin in range(0, len(held), _PAGES):
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""RAM layers: the pages of a machine's memory that changed since the layer below.

A layer is one file, written once: a header page, the changed pages packed together, then the index of runs
(docs/formats/ram-layer.md). Pages of zeros are named in the index and take no space. A RAM *image* is the whole
memory as a flat sparse file that a VMM can map; it is composed of layers and may be thrown away, since the
layers make it again.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torpor.base.fsio import clone_file, fsync_dir
from torpor.errors import DataDamaged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PAGE = 4096
_MAGIC = b"TORPRAM1"
_HEADER = struct.Struct("<8sIIQQQQ")
"""magic, version, page size, RAM bytes, data pages, runs, index offset; then the CRC-32 of this and the index."""
_CRC = struct.Struct("<I")
_RUN = struct.Struct("<QQQ")
"""first page, pages, place: the first data page, or `_ZEROS`."""
_VERSION = 1
_ZEROS = 2**64 - 1
_CHUNK_PAGES = 1024
_RUNS_MOST = 1 << 24
_PIECES_MOST = 1024
"""Pieces that one call of the kernel takes."""


@dataclass(frozen=True, slots=True)
class RamRun:
    """Pages that lie side by side in memory."""

    first_page: int
    pages: int
    place: int | None
    """Number of the first of its pages among the layer's data pages; None: all zeros."""


@dataclass(frozen=True, slots=True)
class RamLayer:
    """A layer's index, read and checked."""

    path: Path
    ram_bytes: int
    data_pages: int
    runs: tuple[RamRun, ...]


class RamLayerWriter:
    """Writes one layer; `finish` makes it whole, leaving the context without it removes the file.

    With `previous` layers (the oldest first), a page that the newest of them holding it holds as it is now is
    left out.
    """

    def __init__(self, path: Path, ram_bytes: int, previous: Sequence[Path] = ()) -> None:
        if ram_bytes % PAGE:
            raise ValueError(f"{ram_bytes} bytes of RAM are not whole pages")
        self._path = path
        self._ram_bytes = ram_bytes
        self._known = KnownPages(previous, ram_bytes // PAGE) if previous else None
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._data: list[NDArray[np.int64]] = []
        self._zeros: list[NDArray[np.int64]] = []
        self._data_pages = 0
        self._whole = False

    def __enter__(self) -> RamLayerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._known is not None:
            self._known.close()
        if not self._whole:
            self._path.unlink(missing_ok=True)

    def add(self, pages: NDArray[np.int64], data: memoryview) -> None:
        """Add whole pages: their numbers, and their content one behind the other. No page comes twice."""
        import numpy as np

        words = np.frombuffer(data, dtype=np.uint64).reshape(len(pages), PAGE // 8)
        filled = words.any(axis=1)
        new = np.ones(len(pages), dtype=np.bool_)
        if self._known is not None:
            new = ~self._known.same(pages, words, filled)
        kept = filled & new
        self._write_pages(data, kept)
        self._data.append(pages[kept])
        self._zeros.append(pages[~filled & new])

    def _write_pages(self, data: memoryview, kept: NDArray[np.bool_]) -> None:
        """Write the pages of `data` that are `kept` behind those before, straight from where they lie."""
        import numpy as np

        edges = np.flatnonzero(np.diff(np.concatenate(([False], kept, [False])))) * PAGE
        pieces = [data[a:b] for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)]
        for begin in range(0, len(pieces), _PIECES_MOST):
            some = pieces[begin : begin + _PIECES_MOST]
            size = sum(len(piece) for piece in some)
            offset = (1 + self._data_pages) * PAGE
            done = os.pwritev(self._fd, some, offset)
            if (
                done < size
            ):  # nearly full: the rest says it with an error, or goes through after all
                self._write(memoryview(b"".join(some))[done:], offset + done)
            self._data_pages += size // PAGE

    def finish(self, *, sync: bool = True) -> RamLayer:
        """Write index and header, in that order, and fsync unless `sync` is off (then the caller does)."""
        runs = self._runs()
        index = b"".join(
            _RUN.pack(run.first_page, run.pages, _ZEROS if run.place is None else run.place)
            for run in runs
        )
        offset = (1 + self._data_pages) * PAGE
        self._write(memoryview(index), offset)
        header = _HEADER.pack(
            _MAGIC, _VERSION, PAGE, self._ram_bytes, self._data_pages, len(runs), offset
        )
        header += _CRC.pack(zlib.crc32(index, zlib.crc32(header)))
        self._write(memoryview(header.ljust(PAGE, b"\0")), 0)
        if sync:
            os.fsync(self._fd)
        self._whole = True
        return RamLayer(self._path, self._ram_bytes, self._data_pages, runs)

    def _runs(self) -> tuple[RamRun, ...]:
        """Return what was added as runs in the order of memory."""
        import numpy as np

        data = np.concatenate([*self._data, np.empty(0, np.int64)])
        zeros = np.concatenate([*self._zeros, np.empty(0, np.int64)])
        pages = np.concatenate((data, zeros))
        places = np.concatenate((np.arange(len(data)), np.full(len(zeros), -1)))
        order = np.argsort(pages, kind="stable")
        pages, places = pages[order], places[order]
        if not len(pages):
            return ()
        if (np.diff(pages) == 0).any() or pages[-1] >= self._ram_bytes // PAGE:
            raise ValueError("a page was added twice, or is beyond the memory")
        both_zero = (places[1:] < 0) & (places[:-1] < 0)
        side_by_side = both_zero | ((places[:-1] >= 0) & (np.diff(places) == 1))
        starts = np.flatnonzero(np.concatenate(([True], (np.diff(pages) != 1) | ~side_by_side)))
        ends = np.append(starts[1:], len(pages))
        return tuple(
            RamRun(
                int(pages[start]),
                int(end - start),
                None if places[start] < 0 else int(places[start]),
            )
            for start, end in zip(starts, ends, strict=True)
        )

    def _write(self, data: memoryview, offset: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], offset + done)


class KnownPages:
    """What layers (the oldest first) hold of each page, the newest last word, to be compared with other content."""

    def __init__(self, layers: Sequence[Path], pages: int) -> None:
        import numpy as np

        self._maps: list[np.ndarray[tuple[int, int], np.dtype[np.uint64]]] = []
        self._layer = np.full(pages, -1, dtype=np.int16)  # -1: in none
        self._place = np.full(pages, -1, dtype=np.int64)  # -1: zeros
        for number, path in enumerate(layers):
            layer = read_layer(path)
            shape = (layer.data_pages, PAGE // 8)
            empty = np.empty(shape, dtype=np.uint64)
            self._maps.append(
                np.memmap(path, dtype=np.uint64, mode="r", offset=PAGE, shape=shape)
                if layer.data_pages
                else empty
            )
            for run in layer.runs:
                where = slice(run.first_page, run.first_page + run.pages)
                self._layer[where] = number
                self._place[where] = (
                    -1 if run.place is None else np.arange(run.place, run.place + run.pages)
                )

    @property
    def held(self) -> NDArray[np.int64]:
        """The numbers of the pages that a layer holds."""
        import numpy as np

        return np.flatnonzero(self._layer >= 0)

    def holds(self, pages: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each page whether a layer holds it."""
        found: NDArray[np.bool_] = self._layer[pages] >= 0
        return found

    def read(self, pages: NDArray[np.int64]) -> Any:
        """Return the content of pages that are held, as words: a row a page."""
        import numpy as np

        words = np.zeros((len(pages), PAGE // 8), dtype=np.uint64)
        layers, places = self._layer[pages], self._place[pages]
        for number, held in enumerate(self._maps):
            wanted = np.flatnonzero((layers == number) & (places >= 0))
            if len(wanted):
                words[wanted] = held[places[wanted]]
        return words

    def same(self, pages: NDArray[np.int64], words: Any, filled: Any) -> Any:
        """Return for each page whether the layers hold it as it is."""
        import numpy as np

        layers, places = self._layer[pages], self._place[pages]
        same = (layers >= 0) & (places < 0) & ~filled
        for number, held in enumerate(self._maps):
            candidates = np.flatnonzero((layers == number) & (places >= 0))
            if len(candidates):
                same[candidates] = (held[places[candidates]] == words[candidates]).all(axis=1)
        return same

    def close(self) -> None:
        """Let go of the layers' files."""
        self._maps.clear()


def read_layer(path: Path) -> RamLayer:
    """Return a layer's index.

    Raises:
        DataDamaged: it is no RAM layer, was cut off, or its index is not what was written.
    """
    with path.open("rb") as file:
        head = file.read(PAGE)
        if len(head) < PAGE or head[:8] != _MAGIC:
            raise DataDamaged(f"{path} is no RAM layer", path=path)
        _, version, page, ram_bytes, data_pages, count, offset = _HEADER.unpack_from(head)
        (crc,) = _CRC.unpack_from(head, _HEADER.size)
        if (version, page) != (_VERSION, PAGE):
            raise DataDamaged(
                f"{path} is a RAM layer of version {version} with pages of {page} bytes", path=path
            )
        if count > _RUNS_MOST or offset != (1 + data_pages) * PAGE:
            raise DataDamaged(f"{path} has a header that cannot be right", path=path)
        file.seek(offset)
        index = file.read(count * _RUN.size)
    if (
        len(index) != count * _RUN.size
        or zlib.crc32(index, zlib.crc32(head[: _HEADER.size])) != crc
    ):
        raise DataDamaged(f"{path} has a damaged index", path=path)
    runs = tuple(
        RamRun(first, pages, None if place == _ZEROS else place)
        for first, pages, place in _RUN.iter_unpack(index)
    )
    _check_runs(path, runs, ram_bytes // PAGE, data_pages)
    return RamLayer(path, ram_bytes, data_pages, runs)


def _check_runs(path: Path, runs: Iterable[RamRun], ram_pages: int, data_pages: int) -> None:
    at = 0
    for run in runs:
        good = run.first_page >= at and run.pages > 0 and run.first_page + run.pages <= ram_pages
        if run.place is not None:
            good = good and run.place + run.pages <= data_pages
        if not good:
            raise DataDamaged(f"{path} has a run that cannot be right", path=path)
        at = run.first_page + run.pages


def compose(layers: Sequence[Path], out: Path, *, base: Path | None = None) -> None:
    """Write the image that `layers` (oldest first) over the image `base` make; `out` must not exist.

    With reflink the base's blocks are shared; else its data is copied, holes left out. Not fsynced: an image can
    be made again. On failure `out` is removed.

    Raises:
        DataDamaged: a layer is damaged, or the layers are of different machines.
    """
    indexes = [read_layer(path) for path in layers]
    sizes = {layer.ram_bytes for layer in indexes}
    if len(sizes) != 1 or (base is not None and base.stat().st_size not in sizes):
        raise DataDamaged(
            f"the layers of {out} have different sizes of RAM: {sorted(sizes)}", path=out
        )
    try:
        if base is None:
            fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        else:
            clone_file(base, out)
            fd = os.open(out, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, sizes.pop())
            for layer in indexes:
                _apply(layer, fd)
        finally:
            os.close(fd)
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    fsync_dir(out.parent)


def _apply(layer: RamLayer, image: int) -> None:
    source = os.open(layer.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for run in layer.runs:
            if run.place is None:
                _punch(image, run.first_page * PAGE, run.pages * PAGE)
            else:
                _copy(
                    source,
                    (1 + run.place) * PAGE,
                    image,
                    run.first_page * PAGE,
                    run.pages * PAGE,
                    layer.path,
                )
    finally:
        os.close(source)


def _copy(source: int, source_at: int, target: int, target_at: int, count: int, path: Path) -> None:
    while count:
        data = os.pread(source, min(count, _CHUNK_PAGES * PAGE), source_at)
        if not data:
            raise DataDamaged(f"{path} was cut off", path=path)
        done = os.pwrite(target, data, target_at)
        source_at, target_at, count = source_at + done, target_at + done, count - done


def _punch(fd: int, offset: int, count: int) -> None:
    """Write zeros as a hole: a file cut to nothing there and grown again reads as zeros."""
    zeros = bytes(min(count, _CHUNK_PAGES * PAGE))
    at = offset
    while at < offset + count:
        try:
            hole = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # no data from here to the end: zeros already
            return
        at = max(at, hole - hole % PAGE)
        if at >= offset + count:
            return
        at += os.pwrite(fd, zeros[: min(len(zeros), offset + count - at)], at)

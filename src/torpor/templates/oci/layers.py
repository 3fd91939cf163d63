"""Layers out of an image: decompressed into plain tars, with their digests compared and their size bounded."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

from torpor.base.fsio import free_bytes
from torpor.base.units import GIB, format_bytes
from torpor.errors import HostNotReady, InsufficientResources, LimitExceeded, TorporError
from torpor.templates.oci.image import Image
from torpor.templates.oci.source import Source, wrong

IMAGE_MOST_BYTES = 64 * GIB
"""Of all layers of an image together, decompressed."""
RESERVE_BYTES = GIB
"""Free disk that unpacking leaves."""

_CHUNK_BYTES = 1 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_FAULTS = ("ZstdError",)


class _Hashed:
    """Reads a file and hashes what it reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hasher = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.hasher.update(data)
        return data


def unpack_layers(
    source: Source,
    image: Image,
    folder: Path,
    *,
    most_bytes: int = IMAGE_MOST_BYTES,
    check: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Write each layer as a plain tar into `folder`, which is there, and return their paths, the lowest first. Blocks.

    Raises:
        InvalidRequest: a layer is missing or damaged, or its content has another digest than is stated.
        LimitExceeded: they are larger than an image may be.
        InsufficientResources: the disk has no room for them.
        HostNotReady: nothing here can read the compression.
    """
    paths: list[Path] = []
    left = most_bytes
    for number, (layer, diff_id) in enumerate(
        zip(image.layers, image.settings.diff_ids, strict=True), start=1
    ):
        path = folder / f"layer-{number}.tar"
        with source.open(layer.name) as file:
            stored = _Hashed(file)
            try:
                size, found = _write(stored, file, path, left, check)
            except (OSError, EOFError, zlib.error, ValueError) as exc:
                if isinstance(exc, OSError) and exc.errno is not None:
                    raise
                raise wrong(source, f"has layer {number}, which is damaged: {exc}") from exc
            except _TooLarge as exc:
                raise LimitExceeded(
                    f"the image {source.path} has over {format_bytes(most_bytes)} of layers",
                    limit_bytes=most_bytes,
                ) from exc
            while stored.read(_CHUNK_BYTES):
                pass
        digest = f"sha256:{stored.hasher.hexdigest()}"
        if layer.digest is not None and digest != layer.digest:
            raise wrong(source, f"has layer {number} with {digest}; stated is {layer.digest}")
        if found != diff_id:
            raise wrong(source, f"has layer {number} whose tar is {found}; stated is {diff_id}")
        left -= size
        paths.append(path)
    return paths


class _TooLarge(Exception):
    """Raised when a layer goes beyond what is left of the limit."""


def _write(
    stored: _Hashed, file: IO[bytes], path: Path, left: int, check: Callable[[], None]
) -> tuple[int, str]:
    """Write the layer's tar; return its size and its digest."""
    head = file.read(4)
    file.seek(0)
    reader = _reader(stored, head)
    hasher, size = hashlib.sha256(), 0
    with path.open("xb") as out:
        while data := _read(reader):
            check()
            size += len(data)
            if size > left:
                raise _TooLarge
            if (size - len(data)) >> 26 != size >> 26 or size == len(data):
                _check_room(path.parent)
            hasher.update(data)
            out.write(data)
    return size, f"sha256:{hasher.hexdigest()}"


def _read(reader: IO[bytes]) -> bytes:
    try:
        return reader.read(_CHUNK_BYTES)
    except Exception as exc:
        if type(exc).__name__ in _ZSTD_FAULTS and not isinstance(exc, TorporError):
            raise ValueError(str(exc)) from exc
        raise


def _reader(stored: _Hashed, head: bytes) -> IO[bytes]:
    if head.startswith(_GZIP):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=cast("IO[bytes]", stored), mode="rb"))
    if head.startswith(_ZSTD):
        return _zstd(stored)
    return cast("IO[bytes]", stored)


def _zstd(stored: _Hashed) -> IO[bytes]:
    """Return a reader of zstd: Python's own where it has one (3.14), else the package `zstandard`."""
    for name in ("compression.zstd", "zstandard"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if name == "zstandard":
            limited = module.ZstdDecompressor(max_window_size=1 << 27)
            return cast("IO[bytes]", limited.stream_reader(stored, read_across_frames=True))
        return cast("IO[bytes]", module.ZstdFile(stored))
    raise HostNotReady(
        "the image has layers that are compressed with zstd, which this Python cannot read",
        hint="run: pip install zstandard  (or: torpor[images]); or write the image with gzip",
    )


def _check_room(folder: Path) -> None:
    free = free_bytes(folder)
    if free < RESERVE_BYTES:
        raise InsufficientResources(
            f"{folder} has no room for the image's layers",
            hint="free some space, or let TORPOR_HOME name a larger disk",
            free_bytes=free,
        )

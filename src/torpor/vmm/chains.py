"""Chains of disk layers, as every tool of QEMU's is told of them: no file name inside an image is followed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from torpor.errors import DataDamaged

_HEADER = struct.Struct(">4sIQI")
"""Magic, version, where the backing file's name is, and how long."""
_INCOMPATIBLE_AT = 72


def needed(files: Sequence[Path]) -> Sequence[Path]:
    """Return the part of a chain, the oldest first, that matters: a raw file is a whole disk."""
    for number in range(len(files) - 1, 0, -1):
        if files[number].suffix != ".qcow2":
            return files[number:]
    return files


def chain(files: Sequence[Path]) -> dict[str, object]:
    """Return the block node of a chain's newest file, with all below it that matters; for reading only."""
    found: dict[str, object] | None = None
    for path in needed(files):
        found = node(path, found, writable=False)
    assert found is not None, "a chain has at least one file"
    return found


def node(path: Path, below: dict[str, object] | None, *, writable: bool) -> dict[str, object]:
    """Return the block node of one file over the node `below`."""
    file: dict[str, object] = {"driver": "file", "filename": str(path)}
    made: dict[str, object] = {"driver": format_of(path), "file": file}
    if path.suffix == ".qcow2":
        made["backing"] = below
    if writable:
        return made | {"discard": "unmap", "detect-zeroes": "unmap"}
    # a machine may hold locks on a layer that it reads; nobody writes it
    file["locking"] = "off"
    return made | {"read-only": True}


def format_of(path: Path) -> str:
    """Return the format of a layer's file."""
    return "qcow2" if path.suffix == ".qcow2" else "raw"


def check_plain(path: Path) -> None:
    """Raise `DataDamaged` unless `path` is a qcow2 file whose content is all in it.

    A VMM that was taken over may write a header that names another file; whoever opens it then reads that one.
    """
    with path.open("rb") as file:
        head = file.read(104)
    if len(head) < 104:
        raise DataDamaged(f"{path} is no qcow2 file", path=path)
    magic, version, backing_at, _ = _HEADER.unpack_from(head)
    (incompatible,) = struct.unpack_from(">Q", head, _INCOMPATIBLE_AT)
    if (magic, version) != (b"QFI\xfb", 3):
        raise DataDamaged(f"{path} is no qcow2 file of version 3", path=path)
    if backing_at or incompatible:
        raise DataDamaged(
            f"{path} names a backing file, or wants features {incompatible:#x}", path=path
        )

"""Chains of disk layers, as every tool of QEMU's is told of them: no file name inside an image is followed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


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

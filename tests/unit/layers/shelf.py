"""Snapshots without machines: a home, and layers written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from tests.fakes.records import T0
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.layers.manifest import LayerRef, Manifest
from torpor.layers.ram import PAGE, RamLayerWriter
from torpor.layers.store import LayerStore
from torpor.layers.verify import digest
from torpor.model import SandboxId, SnapshotId, SnapshotInfo

PAGES = 16
"""Of memory that these machines have."""

Pages = Mapping[int, int]
"""A page's number, and the byte that it is full of."""


def make_snapshot(**changes: Any) -> SnapshotInfo:
    """Return a snapshot's info with `changes` made."""
    values: dict[str, Any] = {
        "id": SnapshotId(new_id("snap")),
        "label": None,
        "sandbox_id": SandboxId(new_id("sbx")),
        "parent": None,
        "reason": "snapshot",
        "template": "base",
        "template_digest": "0" * 64,
        "created_at": T0,
        "consistency": "filesystem",
        "vcpus": 1,
        "ram_mib": 512,
        "disk_gib": 4,
        "network": "user",
        "driver": "fake",
        "driver_version": "1",
        "cpu": "fake-cpu",
        "accel": "tcg",
        "size_bytes": 1,
        "pause_ms": 1.0,
        "metadata": {},
    }
    return SnapshotInfo(**(values | changes))


def write_ram(path: Path, pages: Pages, *, total: int = PAGES) -> None:
    """Write a RAM layer that holds `pages`."""
    with RamLayerWriter(path, total * PAGE) as writer:
        for page, byte in pages.items():
            writer.add(np.array([page]), memoryview(bytes([byte]) * PAGE))
        writer.finish()


def memory(*layers: Pages) -> bytes:
    """Return the memory that layers, the oldest first, make."""
    found = bytearray(PAGES * PAGE)
    for pages in layers:
        for page, byte in pages.items():
            found[page * PAGE : (page + 1) * PAGE] = bytes([byte]) * PAGE
    return bytes(found)


class Shelf:
    """A home with a `LayerStore`, and the means to fill it."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.home.prepare()
        self.store = LayerStore(self.home)
        self.store.load()
        self._made = 0

    def again(self) -> LayerStore:
        """Return the store as the next daemon sees it."""
        self.store = LayerStore(self.home)
        assert self.store.load() == []
        return self.store

    def disk(self, content: bytes = b"overlay") -> LayerRef:
        layer = new_id("lyr")
        path = self.store.disk_path(layer)
        path.write_bytes(content)
        return self.store.ref(layer, path)

    def ram(self, pages: Pages) -> LayerRef:
        layer = new_id("lyr")
        write_ram(self.store.ram_path(layer), pages)
        return self.store.ref(layer, self.store.ram_path(layer))

    def snapshot(self, disk: Sequence[LayerRef], ram: Sequence[LayerRef], **info: Any) -> Manifest:
        """Publish a snapshot of these layers, each later than the one before."""
        self._made += 1
        made = make_snapshot(**({"created_at": T0 + timedelta(seconds=self._made)} | info))
        devices = self.home.tmp / f"{made.id}.saved"
        devices.write_bytes(b"devices")
        manifest = Manifest(
            made,
            tuple(disk),
            tuple(ram),
            LayerRef("devices", 7, digest(devices)),
            epoch=1,
        )
        self.store.publish(manifest, devices)
        return manifest

    def files(self) -> set[str]:
        return {p.name for p in self.home.layers.iterdir()}


def relabelled(manifest: Manifest, label: str) -> Manifest:
    return replace(manifest, info=replace(manifest.info, label=label))

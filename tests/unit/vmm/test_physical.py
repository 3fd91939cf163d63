"""Where a byte of the RAM file is in the guest's physical memory, and reading it there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from torpor.base.units import GIB, MIB
from torpor.errors import VmmFailed
from torpor.layers.ram import PAGE, RamLayerWriter, compose
from torpor.vmm.qemu.physical import address_of, capture, pieces


@pytest.mark.parametrize(
    ("ram", "offset", "want"),
    [
        (512 * MIB, 0, 0),
        (512 * MIB, 512 * MIB - 1, 512 * MIB - 1),
        (2 * GIB, 2 * GIB - 1, 2 * GIB - 1),
        (2815 * MIB, 2815 * MIB - 1, 2815 * MIB - 1),  # not split yet
        (2816 * MIB, 2 * GIB - 1, 2 * GIB - 1),
        (2816 * MIB, 2 * GIB, 4 * GIB),
        (8 * GIB, 8 * GIB - 1, 10 * GIB - 1),
    ],
)
def test_addresses(ram: int, offset: int, want: int) -> None:
    assert address_of(offset, ram) == want


def test_what_is_beyond_memory_has_no_address() -> None:
    for offset in (-1, 512 * MIB):
        with pytest.raises(ValueError, match="not within"):
            address_of(offset, 512 * MIB)


def test_pieces_are_side_by_side_and_never_over_the_hole() -> None:
    split = 2 * GIB // PAGE
    pages = np.array([0, 1, 2, 7, split - 1, split, split + 1])
    assert list(pieces(pages, 4 * GIB)) == [
        (0, 0, 3),
        (7 * PAGE, 7, 1),
        (2 * GIB - PAGE, split - 1, 1),
        (4 * GIB, split, 2),
    ]
    assert list(pieces(pages[-3:], 2816 * MIB - PAGE)) == [(2 * GIB - PAGE, split - 1, 3)]
    assert list(pieces(np.array([], dtype=np.int64), GIB)) == []
    many = list(pieces(np.arange(10000), GIB))
    assert [count for _, _, count in many] == [4096, 4096, 1808]
    assert [first for _, first, _ in many] == [0, 4096, 8192]


class _Qemu:
    """Memory of 2 MiB; the video hole shows nothing of it."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "base"
        self.work = folder / "work"
        start = np.random.default_rng(1).integers(0, 255, 2 * MIB, dtype=np.uint8).tobytes()
        self.base.write_bytes(start)
        self.memory = bytearray(start)
        self.short = False

    def change(self, *pages: int) -> np.ndarray:  # type: ignore[type-arg]
        for page in pages:
            self.memory[page * PAGE : (page + 1) * PAGE] = bytes([page % 256]) * PAGE
        return np.array(pages)

    async def save(self, address: int, size: int, path: Path) -> None:
        seen = bytearray(self.memory)
        seen[0xA0000:0xC0000] = b"\xff" * 0x20000
        path.write_bytes(bytes(seen[address : address + size])[: -1 if self.short else None])

    def captured(self, changed: np.ndarray, folder: Path) -> bytes:  # type: ignore[type-arg]
        layer, image = folder / "layer", folder / "image"
        with RamLayerWriter(layer, len(self.memory)) as writer:
            asyncio.run(capture(self.save, self.work, changed, len(self.memory), writer))
            writer.finish()
        compose([layer], image, base=self.base)
        return image.read_bytes()


def test_the_changed_pages_are_captured(tmp_path: Path) -> None:
    qemu = _Qemu(tmp_path)
    changed = qemu.change(0, 1, 9, 0xA0 - 1, 0xC0, 511)
    assert qemu.captured(changed, tmp_path) == bytes(qemu.memory)
    assert not qemu.work.exists()
    assert (tmp_path / "layer").stat().st_size < 9 * PAGE, "and no others"


def test_what_qemu_does_not_show_is_refused_and_never_made_up(tmp_path: Path) -> None:
    qemu = _Qemu(tmp_path)
    with pytest.raises(VmmFailed, match="only the firmware sees") as caught:
        qemu.captured(qemu.change(5, 0xA1), tmp_path)
    assert "ptrace_scope" in str(caught.value.hint)
    assert not (tmp_path / "layer").exists()
    qemu.short = True
    with pytest.raises(VmmFailed, match="saved"):
        qemu.captured(np.array([5]), tmp_path)
    assert not qemu.work.exists()

"""Empty overlays: the second of a size is what `qemu-img` would have made."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from torpor.base.units import GIB
from torpor.errors import InsufficientResources
from torpor.vmm.qemu import overlay
from torpor.vmm.qemu.overlay import Overlays

_FOUND = shutil.which("qemu-img")


@pytest.fixture
def qemu_img() -> Path:
    if _FOUND is None:
        pytest.skip("there is no qemu-img here")
    return Path(_FOUND)


def test_the_second_is_the_same_bytes_and_takes_no_program(tmp_path: Path, qemu_img: Path) -> None:
    async def make() -> None:
        overlays = Overlays()
        await overlays.create(qemu_img, tmp_path / "first", 4 * GIB)
        await overlays.create(qemu_img, tmp_path / "other", 9 * GIB)
        renamed = {(tmp_path / "gone", size): e for (_, size), e in overlays._known.items()}
        overlays._known.update(renamed)
        await overlays.create(tmp_path / "gone", tmp_path / "second", 4 * GIB)

    asyncio.run(make())
    first, second = (tmp_path / "first").read_bytes(), (tmp_path / "second").read_bytes()
    assert first == second
    assert first != (tmp_path / "other").read_bytes()
    assert (tmp_path / "second").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, qemu_img: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def make() -> None:
        overlays = Overlays()
        await overlays.create(qemu_img, tmp_path / "first", GIB)
        monkeypatch.setattr(overlay.os, "pwrite", full)
        with pytest.raises(InsufficientResources, match="second"):
            await overlays.create(qemu_img, tmp_path / "second", GIB)

    asyncio.run(make())
    assert [path.name for path in tmp_path.iterdir()] == ["first"]

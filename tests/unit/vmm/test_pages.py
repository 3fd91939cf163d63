"""The pages that a process changed in a private mapping of a file, also where the kernel names the file otherwise than `stat`."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor.errors import VmmFailed
from torpor.layers.ram import PAGE
from torpor.vmm.pages import changed_pages

_PAGES = 16
_SIZE = _PAGES * PAGE


class _OnBtrfs(type(Path())):  # type: ignore[misc]
    """A path whose file system says another device than lists of mappings have, as btrfs does."""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        found = super().stat(follow_symlinks=follow_symlinks)
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:]))


@pytest.fixture
def ram(tmp_path: Path) -> Path:
    """Return a file of memory that nobody maps."""
    path = tmp_path / "ram"
    path.write_bytes(os.urandom(_SIZE))
    return path


@pytest.fixture
def memory(ram: Path) -> Iterator[mmap.mmap]:
    """Map it, as a machine that goes on from a snapshot does."""
    with ram.open("rb") as file, mmap.mmap(file.fileno(), _SIZE, access=mmap.ACCESS_COPY) as mapped:
        yield mapped


def _write(memory: mmap.mmap, *pages: int) -> None:
    for page in pages:
        memory[page * PAGE] = memory[page * PAGE] ^ 1


def test_the_pages_that_were_written_are_found(ram: Path, memory: mmap.mmap) -> None:
    _write(memory, 0, 3, 4, 15)
    assert memory[7 * PAGE] >= 0  # read, and so there
    assert changed_pages(os.getpid(), ram, _SIZE).tolist() == [0, 3, 4, 15]


def test_mappings_may_have_another_device_than_stat_says(ram: Path, memory: mmap.mmap) -> None:
    _write(memory, 2)
    assert changed_pages(os.getpid(), _OnBtrfs(ram), _SIZE).tolist() == [2]


def test_a_file_is_the_same_by_another_name(ram: Path, memory: mmap.mmap) -> None:
    other = ram.with_name("given")
    other.hardlink_to(ram)
    _write(memory, 5)
    assert changed_pages(os.getpid(), other, _SIZE).tolist() == [5]


def test_another_file_is_not_taken_for_it(ram: Path, memory: mmap.mmap) -> None:
    other = ram.with_name("other")
    other.write_bytes(ram.read_bytes())
    _write(memory, 5)
    with pytest.raises(VmmFailed, match=rf"maps 0 of {_SIZE} bytes"):
        changed_pages(os.getpid(), other, _SIZE)


@pytest.mark.parametrize("what", ["nothing", "a link", "a pipe", "an empty file"])
def test_whatever_a_vmm_puts_in_its_place_is_refused(
    ram: Path, memory: mmap.mmap, what: str
) -> None:
    _write(memory, 1)
    ram.rename(ram.with_name("moved"))
    match what:
        case "a link":
            ram.symlink_to(ram.with_name("moved"))
        case "a pipe":
            os.mkfifo(ram)
        case "an empty file":
            ram.touch()
    with pytest.raises((VmmFailed, OSError)):
        changed_pages(os.getpid(), ram, _SIZE)

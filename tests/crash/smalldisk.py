"""A file system of our own that can be filled to the last byte."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ballast = root / "ballast"

    def fill(self, left_bytes: int = 0) -> None:
        """Use up all space, then give `left_bytes` of it back."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)
            file.truncate(max(0, file.tell() - left_bytes))
            os.fsync(file.fileno())

    def fill_large(self, left_bytes: int = 0) -> None:
        """Do the same without writing it: most of the ballast is only reserved."""
        with self._ballast.open("ab") as file:
            step = 1 << 30
            while step >= 1 << 16:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
                except OSError:
                    step //= 2
        self.fill(left_bytes)

    def free(self) -> None:
        """Give all space back."""
        self._ballast.unlink(missing_ok=True)
        fd = os.open(self.root, os.O_RDONLY)
        try:
            os.fsync(fd)  # some file systems give it back when this is on disk
        finally:
            os.close(fd)


@contextlib.contextmanager
def small_disk(kind: str, size_mib: int, folder: Path) -> Iterator[SmallDisk]:
    """Enter with a file system of `size_mib` MiB, `tmpfs` or `ext4`; skip the test where none can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    root, image = folder / "small", folder / "small.img"
    root.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "small", str(root)]
    else:
        with image.open("wb") as file:
            file.truncate(size_mib << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        command = ["mount", "-o", "loop", str(image), str(root)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small {kind} cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(root)
    finally:
        subprocess.run(["umount", str(root)], check=True)
        image.unlink(missing_ok=True)

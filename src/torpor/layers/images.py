"""`Images`: whole RAM images, composed from layers when a machine needs one, removed when disk space is short.

An image is the whole memory as a file that VMMs map. It may be removed whenever no machine maps it, since its
layers make it again; only a wake is slower then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from torpor.base.faults import reach
from torpor.base.fsio import allocated_bytes, fsync_dir, write_atomic
from torpor.layers.ram import compose
from torpor.layers.seal import seal
from torpor.layers.space import full_disk_told
from torpor.model import SnapshotId

_YOUNG_S = 3600.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an image can be made: over another image, or from layers alone."""

    base: Path | None
    layers: tuple[Path, ...]
    """The oldest first."""


class Images:
    """The images of one home. Methods block; they may be called from several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._uses: dict[SnapshotId, int] = {}
        """Rises with every use: the lowest number was not used for the longest time."""
        self._used = 0

    def path(self, snapshot_id: SnapshotId) -> Path:
        """Return where a snapshot's image is, or would be."""
        return self._folder / f"{snapshot_id}.img"

    def made(self) -> list[SnapshotId]:
        """Return the snapshots that have an image, the one that was not used for the longest time first."""
        with self._lock:
            names = [p for p in self._folder.iterdir() if p.suffix == ".img"]
            found = [(self._uses.get(SnapshotId(p.stem), 0), p.stem) for p in names]
        return [SnapshotId(name) for _, name in sorted(found)]

    def load(self) -> None:
        """Take in what an earlier daemon made; an earlier boot's images were not fsynced and are removed."""
        marker = self._folder / "boot_id"
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        with self._lock:
            if not marker.exists() or marker.read_bytes() != boot_id:
                for path in self._folder.iterdir():
                    path.unlink()
                fsync_dir(self._folder)
                write_atomic(marker, boot_id)
            found = [p for p in self._folder.iterdir() if p.suffix == ".img"]
            for path in sorted(found, key=lambda p: p.stat().st_mtime_ns):
                self._touch(SnapshotId(path.stem))

    def get(self, snapshot_id: SnapshotId, recipe: Callable[[], Recipe]) -> Path:
        """Return a snapshot's image, made if need be.

        Raises:
            DataDamaged: a layer is damaged.
            FileNotFoundError: a layer is missing.
            InsufficientResources: the disk is full; nothing is left.
        """
        path = self.path(snapshot_id)
        with self._lock:
            self._touch(snapshot_id)
            if path.exists():
                return path
            how = recipe()
            fresh = path.with_suffix(".tmp")
            fresh.unlink(missing_ok=True)
            with full_disk_told(f"the RAM image of {snapshot_id}"):
                compose(how.layers, fresh, base=how.base)
                seal(fresh)
                fresh.rename(path)
            return path

    def _touch(self, snapshot_id: SnapshotId) -> None:
        self._used += 1
        self._uses[snapshot_id] = self._used

    def evict(
        self,
        want_bytes: int,
        in_use: Callable[[], tuple[Collection[SnapshotId], Collection[SnapshotId]]],
    ) -> int:
        """Remove images, the longest unused first, until `want_bytes` are freed; return the bytes freed.

        `in_use` is asked here, while none is being made. The first that it returns are mapped, or about to be, and
        stay; at the second a sandbox sleeps: those of the last hour stay too, it may be woken soon.
        """
        freed = 0
        with self._lock:
            made = self.made()
            mapped, asleep = in_use()
            for snapshot_id in made:
                if freed >= want_bytes:
                    break
                path = self.path(snapshot_id)
                if snapshot_id not in mapped and not (snapshot_id in asleep and _is_young(path)):
                    freed += self._remove((path,))
        return freed

    def listed(self) -> list[Path]:
        """Return the images that there are, made and half-made, for `collect`."""
        return sorted(p for p in self._folder.iterdir() if p.suffix in (".img", ".tmp"))

    def collect(self, known: Collection[SnapshotId], listed: Collection[Path]) -> int:
        """Remove, of those `listed`, what is half-made and the images of snapshots that are not `known`; return the bytes freed."""
        with self._lock:
            return self._remove(p for p in listed if p.suffix == ".tmp" or p.stem not in known)

    def _remove(self, paths: Iterable[Path]) -> int:
        freed = 0
        with self._lock:
            for path in paths:
                freed += allocated_bytes(path)
                path.unlink(missing_ok=True)
                self._uses.pop(SnapshotId(path.stem), None)
                reach("collect.removed")
        return freed


def _is_young(path: Path) -> bool:
    try:
        age_s = (time.time_ns() - path.stat().st_mtime_ns) / 1e9
    except FileNotFoundError:
        return False
    return age_s < _YOUNG_S

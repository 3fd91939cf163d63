"""`LayerStore`: snapshots and the layers they share, on disk.

Folders of the home: `layers/` holds one file a layer, `snapshots/` one folder a snapshot, `images/` whole
RAM images made from layers, which may be removed at any time while no machine maps them.
A layer is written before the manifest that names it and removed after the last one that does.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torpor.base.faults import reach
from torpor.base.fsio import (
    allocated_bytes,
    fsync_dir,
    fsync_file,
    publish_dir,
    read_json,
    remove_tree,
    write_atomic,
    write_json,
)
from torpor.base.home import Home
from torpor.base.ids import is_id
from torpor.errors import DataDamaged, NotFound, TorporError
from torpor.layers.manifest import DEVICES, MANIFEST, LayerRef, Manifest, read_manifest, to_json
from torpor.layers.ram import compose
from torpor.layers.seal import seal
from torpor.model import SnapshotId, SnapshotInfo


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of a snapshot that is not what was written."""

    layer: str
    problem: str
    dependents: tuple[SnapshotId, ...]
    """All snapshots that need it."""


@dataclass(frozen=True, slots=True)
class LayerUse:
    """A layer's size and who needs it."""

    id: str
    size_bytes: int
    snapshots: tuple[SnapshotId, ...]
    sandboxes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Needed:
    """What is needed beside the snapshots."""

    layers: Collection[str]
    mapped: Collection[SnapshotId] = ()
    """Snapshots whose RAM image a machine maps."""


class LayerStore:
    """All snapshots of one home. Methods block; they may be called from several threads."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.RLock()
        self._manifests: dict[SnapshotId, Manifest] = {}

    # ---- snapshots ----

    def load(self) -> list[TorporError]:
        """Read all manifests; return the damaged ones' errors. Removes what crashes left half-removed."""
        problems: list[TorporError] = []
        self._drop_old_images()
        for path in self._home.layers.glob(".*"):
            path.unlink()
        with self._lock:
            self._manifests.clear()
            for folder in sorted(self._home.snapshots.iterdir()):
                if not is_id(folder.name, "snap"):
                    remove_tree(folder)
                    continue
                try:
                    self._manifests[SnapshotId(folder.name)] = read_manifest(folder)
                except NotFound:
                    remove_tree(folder)
                except DataDamaged as exc:
                    problems.append(exc)  # kept: its layers may be wanted by hand
        return problems

    def snapshots(self) -> list[Manifest]:
        """Return all snapshots, newest first."""
        with self._lock:
            found = list(self._manifests.values())
        return sorted(found, key=lambda m: (m.info.created_at, m.info.id), reverse=True)

    def get(self, snapshot_id: SnapshotId) -> Manifest:
        """Return a snapshot's manifest. Raises `NotFound`."""
        with self._lock:
            manifest = self._manifests.get(snapshot_id)
        if manifest is None:
            raise NotFound(
                f"there is no snapshot {snapshot_id}",
                hint="list them: torpor snapshots",
                snapshot_id=snapshot_id,
            )
        return manifest

    def publish(self, manifest: Manifest, devices: Path) -> None:
        """Make a snapshot exist. Its layers are there and durable; `devices` is moved.

        On failure the snapshot does not exist and its folder is gone.
        """
        snapshot_id = manifest.info.id
        staging = self._home.tmp / snapshot_id
        staging.mkdir(mode=0o711)
        try:
            staging.chmod(0o711)
            devices.rename(staging / DEVICES)
            seal(staging / DEVICES)
            write_json(staging / MANIFEST, to_json(manifest), mode=0o400)
            reach("snapshot.staged")
            fsync_dir(self._home.layers)
            publish_dir(staging, self.folder(snapshot_id))
        except BaseException:
            remove_tree(staging)
            raise
        reach("snapshot.published")
        with self._lock:
            self._manifests[snapshot_id] = manifest

    def duplicate(self, manifest: Manifest, info: SnapshotInfo) -> Manifest:
        """Make a second snapshot, called `info`, of the same point; it shares every layer."""
        devices = self._home.tmp / f"{info.id}.{DEVICES}"
        devices.hardlink_to(self.devices(manifest.info.id))
        with removed_on_failure(devices):
            copy = replace(manifest, info=info)
            self.publish(copy, devices)
        return copy

    def remove(self, snapshot_id: SnapshotId) -> None:
        """Make a snapshot not exist any more; its layers stay until `collect`."""
        self.get(snapshot_id)
        with self._lock:
            del self._manifests[snapshot_id]
        reach("snapshot.forgotten")
        remove_tree(self.folder(snapshot_id))

    def folder(self, snapshot_id: SnapshotId) -> Path:
        """Return a snapshot's folder."""
        return self._home.snapshots / snapshot_id

    def devices(self, snapshot_id: SnapshotId) -> Path:
        """Return the file with a snapshot's device state."""
        return self.folder(snapshot_id) / DEVICES

    # ---- layers ----

    def disk_path(self, layer_id: str) -> Path:
        """Return the file of a disk layer."""
        return self._home.layers / f"{layer_id}.qcow2"

    def ram_path(self, layer_id: str) -> Path:
        """Return the file of a RAM layer."""
        return self._home.layers / f"{layer_id}.ram"

    def ref(self, layer_id: str, path: Path) -> LayerRef:
        """Make a written layer immutable and durable; return its reference with size and digest.

        Size and digest are kept in a file beside it, so that a chain is not read again for each snapshot.
        """
        note = path.with_suffix(".sum")
        with contextlib.suppress(NotFound):
            raw = read_json(note, limit_bytes=4096)
            if isinstance(raw, dict):
                return LayerRef(layer_id, int(raw["size_bytes"]), str(raw["sha256"]))
        fsync_file(path)
        seal(path)
        found = LayerRef(layer_id, path.stat().st_size, digest(path))
        write_json(note, {"size_bytes": found.size_bytes, "sha256": found.sha256}, mode=0o400)
        return found

    def image_path(self, snapshot_id: SnapshotId) -> Path:
        """Return where a snapshot's RAM image is, or would be."""
        return self._home.images / f"{snapshot_id}.img"

    def image(self, manifest: Manifest) -> Path:
        """Return a snapshot's whole RAM as a file that can be mapped; made from its layers if need be.

        Raises:
            DataDamaged: a layer is missing or damaged.
            OSError: the disk is full; nothing is left.
        """
        path = self.image_path(manifest.info.id)
        with self._lock:
            if path.exists():
                return path
            base, above = self._nearest_image(manifest)
            fresh = path.with_suffix(".tmp")
            fresh.unlink(missing_ok=True)
            try:
                compose([self.ram_path(ref.id) for ref in above], fresh, base=base)
            except FileNotFoundError as exc:
                raise DataDamaged(
                    f"a RAM layer of snapshot {manifest.info.id} is missing: {exc.filename}",
                    hint="it can only be started cold from its disk",
                    snapshot_id=manifest.info.id,
                ) from exc
            seal(fresh)
            fresh.rename(path)
            return path

    def _nearest_image(self, manifest: Manifest) -> tuple[Path | None, tuple[LayerRef, ...]]:
        """Return the made image that shares the most layers with a snapshot, and the layers above it."""
        best: tuple[Path | None, tuple[LayerRef, ...]] = (None, manifest.ram)
        for other in self._manifests.values():
            count = len(other.ram)
            path = self.image_path(other.info.id)
            if count < len(manifest.ram) and manifest.ram[:count] == other.ram and path.exists():
                above = manifest.ram[count:]
                if len(above) < len(best[1]):
                    best = (path, above)
        return best

    def _drop_old_images(self) -> None:
        """Remove the images of an earlier boot of the host: they were not fsynced, so a power cut may have torn them."""
        marker = self._home.images / "boot_id"
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        if marker.exists() and marker.read_bytes() == boot_id:
            return
        for path in self._home.images.iterdir():
            path.unlink()
        fsync_dir(self._home.images)
        write_atomic(marker, boot_id)

    # ---- keeping house ----

    def collect(self, needed: Callable[[], Needed]) -> int:
        """Remove the layers that no snapshot and nobody else needs; return the bytes freed.

        Images stay while their snapshot exists or is mapped. `needed` is asked here, after the files were listed
        and while no snapshot can come or go: what was said before may be old by now. A layer has to be needed
        before its file is made.
        """
        freed = 0
        with self._lock:
            # names with a dot in front are notes that are being written; see `load`
            layers = [p for p in self._home.layers.iterdir() if not p.name.startswith(".")]
            images = [p for p in self._home.images.iterdir() if p.suffix in (".img", ".tmp")]
            now = needed()
            keep = set(now.layers).union(*(m.layer_ids for m in self._manifests.values()))
            doomed = [p for p in layers if p.name.partition(".")[0] not in keep]
            known = {*self._manifests, *now.mapped}
            doomed += [p for p in images if p.suffix == ".tmp" or p.stem not in known]
            for path in doomed:
                freed += allocated_bytes(path)
                path.unlink(missing_ok=True)
                reach("collect.removed")
        return freed

    def uses(self, sandboxes: Collection[tuple[str, Collection[str]]]) -> list[LayerUse]:
        """Return every layer with who needs it; `sandboxes` are ids with the layers they need."""
        found = []
        with self._lock:
            manifests = list(self._manifests.values())
        for path in sorted(
            p for p in self._home.layers.iterdir() if p.suffix in (".qcow2", ".ram")
        ):
            layer_id = path.name.partition(".")[0]
            found.append(
                LayerUse(
                    layer_id,
                    allocated_bytes(path),
                    tuple(m.info.id for m in manifests if layer_id in m.layer_ids),
                    tuple(name for name, layers in sandboxes if layer_id in layers),
                )
            )
        return found

    def verify(self, snapshot_id: SnapshotId) -> list[Damage]:
        """Read every byte that a snapshot needs and compare its digests; return what is damaged."""
        manifest = self.get(snapshot_id)
        places = [
            *((ref, self.disk_path(ref.id)) for ref in manifest.disk),
            *((ref, self.ram_path(ref.id)) for ref in manifest.ram),
            (manifest.devices, self.devices(snapshot_id)),
        ]
        return [
            found
            for ref, path in places
            if (found := self._damage(ref, path, snapshot_id)) is not None
        ]

    def _damage(self, ref: LayerRef, path: Path, snapshot_id: SnapshotId) -> Damage | None:
        try:
            size = path.stat().st_size
            problem = (
                f"it has {size} bytes instead of {ref.size_bytes}"
                if size != ref.size_bytes
                else None
            )
            if problem is None and digest(path) != ref.sha256:
                problem = "its content is not what was written"
        except FileNotFoundError:
            problem = "it is missing"
        except OSError as exc:
            problem = f"it cannot be read: {exc}"
        if problem is None:
            return None
        with self._lock:
            others = [m.info.id for m in self._manifests.values() if ref.id in m.layer_ids]
        return Damage(ref.id, problem, tuple(others) or (snapshot_id,))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def removed_on_failure(*paths: Path) -> Iterator[None]:
    """Remove `paths` if the body fails, however it fails."""
    try:
        yield
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise

"""`LayerStore`: snapshots and the layers they share, on disk.

Folders of the home: `layers/` holds one file a layer, `snapshots/` one folder a snapshot, `images/` whole
RAM images made from layers, which may be removed at any time while no machine maps them.
A layer is written before the manifest that names it and removed after the last one that does. Where a merged
layer stands for layers that a manifest names (see `merges`), it is what the snapshot needs, and they are not.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torpor.base.faults import reach
from torpor.base.fsio import (
    allocated_bytes,
    fsync_dir,
    fsync_file,
    publish_dir,
    remove_tree,
    write_atomic,
    write_json,
)
from torpor.base.home import Home
from torpor.base.ids import is_id
from torpor.errors import Conflict, DataDamaged, NotFound, TorporError
from torpor.layers.catalog import Catalog
from torpor.layers.digests import read_note, write_note
from torpor.layers.images import Images, Recipe
from torpor.layers.inventories import INVENTORY, damage_of_inventory, read_inventory
from torpor.layers.manifest import (
    DEVICES,
    MANIFEST,
    LayerRef,
    Manifest,
    digests_named_in,
    layers_named_in,
    read_manifest,
    to_json,
)
from torpor.layers.merges import NOTE, Kind, Merged, Merges
from torpor.layers.pins import Pins
from torpor.layers.seal import seal
from torpor.layers.space import full_disk_told
from torpor.layers.verify import (
    Damage,
    damage_of,
    damage_of_image,
    damage_of_manifest,
    digest,
)
from torpor.layers.whole import WHOLE
from torpor.model import SandboxId, SnapshotId, SnapshotInfo
from torpor.model_inventory import Inventory

_KINDS: Mapping[str, Kind] = {".qcow2": "disk", ".raw": "disk", ".ram": "ram"}
_SETTLED_NS = 1_000_000_000
"""A folder that changed longer ago than this does not change any more without its time changing."""


@dataclass(frozen=True, slots=True)
class LayerUse:
    """A layer's or RAM image's size and who needs it."""

    id: str
    """A layer's id; an image has that of its snapshot."""
    size_bytes: int
    snapshots: tuple[SnapshotId, ...]
    sandboxes: tuple[str, ...]
    kind: Literal["disk", "ram", "image"] = "disk"
    """An image is made again when it is missing, and removed when space is short."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What is needed beside the snapshots."""

    layers: Collection[str]
    mapped: Collection[SnapshotId] = ()
    """Snapshots whose RAM image a machine maps."""


class LayerStore:
    """All snapshots of one home. Methods block; they may be called from several threads."""

    def __init__(
        self, home: Home, pins: Pins | None = None, *, disk_suffix: str = ".qcow2"
    ) -> None:
        self._home = home
        self._disk_suffixes = (disk_suffix, *({".qcow2", ".raw"} - {disk_suffix}))
        """What new disk layers are called, and what those of another driver may be."""
        self.pins = Pins() if pins is None else pins
        self._lock = threading.RLock()
        self._catalog = Catalog()
        self._collected: object = None
        """What was so when `collect` last looked at everything."""
        self._spared: frozenset[str] = frozenset()
        """Layers that damaged manifests name: they may be wanted when one is mended by hand."""
        self._is_blind = False
        """Whether the bytes of a manifest could not be read: nobody knows what it needs, and no layer may go."""
        self.damaged: Mapping[SnapshotId, frozenset[str]] = {}
        """Snapshots whose manifests could not be read when the daemon started, with all that may be a template's
        digest in them: the template is to stay too."""
        self.images = Images(home.images)
        self.merges = Merges(home.layers)

    # ---- snapshots ----

    def load(self) -> list[TorporError]:
        """Read all manifests; return the damaged ones' errors. Removes what crashes left half-removed."""
        self.images.load()
        for path in self._home.layers.glob(".*"):  # notes that were being written
            path.unlink()
        for left in self._home.tmp.glob("snap_*"):  # of a snapshot that was being published
            remove_tree(left) if left.is_dir() else left.unlink()
        problems: list[TorporError] = list(self.merges.load(self._merged_path))
        found, spared, damaged = [], set[str](), dict[SnapshotId, frozenset[str]]()
        is_blind = False
        for folder in sorted(self._home.snapshots.iterdir()):
            if not is_id(folder.name, "snap"):
                remove_tree(folder)
                continue
            try:
                found.append(read_manifest(folder))
            except NotFound:
                remove_tree(folder)
            except (DataDamaged, OSError, RecursionError) as exc:
                problems.append(_told(folder, exc))
                named = layers_named_in(folder)
                is_blind |= named is None
                spared |= named or frozenset()
                damaged[SnapshotId(folder.name)] = digests_named_in(folder)
        self._spared, self._is_blind = frozenset(spared), is_blind
        self.damaged = damaged
        self._catalog.fill(found)
        return problems

    def tell(self, on_change: Callable[[SnapshotInfo, bool], None]) -> None:
        """Have snapshots told that come to be (True) or are gone, in the thread that did it."""
        self._catalog.on_change = on_change

    def snapshots(self, sandbox_id: SandboxId | None = None) -> list[Manifest]:
        """Return the snapshots of one sandbox, or all, newest first."""
        return self._catalog.all() if sandbox_id is None else self._catalog.of_sandbox(sandbox_id)

    def of_template(self, template_digest: str) -> list[Manifest]:
        """Return a template's own snapshots, newest first."""
        return self._catalog.of_template(template_digest)

    def has(self, snapshot_id: SnapshotId) -> bool:
        """Return whether there is such a snapshot."""
        return self._catalog.get(snapshot_id) is not None

    def get(self, snapshot_id: SnapshotId) -> Manifest:
        """Return a snapshot's manifest. Raises `NotFound`."""
        manifest = self._catalog.get(snapshot_id)
        if manifest is None:
            raise NotFound(
                f"there is no snapshot {snapshot_id}",
                hint="list them: torpor snapshots",
                snapshot_id=snapshot_id,
            )
        return manifest

    def shortened(self, manifest: Manifest) -> Manifest:
        """Return a manifest that names merged layers where they stand for what it names."""
        merges = self.merges
        return replace(
            manifest,
            disk=merges.shortened(manifest.disk),
            ram=merges.shortened(manifest.ram),
            volumes=tuple(
                replace(point, disk=merges.shortened(point.disk)) for point in manifest.volumes
            ),
        )

    def publish(
        self, manifest: Manifest, devices: Path, inventory: bytes | Path | None = None
    ) -> None:
        """Make a snapshot exist. Its layers are there and durable; `devices` is moved.

        `inventory` is what `manifest.inventory` speaks of: its bytes, or a file that is linked to.

        On failure the snapshot does not exist and its folder is gone; one of that id that was there before stays.

        Raises:
            Conflict: there is a snapshot of that id.
            InsufficientResources: the disk is full.
        """
        snapshot_id = manifest.info.id
        staging = self._home.tmp / snapshot_id
        if self.folder(snapshot_id).exists():
            raise Conflict(f"there is a snapshot {snapshot_id} already", hint="choose another id")
        with full_disk_told(f"snapshot {snapshot_id}"):
            staging.mkdir(mode=0o711)
        try:
            with full_disk_told(f"snapshot {snapshot_id}"):
                staging.chmod(0o711)
                devices.rename(staging / DEVICES)
                seal(staging / DEVICES)
                if isinstance(inventory, bytes):
                    write_atomic(staging / INVENTORY, inventory, mode=0o400)
                elif inventory is not None:
                    (staging / INVENTORY).hardlink_to(inventory)
                write_json(staging / MANIFEST, to_json(manifest), mode=0o400)
                reach("snapshot.staged")
                fsync_dir(self._home.layers)
                publish_dir(staging, self.folder(snapshot_id))
        except BaseException:
            if staging.exists():
                remove_tree(staging)
            else:  # it was renamed, by us; its name may not be durable: better none at all
                remove_tree(self.folder(snapshot_id))
            raise
        reach("snapshot.published")
        self._catalog.add(manifest)

    def duplicate(self, manifest: Manifest, info: SnapshotInfo) -> Manifest:
        """Make a second snapshot, called `info`, of the same point; it shares every layer."""
        devices = self._home.tmp / f"{info.id}.{DEVICES}"
        with removed_on_failure(devices), full_disk_told(f"snapshot {info.id}"):
            devices.hardlink_to(self.devices(manifest.info.id))
            copy = replace(manifest, info=info)
            inventory = self.folder(manifest.info.id) / INVENTORY
            self.publish(copy, devices, inventory if manifest.inventory.is_there else None)
        return copy

    def remove(self, snapshot_id: SnapshotId) -> None:
        """Make a snapshot not exist any more; its layers stay until `collect`."""
        self._catalog.discard(self.get(snapshot_id))
        reach("snapshot.forgotten")
        remove_tree(self.folder(snapshot_id))

    def inventory(self, snapshot_id: SnapshotId) -> Inventory:
        """Return what a snapshot's machine held when it was taken.

        Raises:
            NotFound: there is no such snapshot, or it has no inventory; the message says why.
            DataDamaged: the file is not what was written.
        """
        manifest = self.get(snapshot_id)
        return read_inventory(self.folder(snapshot_id), manifest.inventory)

    def folder(self, snapshot_id: SnapshotId) -> Path:
        """Return a snapshot's folder."""
        return self._home.snapshots / snapshot_id

    def devices(self, snapshot_id: SnapshotId) -> Path:
        """Return the file with a snapshot's device state."""
        return self.folder(snapshot_id) / DEVICES

    # ---- layers ----

    def path(self, kind: Kind, layer_id: str) -> Path:
        """Return the file of a layer; of one that is not there yet, what it will be called."""
        if kind == "ram":
            return self._home.layers / f"{layer_id}.ram"
        own, other = (self._home.layers / f"{layer_id}{suffix}" for suffix in self._disk_suffixes)
        return other if not own.exists() and other.exists() else own

    def disk_path(self, layer_id: str) -> Path:
        """Return the file of a disk layer."""
        return self.path("disk", layer_id)

    def needed_disks(self, layers: Sequence[str]) -> tuple[str, ...]:
        """Return the part of a disk's chain, the oldest first, that matters: what lies below a whole disk does not."""
        for number in range(len(layers) - 1, 0, -1):
            if self.disk_path(layers[number]).suffix == WHOLE:
                return tuple(layers[number:])
        return tuple(layers)

    def ram_path(self, layer_id: str) -> Path:
        """Return the file of a RAM layer."""
        return self.path("ram", layer_id)

    def _merged_path(self, merged: Merged) -> Path:
        return self.path(merged.kind, merged.ref.id)

    def ref(self, layer_id: str, path: Path) -> LayerRef:
        """Make a written layer immutable and durable; return its reference with size and digest.

        Size and digest are kept in a note beside it, so that a chain is not read again for each snapshot. Where the
        note is damaged, a manifest that names the layer says what was written.

        Raises:
            InsufficientResources: the disk is full.
        """
        note = path.with_suffix(".sum")
        found = None
        try:
            return read_note(note, layer_id)
        except NotFound:
            pass
        except DataDamaged:
            found = self._named(layer_id)
        with full_disk_told(f"layer {layer_id}"):
            if found is None:
                fsync_file(path)
                seal(path)
                found = LayerRef(layer_id, path.stat().st_size, digest(path))
            write_note(note, found)
        return found

    def _named(self, layer_id: str) -> LayerRef | None:
        """Return what a manifest, or a merged layer's note, says of a layer."""
        for manifest in self._catalog.all():
            for ref in (*manifest.refs, *self.shortened(manifest).refs):
                if ref.id == layer_id:
                    return ref
        return None

    def image(self, manifest: Manifest) -> Path:
        """Return a snapshot's whole RAM as a file that can be mapped; made from its layers if need be.

        Raises:
            DataDamaged: a layer is missing or damaged.
            InsufficientResources: the disk is full; nothing is left.
        """
        try:
            return self.images.get(manifest.info.id, lambda: self._recipe(manifest))
        except FileNotFoundError as exc:
            raise DataDamaged(
                f"a RAM layer of snapshot {manifest.info.id} is missing: {exc.filename}",
                hint="it can only be started cold from its disk",
                snapshot_id=manifest.info.id,
            ) from exc

    def _recipe(self, manifest: Manifest) -> Recipe:
        """Return the made image that shares the most layers with a snapshot, and the layers above it."""
        first = self.merges.first_layers(ref.id for ref in manifest.ram)
        above = [self.ram_path(ref.id) for ref in self.shortened(manifest).ram]
        best = Recipe(None, tuple(above))
        for snapshot_id in self.images.made():
            other = self._catalog.get(snapshot_id)
            if other is None:
                continue
            shared = self.merges.first_layers(ref.id for ref in other.ram)
            if shared == first or first[: len(shared)] != shared:
                continue
            rest = [self.ram_path(layer) for layer in self.merges.shortest(first[len(shared) :])]
            if len(rest) < len(best.layers) and all(path.exists() for path in rest):
                best = Recipe(self.images.path(snapshot_id), tuple(rest))
        return best

    # ---- keeping house ----

    @property
    def version(self) -> object:
        """Differs from what it was as soon as a snapshot or merged layer was added or removed."""
        return self._catalog.version, self.merges.version

    def add_merged(self, merged: Merged) -> None:
        """Let a durable layer stand for others from now on; they are collected once nobody else needs them.

        Raises:
            InsufficientResources: the disk is full.
        """
        with full_disk_told(f"the note of layer {merged.ref.id}"):
            self.merges.add(merged)

    def collect(self, needed: Callable[[], Needed]) -> int:
        """Remove the layers that no snapshot and nobody else needs; return the bytes freed.

        Images stay while their snapshot exists or is mapped. `needed` is asked here, after the files were listed
        and while no snapshot can come or go: what was said before may be old by now. A layer has to be needed
        before its file is made. When nothing changed since the last time, nothing is looked at.
        """
        with self._lock:
            if self._collected is not None and self._collected == self._state(needed()):
                return 0
            # names with a dot in front are notes that are being written; see `load`
            files = sorted(p for p in self._home.layers.iterdir() if not p.name.startswith("."))
            made = self.images.listed()
            asked = needed()
            now = self._state(asked)
            freed = self.images.collect({*self._catalog.ids(), *asked.mapped}, made)
            freed += self._collect_layers(set(asked.layers), files)
            self._collected = now
        return freed

    def _state(self, needed: Needed) -> object:
        """Return what decides what may go; None while the folders are so fresh that their times tell nothing."""
        times = [folder.stat().st_mtime_ns for folder in (self._home.layers, self._home.images)]
        if max(times) > time.time_ns() - _SETTLED_NS:
            return None
        asked = (frozenset(needed.layers), frozenset(needed.mapped))
        return self.version, asked, *times

    def _collect_layers(self, needed: set[str], files: list[Path]) -> int:
        if self._is_blind:
            return 0
        used = needed | self._spared
        named = set(used)
        for manifest in self._catalog.all():
            named |= manifest.layer_ids
            used |= self.shortened(manifest).layer_ids
        freed = 0
        for path in files:
            layer_id = path.name.partition(".")[0]
            if layer_id in used or (path.suffix == NOTE and layer_id in named):
                continue
            if self.pins.if_free(layer_id, lambda path=path: self._hide(path)):  # type: ignore[misc]
                freed += self._remove_hidden(path)
        return freed

    def _hide(self, path: Path) -> None:
        """Take a file out of use: who looks for it from now on finds that it is not there."""
        layer_id = path.name.partition(".")[0]
        (self.merges.note_gone if path.suffix == NOTE else self.merges.file_gone)(layer_id)
        path.rename(_hidden(path))

    def _remove_hidden(self, path: Path) -> int:
        freed = allocated_bytes(_hidden(path))
        _hidden(path).unlink()
        reach("collect.removed")
        return freed

    def uses(self, sandboxes: Collection[tuple[str, Collection[str]]]) -> list[LayerUse]:
        """Return every layer with who needs it; `sandboxes` are ids with the layers they need."""
        snapshots: dict[str, list[SnapshotId]] = {}
        for manifest in self._catalog.all():
            for layer_id in self.shortened(manifest).layer_ids:
                snapshots.setdefault(layer_id, []).append(manifest.info.id)
        users: dict[str, list[str]] = {}
        for name, layers in sandboxes:
            for layer_id in layers:
                users.setdefault(layer_id, []).append(name)
        found = []
        for path in sorted(self._home.layers.iterdir()):
            kind = _KINDS.get(path.suffix)
            if kind is not None:
                found.append(
                    LayerUse(
                        path.stem,
                        allocated_bytes(path),
                        tuple(snapshots.get(path.stem, ())),
                        tuple(users.get(path.stem, ())),
                        kind,
                    )
                )
        return found

    def image_uses(self, mapped: Collection[tuple[str, SnapshotId | None]]) -> list[LayerUse]:
        """Return every RAM image; `mapped` are sandboxes' ids with the image that their machine maps."""
        return [
            LayerUse(
                snapshot_id,
                allocated_bytes(self.images.path(snapshot_id)),
                () if self._catalog.get(snapshot_id) is None else (snapshot_id,),
                tuple(name for name, image in mapped if image == snapshot_id),
                "image",
            )
            for snapshot_id in sorted(self.images.made())
        ]

    def verify(
        self, snapshot_id: SnapshotId, *, mapped: Collection[SnapshotId] = ()
    ) -> list[Damage]:
        """Read every byte that a snapshot needs and compare its digests; return what is damaged.

        That is its manifest, its layers, its devices, and its RAM image if it has one (or if it is `mapped`).
        """
        manifest = self.get(snapshot_id)
        short = self.shortened(manifest)
        found = self._damages(manifest, short, is_mapped=snapshot_id in mapped)
        if found and self.shortened(manifest) != short:  # merged and collected while we read
            found = self._damages(
                manifest, self.shortened(manifest), is_mapped=snapshot_id in mapped
            )
        return found

    def _damages(self, manifest: Manifest, short: Manifest, *, is_mapped: bool) -> list[Damage]:
        own = (manifest.info.id,)
        found = []
        volumes = tuple(ref for point in short.volumes for ref in point.disk)
        for kind, refs in (("disk", short.disk), ("ram", short.ram), ("disk", volumes)):
            for ref in refs:
                problem = damage_of(ref, self.path(kind, ref.id))  # type: ignore[arg-type]
                if problem is not None:
                    found.append(Damage(ref.id, problem, self._dependents(ref.id) or own))
        layers = [self.ram_path(ref.id) for ref in short.ram]
        image = self.images.path(manifest.info.id)
        own_files = {
            "devices": damage_of(manifest.devices, self.devices(manifest.info.id)),
            "manifest": damage_of_manifest(manifest, self.folder(manifest.info.id)),
            "inventory": damage_of_inventory(self.folder(manifest.info.id), manifest.inventory),
            # damaged layers make another image than the good one that is there
            "image": damage_of_image(image, layers, is_mapped=is_mapped) if not found else None,
        }
        return found + [
            Damage(name, problem, own) for name, problem in own_files.items() if problem is not None
        ]

    def _dependents(self, layer_id: str) -> tuple[SnapshotId, ...]:
        return tuple(
            m.info.id for m in self._catalog.all() if layer_id in self.shortened(m).layer_ids
        )


def _hidden(path: Path) -> Path:
    """Return the name of a file that is being removed; one that a crash left is collected by the next daemon."""
    return path if path.name.startswith(".") else path.with_name(f".{path.name}")


@contextlib.contextmanager
def removed_on_failure(*paths: Path) -> Iterator[None]:
    """Remove `paths` if the body fails, however it fails."""
    try:
        yield
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise


def _told(folder: Path, exc: Exception) -> TorporError:
    """Return why a snapshot's manifest cannot be used as an error of ours."""
    if isinstance(exc, TorporError):
        return exc
    told = DataDamaged(f"{folder / MANIFEST} cannot be read: {exc!r}", path=folder / MANIFEST)
    told.__cause__ = exc
    return told

"""The manifest of a snapshot: what it is made of. A snapshot exists when its manifest exists.

docs/formats/snapshot.md describes the file. It is written once, last, and never changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from torpor.base.fsio import read_json
from torpor.base.plain import from_plain, to_plain
from torpor.errors import DataDamaged
from torpor.layers.inventories import UNKNOWN, InventoryRef, ref_from_json, ref_to_json
from torpor.model import SnapshotInfo
from torpor.model_memory import Watermark
from torpor.model_quiesce import QuiesceReport, report_from_json, report_to_json
from torpor.model_volumes import VolumesMode

MANIFEST = "manifest.json"
DEVICES = "devices"
FORMAT = 1
FORMAT_VOLUMES = 2
"""Of a manifest that names volumes: an older version, which would leave them out, must not read it."""
_LAYER_ID = re.compile(rb"lyr_[0-9a-z]+")
_DIGEST = re.compile(rb"\b[0-9a-f]{64}\b")
_INFO_KEYS = frozenset(field.name for field in fields(SnapshotInfo))


@dataclass(frozen=True, slots=True)
class LayerRef:
    """A layer that a snapshot needs, and how to know that it is still what was written."""

    id: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumePoint:
    """A volume of the machine at the snapshot's instant, or that it had one and was let go of it."""

    volume_id: str
    name: str
    path: str
    """Where it was mounted."""
    read_only: bool
    slot: int
    """Which place it was in; with `include` the machine's RAM knows of it."""
    serial: str
    """What the guest knew the disk by."""
    mode: VolumesMode
    size_bytes: int
    clean: bool
    """Whether its file system was frozen."""
    disk: tuple[LayerRef, ...] = ()
    """Its layers at that instant, the oldest first; with `include` only."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A snapshot and all that it is made of."""

    info: SnapshotInfo
    disk: tuple[LayerRef, ...]
    """Overlays over the template's disk, the oldest first."""
    ram: tuple[LayerRef, ...]
    """RAM layers, the oldest first; together they are the whole memory."""
    devices: LayerRef
    """CPUs and devices; the file lies beside the manifest."""
    epoch: int
    """The guest channel's epoch when it was taken; a machine that goes on from it is connected to with a higher one."""
    inventory: InventoryRef = UNKNOWN
    """What was installed and running; the file lies beside the manifest."""
    volumes: tuple[VolumePoint, ...] = ()

    @property
    def refs(self) -> tuple[LayerRef, ...]:
        """The shared layers it needs, with size and digest."""
        volumes = (ref for point in self.volumes for ref in point.disk)
        return (*self.disk, *self.ram, *volumes)

    @property
    def layer_ids(self) -> frozenset[str]:
        """The shared layers it needs."""
        return frozenset(ref.id for ref in self.refs)


def to_json(manifest: Manifest) -> dict[str, object]:
    """Return the manifest as the JSON object that is stored."""
    info: dict[str, object] = {}
    for field in fields(SnapshotInfo):
        if field.name == "protected":
            continue  # it comes and goes; the manifest never changes
        value = getattr(manifest.info, field.name)
        info[field.name] = value.isoformat() if isinstance(value, datetime) else value
    info["metadata"] = dict(manifest.info.metadata)
    info["volumes"] = dict(manifest.info.volumes)
    info["env_names"] = list(manifest.info.env_names)
    info["watermark"] = to_plain(manifest.info.watermark)
    del info["inventory"]  # it is said once, with its digest
    if (report := info.pop("quiesce")) is not None:  # else it is not there at all
        assert isinstance(report, QuiesceReport)
        info["quiesce"] = report_to_json(report)
    body = {
        "format": FORMAT_VOLUMES if manifest.volumes else FORMAT,
        "snapshot": info,
        "disk": [_ref(ref) for ref in manifest.disk],
        "ram": [_ref(ref) for ref in manifest.ram],
        "devices": _ref(manifest.devices),
        "epoch": manifest.epoch,
        "inventory": ref_to_json(manifest.inventory),
    }
    if manifest.volumes:
        body["volumes"] = [_point(point) for point in manifest.volumes]
    return body | {"checksum": _checksum(body)}


def _checksum(body: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest in a snapshot's folder.

    Raises:
        NotFound: there is none, so there is no snapshot.
        DataDamaged: it is not a manifest of a version that we know.
    """
    path = folder / MANIFEST
    raw = read_json(path)
    try:
        return _manifest(raw)
    except (KeyError, TypeError, ValueError) as exc:
        raise DataDamaged(f"{path} is not a snapshot's manifest: {exc!r}", path=path) from exc


def layers_named_in(folder: Path) -> frozenset[str] | None:
    """Return every layer that a manifest names, also one that is too damaged; None when its bytes cannot be read."""
    try:
        data = (folder / MANIFEST).read_bytes()
    except OSError:
        return None
    return frozenset(found.decode() for found in _LAYER_ID.findall(data))


def digests_named_in(folder: Path) -> frozenset[str]:
    """Return everything in a manifest that can be a template's digest, also in one that cannot be read."""
    try:
        data = (folder / MANIFEST).read_bytes()
    except OSError:
        return frozenset()
    return frozenset(found.decode() for found in _DIGEST.findall(data))


def _manifest(raw: Any) -> Manifest:
    if raw["format"] not in (FORMAT, FORMAT_VOLUMES):
        raise ValueError(
            f"its format is {raw['format']!r}; this version reads {FORMAT} and {FORMAT_VOLUMES}"
        )
    if raw["checksum"] != _checksum({k: v for k, v in raw.items() if k != "checksum"}):
        raise ValueError("its checksum is wrong")
    values = {name: value for name, value in raw["snapshot"].items() if name in _INFO_KEYS}
    values["created_at"] = datetime.fromisoformat(values["created_at"])
    values["env_names"] = tuple(map(str, values.get("env_names", ())))
    if values.get("watermark") is not None:
        values["watermark"] = from_plain(Watermark, values["watermark"])
    if values.get("quiesce") is not None:
        values["quiesce"] = report_from_json(values["quiesce"])
    inventory = ref_from_json(raw["inventory"])
    values["inventory"] = inventory.note
    return Manifest(
        info=SnapshotInfo(**values),
        disk=tuple(_layer(ref) for ref in raw["disk"]),
        ram=tuple(_layer(ref) for ref in raw["ram"]),
        devices=_layer(raw["devices"]),
        epoch=int(raw["epoch"]),
        inventory=inventory,
        volumes=tuple(_volume(point) for point in raw.get("volumes", ())),
    )


def _point(point: VolumePoint) -> dict[str, object]:
    values: dict[str, object] = {
        field.name: getattr(point, field.name) for field in fields(VolumePoint)
    }
    return values | {"disk": [_ref(ref) for ref in point.disk]}


def _volume(raw: Any) -> VolumePoint:
    values = dict(raw) | {"disk": tuple(_layer(ref) for ref in raw["disk"])}
    return VolumePoint(**values)


def _ref(ref: LayerRef) -> dict[str, object]:
    return {"id": ref.id, "size_bytes": ref.size_bytes, "sha256": ref.sha256}


def _layer(raw: Any) -> LayerRef:
    return LayerRef(str(raw["id"]), int(raw["size_bytes"]), str(raw["sha256"]))

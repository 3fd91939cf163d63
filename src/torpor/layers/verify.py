"""Looking whether files are what was written: every byte is read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torpor.base.sparse import sparse_sha256
from torpor.errors import TorporError
from torpor.layers.manifest import MANIFEST, LayerRef, Manifest, read_manifest
from torpor.layers.ram_merge import is_image_of
from torpor.model import SnapshotId


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of a snapshot that is not what was written."""

    layer: str
    """A layer's id, or `devices`, `manifest`, `inventory` or `image`."""
    problem: str
    dependents: tuple[SnapshotId, ...]
    """All snapshots that need it."""


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hex; of a whole disk (`.raw`), which is mostly holes, see `sparse_sha256`."""
    if path.suffix == ".raw":
        return sparse_sha256(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def misfit_of(ref: LayerRef, path: Path) -> str | None:
    """Return what can be seen to be wrong with the file of `ref` without reading it; None: nothing."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return "it is missing"
    except OSError as exc:
        return f"it cannot be read: {exc}"
    return None if size == ref.size_bytes else f"it has {size} bytes instead of {ref.size_bytes}"


def damage_of(ref: LayerRef, path: Path) -> str | None:
    """Return what is wrong with the file of `ref`; None when it is what was written."""
    problem = misfit_of(ref, path)
    if problem is not None:
        return problem
    try:
        return None if digest(path) == ref.sha256 else "its content is not what was written"
    except FileNotFoundError:
        return "it is missing"
    except OSError as exc:
        return f"it cannot be read: {exc}"


def damage_of_manifest(manifest: Manifest, folder: Path) -> str | None:
    """Return what is wrong with the manifest on disk, whose content is `manifest`."""
    try:
        found = read_manifest(folder)
    except (TorporError, OSError) as exc:
        missing = not (folder / MANIFEST).exists()
        return "it is missing" if missing else f"it cannot be read: {exc}"
    return None if found == manifest else "its content is not what was written"


def damage_of_image(image: Path, layers: Sequence[Path], *, is_mapped: bool) -> str | None:
    """Return what is wrong with a RAM image; one that is not there is made again, unless a machine maps it."""
    if not image.exists():
        return "it is missing while a machine maps it" if is_mapped else None
    try:
        return None if is_image_of(layers, image) else "it is not what its layers hold"
    except FileNotFoundError:  # evicted meanwhile; a layer that is missing is said of the layer
        return None
    except (TorporError, OSError) as exc:
        return f"it cannot be compared with its layers: {exc}"

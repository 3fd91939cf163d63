"""The note beside a layer: its size and digest, so that the layer is not read again for each snapshot.

What a note says goes into manifests, so it has a checksum of its own: a note that was damaged is never believed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from torpor.base.fsio import read_json, write_json
from torpor.errors import DataDamaged
from torpor.layers.manifest import LayerRef

_LIMIT_BYTES = 4096


def read_note(path: Path, layer_id: str) -> LayerRef:
    """Return what the note of a layer says.

    Raises:
        NotFound: there is none.
        DataDamaged: it is not what was written, or another layer's, or of a version that wrote no checksum.
    """
    try:
        raw: Any = read_json(path, limit_bytes=_LIMIT_BYTES)
        found = LayerRef(layer_id, int(raw["size_bytes"]), str(raw["sha256"]))
        is_whole = raw["checksum"] == _checksum(found)
    except (KeyError, TypeError, ValueError, OverflowError, OSError, RecursionError) as exc:
        raise DataDamaged(f"{path} is not the note of a layer: {exc!r}", path=path) from exc
    if not is_whole:
        raise DataDamaged(
            f"{path} is not the note of layer {layer_id}: its checksum is wrong", path=path
        )
    return found


def write_note(path: Path, ref: LayerRef) -> None:
    """Write the note of a layer, durably."""
    body = {"size_bytes": ref.size_bytes, "sha256": ref.sha256, "checksum": _checksum(ref)}
    write_json(path, body, mode=0o400)


def _checksum(ref: LayerRef) -> str:
    return hashlib.sha256(f"{ref.id} {ref.size_bytes} {ref.sha256}".encode()).hexdigest()

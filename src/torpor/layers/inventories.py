"""The inventory of a snapshot: a file beside its manifest, which says whether there is one and has its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor.base.fsio import read_json
from torpor.errors import DataDamaged, NotFound
from torpor.model_inventory import Inventory, inventory_from_json

INVENTORY = "inventory.json"
TAKEN = "taken"
EARLIER = "not taken: by an earlier version"
BYTES_MOST = 32 << 20


@dataclass(frozen=True, slots=True)
class InventoryRef:
    """What a manifest says of the inventory."""

    note: str
    """`taken`, `incomplete: why` or `not taken: why`."""
    size_bytes: int = 0
    sha256: str = ""
    """Empty: there is no file."""

    @property
    def is_there(self) -> bool:
        """Whether there is a file."""
        return bool(self.sha256)


UNKNOWN = InventoryRef(EARLIER)


def encoded(inventory: Inventory, note: str) -> tuple[InventoryRef, bytes]:
    """Return the bytes that are stored, and what the manifest says of them."""
    data = json.dumps(inventory.to_json(), separators=(",", ":"), sort_keys=True).encode()
    return InventoryRef(note, len(data), hashlib.sha256(data).hexdigest()), data


def read_inventory(folder: Path, ref: InventoryRef) -> Inventory:
    """Return the inventory in a snapshot's folder. Blocks.

    Raises:
        NotFound: there is none; the message says why.
        DataDamaged: it is not what was written.
    """
    if not ref.is_there:
        raise NotFound(f"snapshot {folder.name} has no inventory: {ref.note}")
    path = folder / INVENTORY
    problem = damage_of_inventory(folder, ref)
    if problem is not None:
        raise DataDamaged(
            f"the inventory of snapshot {folder.name} is damaged: {problem}", path=path
        )
    return inventory_from_json(read_json(path, limit_bytes=BYTES_MOST), source=str(path))


def damage_of_inventory(folder: Path, ref: InventoryRef) -> str | None:
    """Return what is wrong with the file; None when it is what was written, or when there is none. Blocks."""
    if not ref.is_there:
        return None
    try:
        with (folder / INVENTORY).open("rb") as file:
            data = file.read(ref.size_bytes + 1)
    except FileNotFoundError:
        return "it is missing"
    except OSError as exc:
        return f"it cannot be read: {exc}"
    same = len(data) == ref.size_bytes and hashlib.sha256(data).hexdigest() == ref.sha256
    return None if same else "its content is not what was written"


def ref_to_json(ref: InventoryRef) -> dict[str, object]:
    """Return it as a manifest has it."""
    return {"note": ref.note, "size_bytes": ref.size_bytes, "sha256": ref.sha256}


def ref_from_json(raw: Mapping[str, Any] | None) -> InventoryRef:
    """Return what a manifest says; null is what earlier versions wrote."""
    if raw is None:
        return UNKNOWN
    return InventoryRef(str(raw["note"]), int(raw["size_bytes"]), str(raw["sha256"]))

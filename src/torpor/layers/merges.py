"""Merged layers: one layer that holds what a run of layers hold together, so that chains stay short.

Manifests never change, so what a merged layer stands for is said in a note beside it, `layers/ID.merged`. The note
is written last, after the layer is durable and was proven to be equal; without a note the layer is rubbish. A run
is named by its *first* layers, those that machines wrote: a merged layer that is merged again is named by what it
stands for itself. Every first layer was made over one certain layer, so a run lies over the same chain wherever it
is found.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torpor.base.fsio import read_json, write_json
from torpor.errors import DataDamaged
from torpor.layers.manifest import LayerRef

NOTE = ".merged"
FORMAT = 1
Kind = Literal["disk", "ram"]


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged layer and what it stands for."""

    ref: LayerRef
    kind: Kind
    replaces: tuple[str, ...]
    """First layers, the oldest first."""


class Merges:
    """All merged layers of a home. May be used from several threads."""

    def __init__(self, layers: Path) -> None:
        self._layers = layers
        self._lock = threading.Lock()
        self._notes: dict[str, Merged] = {}
        self._usable: dict[str, list[Merged]] = {}
        """By the first of the layers that they replace, the longest first; only those whose file is there."""
        self.version = 0
        """Raised by every change."""

    def load(self, file_of: Callable[[Merged], Path]) -> list[DataDamaged]:
        """Read all notes; a damaged one is as good as none, and is returned as an error."""
        notes, problems = {}, []
        for path in self._layers.glob(f"*{NOTE}"):
            try:
                found = read_note(path)
            except DataDamaged as exc:
                problems.append(exc)
            else:
                notes[found.ref.id] = found
        there = [note for note in notes.values() if file_of(note).exists()]
        with self._lock:
            self._notes, self._usable = notes, {}
            for note in there:
                self._use(note)
            self.version += 1
        return problems

    def add(self, merged: Merged) -> None:
        """Write the note of a layer that is durable, and use it from now on."""
        write_json(self.path(merged.ref.id), _to_json(merged), mode=0o400)
        with self._lock:
            self._notes[merged.ref.id] = merged
            self._use(merged)
            self.version += 1

    def _use(self, merged: Merged) -> None:
        found = [*self._usable.get(merged.replaces[0], ()), merged]
        self._usable[merged.replaces[0]] = sorted(found, key=lambda m: (-len(m.replaces), m.ref.id))

    def file_gone(self, layer_id: str) -> None:
        """Use a merged layer no more: its file was collected. Its note may still say what it stood for."""
        with self._lock:
            merged = self._notes.get(layer_id)
            if merged is None:
                return
            first = merged.replaces[0]
            self._usable[first] = [m for m in self._usable.get(first, ()) if m is not merged]
            self.version += 1

    def note_gone(self, layer_id: str) -> None:
        """Forget a merged layer: its note was collected, and its file with it."""
        self.file_gone(layer_id)
        with self._lock:
            self._notes.pop(layer_id, None)

    def path(self, layer_id: str) -> Path:
        """Return the note of a merged layer."""
        return self._layers / f"{layer_id}{NOTE}"

    def first_layers(self, chain: Iterable[str]) -> tuple[str, ...]:
        """Return a chain with what merged layers stand for in their place."""
        found: list[str] = []
        for layer_id in chain:
            note = self._notes.get(layer_id)
            found.extend((layer_id,) if note is None else note.replaces)
        return tuple(found)

    def shortest(self, chain: Sequence[str]) -> tuple[str, ...]:
        """Return the shortest chain that is known to hold the same as `chain`."""
        first = self.first_layers(chain)
        found: list[str] = []
        at = 0
        while at < len(first):
            merged = next((m for m in self._usable.get(first[at], ()) if _fits(m, first, at)), None)
            found.append(first[at] if merged is None else merged.ref.id)
            at += 1 if merged is None else len(merged.replaces)
        return tuple(found) if len(found) < len(chain) else tuple(chain)

    def shortened(self, refs: Sequence[LayerRef]) -> tuple[LayerRef, ...]:
        """Return `refs` as the shortest chain that is known to hold the same."""
        if not self._notes:
            return tuple(refs)
        known = {ref.id: ref for ref in refs}
        chain = self.shortest([ref.id for ref in refs])
        if any(layer not in known and layer not in self._notes for layer in chain):
            return tuple(refs)  # a part of a merged layer of which nobody wrote down the digest
        return tuple(known.get(layer) or self._notes[layer].ref for layer in chain)


def _fits(merged: Merged, first: Sequence[str], at: int) -> bool:
    return tuple(first[at : at + len(merged.replaces)]) == merged.replaces


def read_note(path: Path) -> Merged:
    """Return what a note says.

    Raises:
        DataDamaged: it is not what was written.
    """
    raw: Any = read_json(path)
    try:
        merged = Merged(
            LayerRef(str(raw["id"]), int(raw["size_bytes"]), str(raw["sha256"])),
            raw["kind"],
            tuple(str(layer) for layer in raw["replaces"]),
        )
        good = raw == _to_json(merged) and f"{merged.ref.id}{NOTE}" == path.name
    except (KeyError, TypeError, ValueError) as exc:
        raise DataDamaged(f"{path} is not the note of a merged layer: {exc!r}", path=path) from exc
    if not good or not merged.replaces:
        raise DataDamaged(f"{path} is not what was written", path=path)
    return merged


def _to_json(merged: Merged) -> dict[str, object]:
    body: dict[str, object] = {
        "format": FORMAT,
        "id": merged.ref.id,
        "kind": merged.kind,
        "replaces": list(merged.replaces),
        "size_bytes": merged.ref.size_bytes,
        "sha256": merged.ref.sha256,
    }
    text = json.dumps(body, sort_keys=True).encode()
    return body | {"checksum": hashlib.sha256(text).hexdigest()}

"""`Catalog`: all manifests in memory, found by id, sandbox and template without a walk over all of them."""

from __future__ import annotations

import bisect
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime

from torpor.layers.manifest import Manifest
from torpor.model import SandboxId, SnapshotId, SnapshotInfo

_Key = tuple[datetime, SnapshotId]


class _Shelf:
    """Manifests in the order in which they were made."""

    __slots__ = ("_items", "_keys")

    def __init__(self) -> None:
        self._keys: list[_Key] = []
        self._items: list[Manifest] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, manifest: Manifest) -> None:
        key = (manifest.info.created_at, manifest.info.id)
        at = bisect.bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._items.insert(at, manifest)

    def discard(self, manifest: Manifest) -> None:
        at = bisect.bisect_left(self._keys, (manifest.info.created_at, manifest.info.id))
        del self._keys[at]
        del self._items[at]

    def newest_first(self) -> list[Manifest]:
        return self._items[::-1]


class Catalog:
    """The snapshots that exist. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.on_change: Callable[[SnapshotInfo, bool], None] = lambda _info, _is_there: None
        """Told of each snapshot that came to be, or is gone, in the thread that did it."""
        self._empty()

    def _empty(self) -> None:
        self._by_id: dict[SnapshotId, Manifest] = {}
        self._all = _Shelf()
        self._by_sandbox: defaultdict[SandboxId, _Shelf] = defaultdict(_Shelf)
        self._of_template: defaultdict[str, _Shelf] = defaultdict(_Shelf)
        self.version = 0
        """Raised by every change."""

    def fill(self, manifests: Iterable[Manifest]) -> None:
        """Forget all and hold `manifests`."""
        with self._lock:
            version = self.version
            self._empty()
            self.version = version + 1
            for manifest in sorted(manifests, key=lambda m: (m.info.created_at, m.info.id)):
                self._add(manifest)

    def add(self, manifest: Manifest) -> None:
        """Hold one more."""
        with self._lock:
            self.version += 1
            self._add(manifest)
        self.on_change(manifest.info, True)

    def _add(self, manifest: Manifest) -> None:
        info = manifest.info
        self._by_id[info.id] = manifest
        for shelf in self._shelves(manifest):
            shelf.add(manifest)

    def discard(self, manifest: Manifest) -> None:
        """Forget one; nothing happens if it is not held."""
        info = manifest.info
        with self._lock:
            if self._by_id.pop(info.id, None) is None:
                return
            self.version += 1
            for shelf in self._shelves(manifest):
                shelf.discard(manifest)
            if info.sandbox_id is not None and not self._by_sandbox[info.sandbox_id]:
                del self._by_sandbox[info.sandbox_id]
        self.on_change(info, False)

    def _shelves(self, manifest: Manifest) -> list[_Shelf]:
        info = manifest.info
        shelves = [self._all]
        if info.sandbox_id is not None:
            shelves.append(self._by_sandbox[info.sandbox_id])
        if info.reason == "template":
            shelves.append(self._of_template[info.template_digest])
        return shelves

    def get(self, snapshot_id: SnapshotId) -> Manifest | None:
        """Return one, or None."""
        return self._by_id.get(snapshot_id)

    def all(self) -> list[Manifest]:
        """Return all, newest first."""
        with self._lock:
            return self._all.newest_first()

    def of_sandbox(self, sandbox_id: SandboxId) -> list[Manifest]:
        """Return those that were taken of a sandbox, newest first."""
        with self._lock:
            shelf = self._by_sandbox.get(sandbox_id)
            return [] if shelf is None else shelf.newest_first()

    def of_template(self, digest: str) -> list[Manifest]:
        """Return a template's own snapshots, newest first."""
        with self._lock:
            shelf = self._of_template.get(digest)
            return [] if shelf is None else shelf.newest_first()

    def ids(self) -> frozenset[SnapshotId]:
        """Return the ids of all."""
        with self._lock:
            return frozenset(self._by_id)

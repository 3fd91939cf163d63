"""Layers that are being made or taken into use: nothing names them yet, and collection must leave them alone."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator


class Pins:
    """Counts who holds which layer. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, *layers: str) -> Iterator[None]:
        """Hold `layers` until the context is left; a layer whose file is there then stays."""
        with self._lock:
            self._held.update(layers)
        try:
            yield
        finally:
            with self._lock:
                self._held.subtract(layers)
                self._held += Counter()

    @property
    def now(self) -> frozenset[str]:
        """The layers that are held."""
        with self._lock:
            return frozenset(self._held)

    def if_free(self, layer: str, act: Callable[[], object]) -> bool:
        """Do `act`, which must be short, unless `layer` is held; nobody can take hold of it meanwhile."""
        with self._lock:
            if layer in self._held:
                return False
            act()
            return True

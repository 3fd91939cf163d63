"""Layers that are being made: nothing names them yet, and collection must leave them alone."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator


class Pins:
    """Counts who holds which layer. For one event loop."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, *layers: str) -> Iterator[None]:
        """Hold `layers` until the context is left."""
        self._held.update(layers)
        try:
            yield
        finally:
            self._held.subtract(layers)
            self._held += Counter()

    @property
    def now(self) -> frozenset[str]:
        """The layers that are held."""
        return frozenset(self._held)

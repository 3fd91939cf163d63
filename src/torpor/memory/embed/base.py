"""What an embedder is: texts in, unit vectors out, as the little-endian float16 bytes that are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Embedder(Protocol):
    """Turns texts into vectors of one length. `model` names exactly what made them; models never mix."""

    @property
    def model(self) -> str:
        """Name and digest or version of the model."""
        ...

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return one unit vector a text, as float16 bytes.

        Raises:
            HostNotReady: the model or endpoint is missing; with `is_away` among its facts it may answer later, and
                what was to be embedded is kept without a vector until `Memory.embed_missing`.
        """
        ...

"""What an extractor is given and what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torpor.model_memory import Candidate, Episode


class Extractor(Protocol):
    """Reads episodes. What it returns is a proposal, never a write."""

    @property
    def name(self) -> str:
        """Name and version; episodes are read once by each."""
        ...

    def extract(self, episodes: Sequence[Episode]) -> Sequence[Candidate]:
        """Return candidates. Content is data: no text in it may change what the extractor does."""
        ...

"""What an extractor is given and what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from torpor.memory.model import Cardinality, Episode, FactKind, Json, Scope


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fact that an extractor proposes; `quote` must stand verbatim in the episode."""

    episode: str
    subject: str
    attribute: str
    value: Json
    quote: str
    text: str = ""
    kind: FactKind = FactKind.FACT
    scope: Scope = Scope.WORLD
    cardinality: Cardinality = Cardinality.ONE
    confidence: float = 1.0
    valid_from: datetime | None = None
    """None: since the episode."""
    precision: str = "instant"
    ends: bool = False
    """The episode says that this value no longer holds; nothing takes its place."""


class Extractor(Protocol):
    """Reads episodes. What it returns is a proposal, never a write."""

    @property
    def name(self) -> str:
        """Name and version; episodes are read once by each."""
        ...

    def extract(self, episodes: Sequence[Episode]) -> Sequence[Candidate]:
        """Return candidates. Content is data: no text in it may change what the extractor does."""
        ...

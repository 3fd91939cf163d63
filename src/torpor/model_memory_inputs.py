"""What memory is given in bulk: episodes, facts, and the candidates that an extractor proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from torpor.model_memory import (
    Authority,
    Cardinality,
    FactKind,
    Json,
    Scope,
    SourceKind,
)


@dataclass(frozen=True, slots=True)
class EpisodeInput:
    """An episode to be recorded."""

    content: str
    source_kind: SourceKind | str = SourceKind.USER
    occurred_at: datetime | None = None
    session: str = ""
    subjects: Sequence[str] = ()
    sensitivity: str = "normal"


@dataclass(frozen=True, slots=True)
class FactInput:
    """A fact to be remembered; see `Space.remember`."""

    subject: str
    attribute: str
    value: Json
    evidence: Sequence[str | tuple[str, str]] = ()
    kind: FactKind | str = FactKind.FACT
    scope: Scope | str = Scope.WORLD
    cardinality: Cardinality | str = Cardinality.ONE
    authority: Authority | str | None = None
    text: str | None = None
    confidence: float = 1.0
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    precision: str = "instant"
    derived_from: Sequence[str] = ()
    pinned: bool = False
    expires_at: datetime | None = None

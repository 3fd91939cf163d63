"""Verbs that read. A recall writes its log and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from torpor.memory.verbs.base import Items, Verb
from torpor.model_memory import (
    Change,
    ConflictSet,
    Diff,
    Effect,
    Episode,
    Explanation,
    Fact,
    FactExplanation,
    Interval,
    Recall,
    Status,
    WhyNot,
)

if TYPE_CHECKING:
    from torpor.memory.space import Space

DEFAULT_K = 8
DEFAULT_TOKENS = 1200

KnownAt = Annotated[
    int | datetime | None,
    Field(description="A transaction number, or a time with a zone: what was known then."),
]
ValidAt = Annotated[datetime | None, Field(description="What was true then; now by default.")]


class RecallVerb(Verb):
    """Return what is about a query and holds, within a budget, and log why."""

    name = "recall"
    answer = Recall
    writes = False
    query: str
    k: int = DEFAULT_K
    token_budget: int = DEFAULT_TOKENS
    valid_at: ValidAt = None
    known_at: KnownAt = None
    kinds: list[str] | None = None
    scopes: list[str] | None = None
    include: Sequence[Status] = ()
    exclude: Sequence[str] = ()

    @override
    def run(self, space: Space) -> Recall:
        return space.recall(
            self.query,
            k=self.k,
            token_budget=self.token_budget,
            valid_at=self.valid_at,
            known_at=self.known_at,
            kinds=self.kinds,
            scopes=self.scopes,
            include=self.include,
            exclude=self.exclude,
        )


class Explain(Verb):
    """Return why a recall gave what it gave, or why a fact is held; `target` is the id of either."""

    name = "explain"
    answer = Explanation | FactExplanation
    writes = False
    reads_by_get = True
    target: str

    @override
    def run(self, space: Space) -> Explanation | FactExplanation:
        return space.explain(self.target)


class WhyNotVerb(Verb):
    """Return why a recall of `query` does not give a fact; `recalled` if it does."""

    name = "why_not"
    answer = WhyNot
    writes = False
    fact_id: str
    query: str
    k: int = DEFAULT_K
    token_budget: int = DEFAULT_TOKENS
    valid_at: ValidAt = None
    known_at: KnownAt = None

    @override
    def run(self, space: Space) -> WhyNot:
        return space.why_not(
            self.fact_id,
            self.query,
            k=self.k,
            token_budget=self.token_budget,
            valid_at=self.valid_at,
            known_at=self.known_at,
        )


class Facts(Verb):
    """Return the facts that hold, of one subject and attribute or of all."""

    name = "facts"
    answer = Items[Fact]
    writes = False
    reads_by_get = True
    subject: str | None = None
    attribute: str | None = None
    valid_at: ValidAt = None
    known_at: KnownAt = None
    include: Sequence[Status] = ()

    @override
    def run(self, space: Space) -> list[Fact]:
        return space.facts(
            self.subject,
            self.attribute,
            valid_at=self.valid_at,
            known_at=self.known_at,
            include=self.include,
        )


class OneFact(Verb):
    """Return one fact, whatever became of it."""

    name = "fact"
    answer = Fact
    writes = False
    reads_by_get = True
    fact_id: str
    known_at: KnownAt = None

    @override
    def run(self, space: Space) -> Fact:
        return space.fact(self.fact_id, known_at=self.known_at)


class OneEpisode(Verb):
    """Return one episode."""

    name = "episode"
    answer = Episode
    writes = False
    reads_by_get = True
    episode_id: str

    @override
    def run(self, space: Space) -> Episode:
        return space.episode(self.episode_id)


class Episodes(Verb):
    """Return the episodes in the order they were recorded."""

    name = "episodes"
    answer = Items[Episode]
    writes = False
    reads_by_get = True
    session: str | None = None
    known_at: KnownAt = None

    @override
    def run(self, space: Space) -> list[Episode]:
        return space.episodes(self.session, known_at=self.known_at)


class Unread(Verb):
    """Return the episodes that an extractor of that name has not read, oldest first."""

    name = "unread"
    answer = Items[Episode]
    writes = False
    reads_by_get = True
    extractor: str

    @override
    def run(self, space: Space) -> list[Episode]:
        return space.unread(self.extractor)


class History(Verb):
    """Return all that happened to a fact and its versions, or to a subject's attribute."""

    name = "history"
    answer = Items[Change]
    writes = False
    reads_by_get = True
    fact_id: str | None = None
    subject: str | None = None
    attribute: str | None = None

    @override
    def run(self, space: Space) -> list[Change]:
        return space.history(self.fact_id, subject=self.subject, attribute=self.attribute)


class Timeline(Verb):
    """Return what held about a subject, from when to when."""

    name = "timeline"
    answer = Items[Interval]
    writes = False
    reads_by_get = True
    subject: str
    known_at: KnownAt = None

    @override
    def run(self, space: Space) -> list[Interval]:
        return space.timeline(self.subject, known_at=self.known_at)


class DiffVerb(Verb):
    """Return which facts came to hold and which ceased between two transactions."""

    name = "diff"
    answer = Diff
    writes = False
    reads_by_get = True
    tx1: int
    tx2: int
    valid_at: ValidAt = None

    @override
    def run(self, space: Space) -> Diff:
        return space.diff(self.tx1, self.tx2, valid_at=self.valid_at)


class Conflicts(Verb):
    """Return the conflicts that wait for a decision."""

    name = "conflicts"
    answer = Items[ConflictSet]
    writes = False
    reads_by_get = True
    include_resolved: bool = False

    @override
    def run(self, space: Space) -> list[ConflictSet]:
        return space.conflicts(include_resolved=self.include_resolved)


class Effects(Verb):
    """Return all effects on the outside world, oldest first; no restore takes one back."""

    name = "effects"
    answer = Items[Effect]
    writes = False
    reads_by_get = True

    @override
    def run(self, space: Space) -> list[Effect]:
        return space.effects()


READING: tuple[type[Verb], ...] = (
    RecallVerb,
    Explain,
    WhyNotVerb,
    Facts,
    OneFact,
    Episodes,
    OneEpisode,
    Unread,
    History,
    Timeline,
    DiffVerb,
    Conflicts,
    Effects,
)
"""In the order of the reference."""

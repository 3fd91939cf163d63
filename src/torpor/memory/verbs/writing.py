"""Verbs that put something into memory, change it, or take it out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from torpor.errors import InvalidRequest
from torpor.memory.verbs.base import Items, Verb
from torpor.model_memory import (
    Authority,
    Candidate,
    Cardinality,
    Done,
    Effect,
    Episode,
    Fact,
    FactKind,
    Json,
    Plan,
    Receipt,
    Scope,
    SourceKind,
)
from torpor.model_memory_inputs import EpisodeInput, FactInput

if TYPE_CHECKING:
    from torpor.memory.space import Space


class Record(Verb):
    """Keep what happened, verbatim, durably, at once."""

    name = "record"
    answer = Episode
    content: str
    source_kind: SourceKind = SourceKind.USER
    occurred_at: datetime | None = None
    session: str = ""
    subjects: Sequence[str] = ()
    sensitivity: str = "normal"
    reason: str = ""

    @override
    def run(self, space: Space) -> Episode:
        return space.record(
            self.content,
            self.source_kind,
            occurred_at=self.occurred_at,
            session=self.session,
            subjects=self.subjects,
            sensitivity=self.sensitivity,
            reason=self.reason,
        )


class RecordMany(Verb):
    """Keep several episodes in one transaction: all of them or none."""

    name = "record_many"
    answer = Items[Episode]
    episodes: list[EpisodeInput]
    reason: str = ""

    @override
    def run(self, space: Space) -> list[Episode]:
        return space.record_many(self.episodes, reason=self.reason)


class Remember(Verb):
    """Claim that an attribute of a subject has a value; answers with the fact that now stands for it."""

    name = "remember"
    answer = Fact
    subject: str
    attribute: str
    value: Json
    evidence: Sequence[str | tuple[str, str]] = ()
    kind: FactKind = FactKind.FACT
    scope: Scope = Scope.WORLD
    cardinality: Cardinality = Cardinality.ONE
    authority: Authority | None = None
    text: str | None = None
    confidence: float = 1.0
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    precision: str = "instant"
    derived_from: Sequence[str] = ()
    pinned: bool = False
    expires_at: datetime | None = None
    reason: str = ""

    @override
    def run(self, space: Space) -> Fact:
        given = {name: getattr(self, name) for name in Remember.model_fields}
        return space.remember(**given)


class RememberMany(Verb):
    """Make several claims in one transaction, in order: all of them or none."""

    name = "remember_many"
    answer = Items[Fact]
    facts: list[FactInput]
    reason: str = ""

    @override
    def run(self, space: Space) -> list[Fact]:
        return space.remember_many(self.facts, reason=self.reason)


class Supersede(Verb):
    """Say that the world changed: `old` ends when `new` begins."""

    name = "supersede"
    answer = Done
    old: str
    new: str
    reason: str

    @override
    def run(self, space: Space) -> Done:
        return space.supersede(self.old, self.new, self.reason)


class Correct(Verb):
    """Say that a fact was wrong from the start; answers with the right one, which takes its place in time."""

    name = "correct"
    answer = Fact
    fact_id: str
    value: Json
    reason: str
    text: str | None = None

    @override
    def run(self, space: Space) -> Fact:
        return space.correct(self.fact_id, self.value, self.reason, text=self.text)


class Retract(Verb):
    """Take back a fact or an episode; what rested on it is suspended, what it replaced returns."""

    name = "retract"
    answer = Done
    target: str
    reason: str

    @override
    def run(self, space: Space) -> Done:
        return space.retract(self.target, self.reason)


class Restore(Verb):
    """Undo a retraction, suspension or correction."""

    name = "restore"
    answer = Done
    target: str
    reason: str = ""

    @override
    def run(self, space: Space) -> Done:
        return space.restore(self.target, self.reason)


class Pin(Verb):
    """Let a fact surface before others, or no longer."""

    name = "pin"
    answer = Done
    fact_id: str
    pinned: bool = True
    reason: str = ""

    @override
    def run(self, space: Space) -> Done:
        return space.pin(self.fact_id, pinned=self.pinned, reason=self.reason)


class Expire(Verb):
    """Let a fact hold only until `at`, now by default."""

    name = "expire"
    answer = Done
    fact_id: str
    at: datetime | None = None
    reason: str = ""

    @override
    def run(self, space: Space) -> Done:
        return space.expire(self.fact_id, at=self.at, reason=self.reason)


class Resolve(Verb):
    """Settle a conflict by the fact that holds, or `both`."""

    name = "resolve"
    answer = Done
    conflict_id: str
    choice: str
    reason: str = ""

    @override
    def run(self, space: Space) -> Done:
        return space.resolve(self.conflict_id, self.choice, self.reason)


class Revert(Verb):
    """Undo one transaction; what was changed again since is skipped and listed."""

    name = "revert"
    answer = Done
    from_inside = False
    tx: int
    reason: str = ""

    @override
    def run(self, space: Space) -> Done:
        return space.revert(self.tx, self.reason)


class Consolidate(Verb):
    """Make facts from the episodes that were not read yet, by rule, in one transaction.

    With `dry_run` the answer is the plan and nothing is written; give it to `apply`. With `extractor` and
    `candidates` those are used instead of the rules (see `unread`): the quotes are checked all the same.
    """

    name = "consolidate"
    answer = Plan
    dry_run: bool = False
    reason: str = ""
    extractor: Annotated[str | None, Field(description="The name of an extractor elsewhere.")] = (
        None
    )
    episodes: Annotated[Sequence[str], Field(description="What it read, by id.")] = ()
    candidates: Annotated[Sequence[Candidate], Field(description="What it proposes.")] = ()

    @override
    def run(self, space: Space) -> Plan:
        if self.extractor is None:
            if self.episodes or self.candidates:
                raise InvalidRequest(
                    "episodes and candidates come from an extractor, which is not named"
                )
            return space.consolidate(dry_run=self.dry_run, reason=self.reason)
        plan = space.plan_of(self.extractor, self.episodes, self.candidates)
        return plan if self.dry_run else space.apply(plan, reason=self.reason)


class Apply(Verb):
    """Carry out a plan of a dry run."""

    name = "apply"
    answer = Plan
    plan: Plan
    reason: str = ""

    @override
    def run(self, space: Space) -> Plan:
        return space.apply(self.plan, reason=self.reason)


class Erase(Verb):
    """Erase for good, on all branches, with everything made from it, and verify that no byte is left."""

    name = "erase"
    answer = Receipt
    from_inside = False
    fact: str | None = None
    episode: str | None = None
    session: str | None = None
    subject: str | None = None
    dry_run: bool = False
    reason: str = ""

    @override
    def run(self, space: Space) -> Receipt:
        return space.erase(
            fact=self.fact,
            episode=self.episode,
            session=self.session,
            subject=self.subject,
            dry_run=self.dry_run,
            reason=self.reason,
        )


class VerifyErasure(Verb):
    """Look again for the bytes of an erasure that a reader kept from being verified."""

    name = "verify_erasure"
    answer = Receipt
    from_inside = False
    receipt_id: str

    @override
    def run(self, space: Space) -> Receipt:
        return space.verify_erasure(self.receipt_id)


class NoteEffect(Verb):
    """Note an effect on the outside world under an idempotency key, before doing it; `fresh` if it is the first."""

    name = "effect"
    answer = Effect
    key: str
    what: str
    outcome: str = "started"

    @override
    def run(self, space: Space) -> Effect:
        return space.effect(self.key, self.what, outcome=self.outcome)


class FinishEffect(Verb):
    """Note how an effect ended."""

    name = "finish_effect"
    answer = Effect
    key: str
    outcome: str = "done"

    @override
    def run(self, space: Space) -> Effect:
        return space.finish_effect(self.key, self.outcome)


WRITING: tuple[type[Verb], ...] = (
    Record,
    RecordMany,
    Remember,
    RememberMany,
    Supersede,
    Correct,
    Retract,
    Restore,
    Pin,
    Expire,
    Resolve,
    Revert,
    Consolidate,
    Apply,
    Erase,
    VerifyErasure,
    NoteEffect,
    FinishEffect,
)
"""In the order of the reference."""

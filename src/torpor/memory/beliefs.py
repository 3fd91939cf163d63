"""The facts of a view: their claims, whether they hold at a moment, and how they look to a caller.

A `Beliefs` is made for one operation; it loads the keys it is asked about once and keeps them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from torpor.errors import NotFound
from torpor.memory import belief
from torpor.memory.belief import Claim
from torpor.memory.rows import ConflictRow, EpisodeRow, FactRow, StateRow
from torpor.memory.times import to_time, to_time_or_none
from torpor.memory.view import View
from torpor.model_memory import (
    RANK,
    Authority,
    Cardinality,
    Episode,
    Fact,
    FactKind,
    Scope,
    SourceKind,
    Status,
)


class Beliefs:
    """What one view holds true, by key."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.rows: dict[str, FactRow] = {}
        self.states: dict[str, StateRow] = {}
        self._by_key: dict[str, list[Claim]] = {}
        self._ids_by_key: defaultdict[str, list[str]] = defaultdict(list)
        self._status: dict[tuple[str, int], Status] = {}
        self._accepted: dict[str, frozenset[str]] = {}

    def load(self, fact_ids: Iterable[str]) -> list[FactRow]:
        """Load facts with all that shares a key with them; return those of `fact_ids` that the view has."""
        wanted = list(dict.fromkeys(fact_ids))
        missing = [i for i in wanted if i not in self.rows]
        found = self.view.store.select(FactRow, {"id": missing}) if missing else []
        self.load_keys(row.key for row in found)
        return [self.rows[i] for i in wanted if i in self.rows]

    def load_keys(self, keys: Iterable[str]) -> None:
        """Load all facts of `keys`."""
        fresh = [k for k in dict.fromkeys(keys) if k not in self._by_key]
        if not fresh:
            return
        rows = self.view.store.select(FactRow, {"key": fresh})
        states = self.view.states(row.id for row in rows)
        self.states.update(states)
        for row in rows:
            if row.id in states:
                self.rows[row.id] = row
                self._ids_by_key[row.key].append(row.id)
        enders = {s.ended_by for s in states.values() if s.ended_by and s.ended_by not in states}
        self.states.update(self.view.states(e for e in enders if e))
        for key in fresh:
            self._by_key[key] = [
                claim
                for i in self._ids_by_key[key]
                if self.states[i].status == Status.ACTIVE
                for claim in self._claims(self.rows[i])
            ]

    def claims(self, key: str) -> list[Claim]:
        """Return the believed claims of a key."""
        self.load_keys([key])
        return self._by_key[key]

    def holders(self, key: str, at: int) -> list[Claim]:
        """Return what holds for a key at a moment, newest first."""
        return belief.holders(self.claims(key), at)

    def holds(self, fact_id: str, at: int) -> bool:
        """Return whether a loaded fact is believed, in time and not displaced."""
        return self.status(fact_id, at) in (Status.ACTIVE, Status.DISPUTED)

    def status(self, fact_id: str, at: int) -> Status:
        """Return what a loaded fact is at a moment."""
        found = self._status.get((fact_id, at))
        if found is None:
            found = self._status[fact_id, at] = self._find_status(fact_id, at)
        return found

    def _find_status(self, fact_id: str, at: int) -> Status:
        row, state = self.rows[fact_id], self.states[fact_id]
        if state.status != Status.ACTIVE:
            return Status(state.status)
        claims = self.claims(row.key)
        mine = next(
            c for c in claims if c.id == fact_id
        )  # the first one; the next is a confirmation
        if at < mine.valid_from:
            return Status.FUTURE
        if mine.is_ended(at) or not mine.covers(at):
            expired = state.expires_at is not None and state.expires_at <= at
            return Status.EXPIRED if expired or mine.valid_to is not None else Status.SUPERSEDED
        if belief.displacer_of(claims, fact_id, at) is not None:
            return Status.SUPERSEDED
        rivals = {c.id for c in belief.holders(claims, at) if c.value != mine.value}
        if rivals and not self._is_accepted(row.key, {*rivals, fact_id}):
            return Status.DISPUTED
        return Status.ACTIVE

    def is_leading(self, fact_id: str, at: int) -> bool:
        """Return whether a fact speaks for its value: of several claims of one value only one does."""
        return any(c.id == fact_id for c in self.holders(self.rows[fact_id].key, at))

    def replaced_by(self, fact_id: str, at: int) -> str | None:
        """Return the fact that took the place of a loaded one."""
        row, state = self.rows[fact_id], self.states[fact_id]
        if state.status == Status.CORRECTED:
            return state.cause or None
        claims = self.claims(row.key)
        mine = next((c for c in claims if c.id == fact_id), None)
        if mine is None:
            return None
        if mine.is_ended(at):
            return state.ended_by
        found = belief.displacer_of(claims, fact_id, at)
        return None if found is None else found.id

    def fact(self, fact_id: str, at: int) -> Fact:
        """Return a fact as the view sees it at a moment.

        Raises:
            NotFound: the view has no such fact.
        """
        if fact_id not in self.rows and not self.load([fact_id]):
            raise NotFound(f"there is no fact {fact_id} on this branch", fact=fact_id)
        row, state = self.rows[fact_id], self.states[fact_id]
        claims = self.claims(row.key)
        believed = any(c.id == fact_id for c in claims)
        end = belief.effective_end(claims, fact_id) if believed else row.valid_to
        return Fact(
            id=row.id,
            tx=row.tx,
            branch=row.branch,
            kind=FactKind(row.kind),
            scope=Scope(row.scope),
            subject=row.subject,
            attribute=row.attribute,
            value=json.loads(row.value),
            text=row.text,
            cardinality=Cardinality(row.cardinality),
            confidence=row.confidence,
            authority=Authority(row.authority),
            valid_from=to_time(row.valid_from),
            valid_to=to_time_or_none(end),
            precision=row.precision,
            status=self.status(fact_id, at),
            pinned=bool(state.pinned),
            expires_at=to_time_or_none(state.expires_at),
            confirmed_at=to_time(state.confirmed_at),
            version_of=row.version_of,
            flag=state.flag,
        )

    def _claims(self, row: FactRow) -> list[Claim]:
        """A fact's claim, and the same claim again when it was confirmed later."""
        first = self._claim(row)
        confirmed = self.states[row.id].confirmed_at
        if confirmed <= row.valid_from or not first.covers(confirmed):
            return [first]
        return [first, replace(first, valid_from=confirmed)]

    def _claim(self, row: FactRow) -> Claim:
        state = self.states[row.id]
        authority = Authority(row.authority)
        return Claim(
            id=row.id,
            value=row.value_key,
            rank=RANK[authority],
            is_human=authority is Authority.HUMAN_EDITED,
            tx=row.tx,
            valid_from=row.valid_from,
            valid_to=row.valid_to,
            ended_at=self._end(state),
            refutes=self._refuted(row),
        )

    def _end(self, state: StateRow) -> int | None:
        ends = [] if state.expires_at is None else [state.expires_at]
        if state.ended_at is not None:
            ender = self.states.get(state.ended_by) if state.ended_by else None
            if not state.ended_by or (ender is not None and ender.status == Status.ACTIVE):
                ends.append(state.ended_at)
        return min(ends, default=None)

    def _refuted(self, row: FactRow) -> frozenset[str]:
        values: set[str] = set()
        parent = row.version_of
        while parent is not None and parent in self.rows:
            older = self.rows[parent]
            if self.states[parent].status == Status.CORRECTED:
                values.add(older.value_key)
            parent = older.version_of
        return frozenset(values - {row.value_key})

    def _is_accepted(self, key: str, ids: set[str]) -> bool:
        """Return whether someone decided that these facts may stand beside each other."""
        if key not in self._accepted:
            rows = self.view.seen(self.view.store.select(ConflictRow, {"key": key}))
            states = self.view.states(row.id for row in rows)
            both = [
                row.members.split()
                for row in rows
                if row.id in states
                and states[row.id].status == Status.RESOLVED
                and states[row.id].cause == "both"
            ]
            self._accepted[key] = frozenset(member for group in both for member in group)
        return ids <= self._accepted[key]


def to_episode(row: EpisodeRow, state: StateRow) -> Episode:
    """Return an episode as a view sees it."""
    return Episode(
        id=row.id,
        tx=row.tx,
        branch=row.branch,
        session=row.session,
        seq=row.seq,
        source_kind=SourceKind(row.source_kind),
        content=row.content,
        occurred_at=to_time(row.occurred_at),
        recorded_at=to_time(row.recorded_at),
        subjects=tuple(json.loads(row.subjects)),
        sensitivity=row.sensitivity,
        epoch=row.epoch,
        status=Status(state.status),
    )

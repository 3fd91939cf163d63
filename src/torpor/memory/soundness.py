"""Whether rows that come from outside can be rows of a memory: their types, words and times, and what they refer to.

A hash chain says that rows are those that were written; whoever writes a file anew can write its chain anew, too.
So an import also asks of each row what this code asks before it writes one: above all that the words behind a fact
are words of an episode.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from enum import StrEnum
from types import NoneType
from typing import Any, get_args, get_type_hints

from torpor.errors import TorporError
from torpor.memory import checks
from torpor.memory.claims import AUTHORITY_OF_SOURCE
from torpor.memory.files import check_file
from torpor.memory.recording import PRECISIONS
from torpor.memory.rows import (
    EXPORTED,
    TABLES,
    Branch,
    CheckRow,
    ConflictRow,
    ConsolidatedRow,
    DerivationRow,
    EpisodeRow,
    ErasureRow,
    EvidenceRow,
    FactRow,
    Head,
    StateRow,
    SupersessionRow,
    TombstoneRow,
    Txn,
    WatermarkRow,
)
from torpor.memory.times import EARLIEST_US, LATEST_US
from torpor.model_memory import Authority, Cardinality, FactKind, Scope, SourceKind, Status

Row = tuple[Any, ...]

_TIMES = frozenset(
    [
        "at",
        "occurred_at",
        "recorded_at",
        "valid_from",
        "valid_to",
        "ended_at",
        "expires_at",
        "confirmed_at",
    ]
)
_WORDS: dict[tuple[type[Row], str], type[StrEnum] | tuple[str, ...]] = {
    (EpisodeRow, "source_kind"): SourceKind,
    (FactRow, "kind"): FactKind,
    (FactRow, "scope"): Scope,
    (FactRow, "cardinality"): Cardinality,
    (FactRow, "authority"): Authority,
    (FactRow, "precision"): PRECISIONS,
    (StateRow, "status"): Status,
    (StateRow, "kind"): ("fact", "episode", "evidence", "conflict"),
    (EvidenceRow, "relation"): ("supports", "contradicts", "corrects"),
}
_MOST = 1 << 48
"""Transactions and epochs are far below it, and what is after it no view would see."""


def _types() -> dict[type[Row], list[tuple[str, tuple[type, ...]]]]:
    found = {}
    for table in EXPORTED:
        hints = get_type_hints(table)
        found[table] = [(name, get_args(kind) or (kind,)) for name, kind in hints.items()]
    return found


class Soundness:
    """Looks at the rows of one export in their order: tables one after the other, each as it was written."""

    def __init__(self) -> None:
        self._types = _types()
        self._seen: set[object] = set()
        self._branches: dict[str, Branch] = {}
        self._episodes: dict[str, tuple[int, bool, str]] = {}
        self._facts: dict[str, str] = {}
        self._unsupported: set[str] = set()
        self._erasures: set[str] = set()
        self._others: set[str] = set()
        self._later: dict[str, str] = {}

    def fault_of(self, row: Row) -> str | None:
        """Return what cannot be so about a row; None: it may be written, and others may refer to it."""
        table = type(row)
        fault = self._shape(row)
        if fault is None:
            try:
                fault = _LOOKS.get(table, _nothing)(self, row)
            except (TorporError, ValueError, RecursionError) as exc:
                fault = str(exc)
        name = row[0] if table is not Txn else f"transaction {row[0]}"
        return None if fault is None else f"{TABLES[table]} {name!r:.80}: {fault}"

    def faults_at_the_end(self) -> Iterator[str]:
        """Yield what only shows when all rows are there."""
        for fact in sorted(self._unsupported):
            yield f"fact {fact!r:.80}: there are no words behind it"
        for thing, state in sorted(self._later.items()):
            if thing not in self._others:
                yield f"state {state!r:.80}: of {thing!r:.80}, which is not there"

    def _shape(self, row: Row) -> str | None:
        table = type(row)
        for (name, kinds), value in zip(self._types[table], row, strict=True):
            fault = _value_fault(table, name, kinds, value)
            if fault is not None:
                return f"{name} {fault}"
        if (table, row[0]) in self._seen:
            return "it is there twice"
        if table not in (Txn, Branch) and row[2] not in self._branches:
            return f"there is no branch {row[2]!r:.80}"
        self._seen.add((table, row[0]))
        return None

    # --- one table each --------------------------------------------------------------------------

    def _branch(self, row: Branch) -> str | None:
        checks.name(row.agent, "agent")
        if row.branch != row.id or not row.fork_tx < row.tx:
            return "it is no branch of its own, or begins after itself"
        above = self._branches.get(row.parent or "")
        if (row.parent is None) != (above is None):
            return f"there is no branch {row.parent!r:.80} before it"
        if row.family != (row.id if above is None else above.family):
            return f"it is not of the family {row.family!r:.80}"
        self._branches[row.id] = row
        return None

    def _head(self, row: Head) -> str | None:
        checks.name(row.agent, "agent")
        return None

    def _episode(self, row: EpisodeRow) -> str | None:
        if row.family != self._branches[row.branch].family:
            return "it is of another family than its branch"
        if row.sha256 != hashlib.sha256(row.content.encode()).hexdigest():
            return "its content is not that of its digest"
        subjects = json.loads(row.subjects)
        if not isinstance(subjects, list) or not all(isinstance(s, str) for s in subjects):
            return "its subjects are no list of names"
        usable = row.source_kind in AUTHORITY_OF_SOURCE
        self._episodes[row.id] = (len(row.content), usable, row.family)
        return None

    def _fact(self, row: FactRow) -> str | None:
        family = self._branches[row.branch].family
        value = json.loads(row.value)
        parts = [family, checks.fold(row.subject), checks.fold(row.attribute)]
        if row.cardinality == Cardinality.MANY:
            parts.append(row.value_key)
        if checks.value_json(value) != row.value or checks.value_key(value) != row.value_key:
            return "its value is not in the form in which values are kept"
        if row.key != "\x1f".join(parts):
            return "its key is not that of its subject and attribute"
        if row.version_of is not None and row.version_of not in self._facts:
            return f"there is no fact {row.version_of!r:.80} that it corrected"
        checks.fraction(row.confidence, "confidence")
        if row.kind == FactKind.FILE:
            check_file(row.subject, row.attribute, value)
        self._facts[row.id] = family
        if row.authority != Authority.HUMAN_EDITED:
            self._unsupported.add(row.id)
        return None

    def _state(self, row: StateRow) -> str | None:
        if row.kind in ("evidence", "conflict"):
            self._later[row.object] = row.id
            return None
        if row.object not in (self._facts if row.kind == "fact" else self._episodes):
            return f"there is no {row.kind} {row.object!r:.80}"
        if row.status != Status.ACTIVE:
            self._unsupported.discard(row.object)  # an erasure took its words, and it is suspended
        return None

    def _evidence(self, row: EvidenceRow) -> str | None:
        family = self._facts.get(row.fact)
        length, usable, of = self._episodes.get(row.episode, (0, False, ""))
        if family is None or family != of:
            return (
                f"there is no fact {row.fact!r:.80} and episode {row.episode!r:.80} of one family"
            )
        if not usable:
            return f"words of {row.episode} cannot support a fact: memory itself gave them out"
        if not 0 <= row.start <= row.stop <= length:
            return f"there are no words from {row.start} to {row.stop} in {row.episode}"
        self._unsupported.discard(row.fact)
        self._others.add(row.id)
        return None

    def _derivation(self, row: DerivationRow) -> str | None:
        self._unsupported.discard(row.child)
        return self._need(self._facts, row.child, row.parent)

    def _supersession(self, row: SupersessionRow) -> str | None:
        return self._need(self._facts, row.old, row.new)

    def _conflict(self, row: ConflictRow) -> str | None:
        self._others.add(row.id)
        return self._need(self._facts, *row.members.split())

    def _consolidated(self, row: ConsolidatedRow) -> str | None:
        return self._need(self._episodes, row.episode)

    def _watermark(self, row: WatermarkRow) -> str | None:
        return "it marks what comes after it" if row.at_tx > row.tx else None

    def _erasure(self, row: ErasureRow) -> str | None:
        if not isinstance(json.loads(row.counts), dict):
            return "its counts are none"
        self._erasures.add(row.id)
        return None

    def _tombstone(self, row: TombstoneRow) -> str | None:
        return "it stands for what comes after it" if row.of_tx > row.tx else None

    def _check(self, row: CheckRow) -> str | None:
        return self._need(self._erasures, row.erasure)

    def _need(self, known: Any, *ids: str) -> str | None:
        missing = next((i for i in ids if i not in known), None)
        return None if missing is None else f"there is no {missing!r:.80}"


def _nothing(_: Soundness, __: Any) -> str | None:
    return None


_LOOKS: dict[type[Row], Callable[[Soundness, Any], str | None]] = {
    Branch: Soundness._branch,
    Head: Soundness._head,
    EpisodeRow: Soundness._episode,
    FactRow: Soundness._fact,
    StateRow: Soundness._state,
    EvidenceRow: Soundness._evidence,
    DerivationRow: Soundness._derivation,
    SupersessionRow: Soundness._supersession,
    ConflictRow: Soundness._conflict,
    ConsolidatedRow: Soundness._consolidated,
    WatermarkRow: Soundness._watermark,
    ErasureRow: Soundness._erasure,
    TombstoneRow: Soundness._tombstone,
    CheckRow: Soundness._check,
}


def _value_fault(table: type[Row], name: str, kinds: tuple[type, ...], value: object) -> str | None:
    if value is None:
        return None if NoneType in kinds else "is missing"
    if float in kinds and isinstance(value, (int, float)) and not isinstance(value, bool):
        return None if math.isfinite(value) else "is no number"
    if type(value) not in kinds:
        return f"is of type {type(value).__name__}"
    if isinstance(value, int):
        low, high = (EARLIEST_US, LATEST_US) if name in _TIMES else (0, _MOST)
        return None if low <= value <= high else f"{value} is out of range"
    if isinstance(value, str):
        words = _WORDS.get((table, name))
        if words is not None and value not in list(words):
            return f"is {value!r:.80}"
        return None if _is_text(value) else "is no text"
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value

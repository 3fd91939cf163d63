"""The tables, one named tuple a table; the stores read their columns from here.

Rows of `CHAINED` tables are written once, covered by the hash of their transaction and never updated; only
an erasure removes them, leaving a tombstone. Times are UTC microseconds, `tx` orders everything.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Txn(NamedTuple):
    """One transaction; its hash covers the rows written in it and the hash before."""

    tx: int
    at: int
    actor: str
    kind: str
    branch: str
    reason: str | None
    salt: bytes | None
    reason_digest: str
    root: str
    prev_hash: str
    hash: str


class Branch(NamedTuple):
    """A line of memory; it sees its parent's rows up to `fork_tx`."""

    id: str
    tx: int
    branch: str
    agent: str
    family: str
    parent: str | None
    fork_tx: int
    snapshot: str | None
    reason: str
    salt: bytes


class Head(NamedTuple):
    """Which branch an agent is on since `tx`, and its machine's epoch."""

    id: str
    tx: int
    branch: str
    agent: str
    epoch: int
    salt: bytes


class EpisodeRow(NamedTuple):
    """An episode as written."""

    id: str
    tx: int
    branch: str
    family: str
    session: str
    seq: int
    source_kind: str
    content: str
    occurred_at: int
    recorded_at: int
    epoch: int
    subjects: str
    sensitivity: str
    sha256: str
    salt: bytes


class FactRow(NamedTuple):
    """A claim as written; what became of it is in its states."""

    id: str
    tx: int
    branch: str
    version_of: str | None
    kind: str
    scope: str
    subject: str
    attribute: str
    key: str
    value: str
    value_key: str
    text: str
    cardinality: str
    confidence: float
    authority: str
    valid_from: int
    valid_to: int | None
    precision: str
    salt: bytes


class StateRow(NamedTuple):
    """What became of an object on a branch at a transaction; the newest visible one counts."""

    id: str
    tx: int
    branch: str
    object: str
    kind: str
    status: str
    ended_at: int | None
    ended_by: str | None
    pinned: int
    expires_at: int | None
    confirmed_at: int
    flag: str
    cause: str
    salt: bytes


class EvidenceRow(NamedTuple):
    """The span of an episode that a fact rests on, in characters."""

    id: str
    tx: int
    branch: str
    fact: str
    episode: str
    start: int
    stop: int
    relation: str
    extractor: str
    salt: bytes


class DerivationRow(NamedTuple):
    """A fact made from another fact."""

    id: str
    tx: int
    branch: str
    child: str
    parent: str
    salt: bytes


class SupersessionRow(NamedTuple):
    """A fact that took the place of another, and by which rule."""

    id: str
    tx: int
    branch: str
    old: str
    new: str
    rule: str
    salt: bytes


class ConflictRow(NamedTuple):
    """Facts that contradict each other; `members` are ids, joined by spaces."""

    id: str
    tx: int
    branch: str
    key: str
    members: str
    salt: bytes


class ConsolidatedRow(NamedTuple):
    """An episode that an extractor has read."""

    id: str
    tx: int
    branch: str
    episode: str
    extractor: str
    salt: bytes


class WatermarkRow(NamedTuple):
    """Where memory stood when a machine snapshot was made."""

    id: str
    tx: int
    branch: str
    agent: str
    snapshot: str
    at_tx: int
    epoch: int
    salt: bytes


class EffectRow(NamedTuple):
    """A step of an outside effect; it belongs to the agent, not to a branch's past."""

    id: str
    tx: int
    branch: str
    agent: str
    key: str
    what: str
    outcome: str
    at: int
    salt: bytes


class ErasureRow(NamedTuple):
    """The receipt of an erasure, without any text of what was erased."""

    id: str
    tx: int
    branch: str
    selector: str
    counts: str
    at: int
    salt: bytes


class TombstoneRow(NamedTuple):
    """The place of an erased row in its transaction's hash; `row` is a keyed digest of its id."""

    id: str
    tx: int
    branch: str
    of_tx: int
    tab: str
    digest: str
    row: str
    salt: bytes


class CheckRow(NamedTuple):
    """The result of looking for bytes of an erasure."""

    id: str
    tx: int
    branch: str
    erasure: str
    at: int
    bytes_left: int
    salt: bytes


class RecallRow(NamedTuple):
    """One recall; a log, outside the chain."""

    id: str
    at: int
    branch: str
    agent: str
    query: str
    known_at: int | None
    valid_at: int
    weights: str
    model: str
    suppressed: str
    abstained: str | None


class RecallItemRow(NamedTuple):
    """One item that a recall looked at."""

    recall: str
    rank: int
    owner: str
    kind: str
    score: float
    bm25: float
    dense: float
    neighbour: float
    prior: float
    injected: int
    dropped_because: str


class DocRow(NamedTuple):
    """Something that can be searched on a branch."""

    doc: int
    owner: str
    kind: str
    branch: str
    session: str
    tx: int


class VectorRow(NamedTuple):
    """The embedding of an episode or fact by one model."""

    owner: str
    model: str
    dim: int
    dtype: str
    blob: bytes


TABLES: dict[type[tuple[Any, ...]], str] = {
    Txn: "txn",
    Branch: "branch",
    Head: "head",
    EpisodeRow: "episode",
    FactRow: "fact",
    StateRow: "state",
    EvidenceRow: "evidence",
    DerivationRow: "derivation",
    SupersessionRow: "supersession",
    ConflictRow: "conflict",
    ConsolidatedRow: "consolidated",
    WatermarkRow: "watermark",
    EffectRow: "effect_ledger",
    ErasureRow: "erasure",
    TombstoneRow: "tombstone",
    CheckRow: "erasure_check",
    RecallRow: "recall_log",
    RecallItemRow: "recall_item",
    DocRow: "doc",
    VectorRow: "embedding",
}

CHAINED: tuple[type[tuple[Any, ...]], ...] = (
    Branch,
    Head,
    EpisodeRow,
    FactRow,
    StateRow,
    EvidenceRow,
    DerivationRow,
    SupersessionRow,
    ConflictRow,
    ConsolidatedRow,
    WatermarkRow,
    EffectRow,
    ErasureRow,
    TombstoneRow,
    CheckRow,
)


EXPORTED: tuple[type[tuple[Any, ...]], ...] = (Txn, *CHAINED)
"""What an export has; all else can be made again."""


def columns(table: type[tuple[Any, ...]]) -> tuple[str, ...]:
    """Return the column names of a table, in order."""
    found: tuple[str, ...] = table._fields  # type: ignore[attr-defined]  # every table is a NamedTuple
    return found

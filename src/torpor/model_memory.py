"""What memory says to its callers: words and frozen values. Times are aware UTC, transactions are integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from typing_extensions import TypeAliasType

Json = TypeAliasType("Json", 'bool | int | float | str | list["Json"] | dict[str, "Json"] | None')


class SourceKind(StrEnum):
    """Who an episode's words come from."""

    USER = "user"
    AGENT = "agent"
    TOOL = "tool"
    DOCUMENT = "document"
    HUMAN_NOTE = "human_note"
    RECALLED = "recalled"
    """Text that memory itself gave out: kept, but never a source of facts."""
    SYSTEM = "system"


class FactKind(StrEnum):
    """What sort of claim a fact is; the standing kinds surface before all others."""

    FACT = "fact"
    PREFERENCE = "preference"
    DECISION = "decision"
    COMMITMENT = "commitment"
    INSTRUCTION = "instruction"
    PROCEDURE = "procedure"
    SUMMARY = "summary"
    FILE = "file"


STANDING_KINDS = (FactKind.INSTRUCTION, FactKind.DECISION, FactKind.COMMITMENT)


class Scope(StrEnum):
    """Where a fact is true, and so what happens to it when the machine goes back."""

    WORLD = "world"
    MACHINE = "machine"
    TASK = "task"


class Cardinality(StrEnum):
    """Whether an attribute has one value at a time or many."""

    ONE = "one"
    MANY = "many"


class Authority(StrEnum):
    """On whose word a fact stands."""

    AGENT_INFERRED = "agent_inferred"
    TOOL_OBSERVED = "tool_observed"
    USER_SAID = "user_said"
    HUMAN_EDITED = "human_edited"


RANK: Mapping[Authority, int] = {
    Authority.AGENT_INFERRED: 1,
    Authority.TOOL_OBSERVED: 2,
    Authority.USER_SAID: 3,
    Authority.HUMAN_EDITED: 3,
}
"""A newer claim displaces an older one only with an equal or higher rank."""


class Status(StrEnum):
    """What is thought of a fact, an episode or a conflict in one view."""

    ACTIVE = "active"
    DISPUTED = "disputed"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    FUTURE = "future"
    CORRECTED = "corrected"
    RETRACTED = "retracted"
    SUSPENDED = "suspended"
    OPEN = "open"
    RESOLVED = "resolved"


class Policy(StrEnum):
    """What memory does when the machine is put back to a snapshot."""

    RECONCILE = "reconcile"
    REWIND = "rewind"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Episode:
    """Something that happened, verbatim; it never changes, it can only be retracted or erased."""

    id: str
    tx: int
    branch: str
    session: str
    seq: int
    source_kind: SourceKind
    content: str
    occurred_at: datetime
    recorded_at: datetime
    subjects: tuple[str, ...]
    sensitivity: str
    epoch: int
    status: Status


@dataclass(frozen=True, slots=True)
class Fact:
    """A claim as one view sees it. `status` is about `valid_at`; `valid_to` is the effective end."""

    id: str
    tx: int
    branch: str
    kind: FactKind
    scope: Scope
    subject: str
    attribute: str
    value: Json
    text: str
    cardinality: Cardinality
    confidence: float
    authority: Authority
    valid_from: datetime
    valid_to: datetime | None
    precision: str
    status: Status
    pinned: bool
    expires_at: datetime | None
    confirmed_at: datetime
    version_of: str | None
    flag: str
    """Why it is suspended, or `unverified` after a restore with policy `keep`."""


@dataclass(frozen=True, slots=True)
class Quote:
    """The words that a fact rests on."""

    episode: str
    text: str
    start: int
    stop: int
    relation: str
    source_kind: SourceKind
    occurred_at: datetime
    extractor: str
    live: bool


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that recall gave out, with the parts of its score."""

    id: str
    kind: str
    """A fact's kind, or `episode`."""
    text: str
    why: str
    """`standing` (an instruction, decision, commitment or pinned fact) or `match`."""
    score: float
    bm25: float
    dense: float
    neighbour: float
    tokens: int
    note: str
    """Staleness, authority and dispute in words."""
    disputed: bool
    evidence: tuple[str, ...]
    """Ids of the episodes behind it; of an episode, its own."""


@dataclass(frozen=True, slots=True)
class Recall:
    """What recall gave out and what it held back."""

    id: str
    query: str
    items: tuple[Item, ...]
    suppressed: Mapping[str, int]
    abstained: str | None
    """Why nothing about the query is given; None if something is."""
    tokens: int
    logged: bool = True
    """False: the disk is full or another program holds the memory, so `explain` knows nothing of this recall."""

    words_only: str | None = None
    """Why only words were compared although there is an embedder; None: meaning was, too, or there is none."""

    @property
    def suppressed_superseded(self) -> int:
        """How many matching items were held back because something newer replaced them."""
        return self.suppressed.get("superseded", 0)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class Considered:
    """One line of the recall log: an item that was looked at, taken or not."""

    id: str
    kind: str
    rank: int
    score: float
    bm25: float
    dense: float
    neighbour: float
    prior: float
    injected: bool
    dropped_because: str


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a supersession or correction."""

    old: str
    new: str
    rule: str
    tx: int
    reason: str


@dataclass(frozen=True, slots=True)
class FactExplanation:
    """Why a fact is held: its words, what it replaced and what replaced it."""

    fact: Fact
    evidence: tuple[Quote, ...]
    chain: tuple[Link, ...]
    derived_from: tuple[str, ...]
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a recall gave what it gave, from its log."""

    recall: str
    query: str
    at: datetime
    branch: str
    known_at: int | None
    valid_at: datetime
    weights: Mapping[str, float]
    model: str
    considered: tuple[Considered, ...]
    facts: tuple[FactExplanation, ...]
    abstained: str | None


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Why a fact was not given out for a query; `reason` is one word of the recall log."""

    fact: str
    query: str
    reason: str
    detail: str
    rank: int | None
    score: float
    replaced_by: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a fact's or an attribute's history, in transaction order."""

    tx: int
    at: datetime
    actor: str
    kind: str
    reason: str
    fact: str
    status: Status
    value: Json
    detail: str


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of valid time in which one fact held."""

    fact: Fact
    valid_from: datetime
    valid_to: datetime | None
    disputed: bool


@dataclass(frozen=True, slots=True)
class Diff:
    """What was held at one transaction and not at the other."""

    tx1: int
    tx2: int
    added: tuple[Fact, ...]
    removed: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class ConflictSet:
    """Facts about one attribute that cannot all be true, waiting for a decision."""

    id: str
    subject: str
    attribute: str
    members: tuple[Fact, ...]
    status: Status
    tx: int


@dataclass(frozen=True, slots=True)
class Done:
    """A transaction that changed something, and what it touched."""

    tx: int
    kind: str
    changed: tuple[str, ...]
    suspended: tuple[str, ...] = ()
    revived: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class PlanItem:
    """What consolidation would do, or did, with one candidate."""

    action: str
    """`new`, `update`, `confirm`, `history`, `conflict`, `end`, `known`, `refuted` or `rejected`."""
    subject: str
    attribute: str
    value: Json
    quote: str
    text: str
    episode: str
    detail: str
    fact: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Facts to be made from episodes; nothing is written until it is applied."""

    branch: str
    base_tx: int
    extractor: str
    episodes: tuple[str, ...]
    items: tuple[PlanItem, ...]
    candidates: tuple[Candidate, ...] = field(repr=False)
    tx: int | None = None
    """The transaction that applied it; None while it is only a plan."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an erasure removed, and whether no byte of it is left. It holds no text."""

    id: str
    dry_run: bool
    selector: str
    counts: Mapping[str, int]
    tx: int | None
    verified_at: datetime | None
    bytes_left: int
    """Traces found in the database and its WAL after the erasure; 0 when verified."""
    exports_left: int
    scanned_bytes: int


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Whether the rows are those that the chain of transactions covers."""

    ok: bool
    transactions: int
    head: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watermark:
    """Where memory stood when a snapshot of the machine was made."""

    snapshot: str
    branch: str
    """Empty: the agent had no memory then."""
    tx: int
    epoch: int
    agent: str = ""
    head: str = ""
    """Hash of the last transaction then: tells the memory that it marks from any other. Empty: not looked at."""
    problem: str = ""
    """Why memory could not be marked, so that it cannot be put back with the machine; empty: it could."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore of the machine did to memory."""

    tx: int
    policy: Policy
    branch: str
    epoch: int
    suspended: tuple[str, ...]
    revived: tuple[str, ...]
    flagged: tuple[str, ...]
    effects_since: tuple[str, ...]
    """Keys of effects done after the snapshot: they stay done."""
    note: str = ""
    """What was done otherwise than asked for, and why; empty: nothing."""


class Move(StrEnum):
    """How a machine came to be at a snapshot."""

    ROLLBACK = "rollback"
    RESTORE = "restore"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class MachineMove:
    """A machine that goes on at a snapshot, as its agent's memory has to know; kept until memory followed."""

    sandbox: str
    agent: str
    move: Move
    generation: int
    """The machine's after the move; a move of a lower one was never made."""
    watermark: Watermark
    policy: Policy
    supplants: tuple[str, ...] = ()
    """Other sandboxes of the agent, whose machines it takes the place of: they may write no more."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What memory did as its machine moved."""

    agent: str
    epoch: int
    """0: the agent has no memory."""
    note: str
    """What was done otherwise than asked for, and why; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Something done to the outside world; no rollback undoes it."""

    key: str
    what: str
    outcome: str
    at: datetime
    by: str
    """The agent that did it; a fork shows its parent's effects as done by the parent."""
    fresh: bool
    """True only in the answer to the call that wrote the effect first."""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What one branch has and another lacks."""

    source: str
    target: str
    base_tx: int
    facts: tuple[Fact, ...]
    conflicting: tuple[str, ...]
    """Ids of facts that would open a conflict."""


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A file of the `/memories` view as it is now."""

    path: str
    content: str
    fact: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SpaceInfo:
    """What is so about the memory of one agent."""

    agent: str
    branch: str
    epoch: int
    """Of the agent's machine; it rises when the machine is put back, and older writers are refused."""
    tx: int
    """The last transaction of the whole memory; as `known_at` it means now."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export or import moved."""

    path: str
    rows: int
    head: str
    """Hash of the last transaction."""
    lost: int = 0
    """Rows that a salvage could not read."""

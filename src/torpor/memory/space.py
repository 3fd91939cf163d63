"""`Space`: the memory of one agent as its user calls it. Each method says what it does; the work is elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import overload

from torpor.memory import (
    chain,
    checks,
    consolidate,
    editing,
    effects,
    erasing,
    machine,
    merging,
    proving,
    reading,
    recording,
    why,
)
from torpor.memory import recall as recalling
from torpor.memory.candidates import Request
from torpor.memory.corpus import Corpus
from torpor.memory.doomed import Selector
from torpor.memory.extract.base import Extractor
from torpor.memory.extract.rules import RuleExtractor
from torpor.memory.files import MemoryFiles
from torpor.memory.line import Line
from torpor.memory.rows import Branch
from torpor.model_memory import (
    Authority,
    Candidate,
    Cardinality,
    ChainReport,
    Change,
    ConflictSet,
    Diff,
    Done,
    Effect,
    Episode,
    Explanation,
    Fact,
    FactExplanation,
    FactKind,
    Interval,
    Json,
    MergePlan,
    Plan,
    Policy,
    Recall,
    Receipt,
    Restored,
    Scope,
    SourceKind,
    SpaceInfo,
    Status,
    Watermark,
    WhyNot,
)
from torpor.model_memory_inputs import EpisodeInput, FactInput

LendCorpus = Callable[[Branch], AbstractContextManager[Corpus]]

DEFAULT_K = 8
DEFAULT_TOKENS = 1200


class Space:
    """One agent's memory on its current branch, or on one that it is bound to. Safe for threads."""

    def __init__(self, line: Line, corpus: LendCorpus, unproven: proving.Unproven) -> None:
        self._line = line
        self._corpus = corpus
        self._unproven = unproven

    @property
    def agent(self) -> str:
        """Whose memory this is."""
        return self._line.agent

    @property
    def branch(self) -> str:
        """The branch that is read and written now."""
        return self._line.branch().id

    @property
    def epoch(self) -> int:
        """The epoch of the agent's machine now."""
        return self._line.head().epoch

    @property
    def tx(self) -> int:
        """The number of the last transaction; as `known_at` it means now."""
        return self._line.store.last_tx()

    @property
    def files(self) -> MemoryFiles:
        """The memory as files under `/memories`, for an agent with a file-based memory tool."""
        return MemoryFiles(self)

    def atomically(self) -> AbstractContextManager[None]:
        """Enter with all that is written in the block durable together, or none of it; others wait meanwhile."""
        return self._line.store.transaction()

    def info(self) -> SpaceInfo:
        """Return what is so about this memory now."""
        head = self._line.head()
        return SpaceInfo(head.agent, self.branch, head.epoch, self.tx)

    # --- writing -----------------------------------------------------------------------------------

    def record(
        self,
        content: str,
        source_kind: SourceKind | str = SourceKind.USER,
        *,
        occurred_at: datetime | None = None,
        session: str = "",
        subjects: Sequence[str] = (),
        sensitivity: str = "normal",
        reason: str = "",
    ) -> Episode:
        """Keep what happened, verbatim, durably, at once.

        Args:
            source_kind: whose words these are; `recalled` text is kept but never read for facts.
            occurred_at: when it happened; now by default.
            session: the conversation it belongs to; neighbours in it help each other to be found.
            subjects: whom or what it is about; the first is who says "I".

        Raises:
            InvalidRequest: `content` is binary or empty.
            LimitExceeded: it is over 1 MiB.
            InsufficientResources: the disk is full; nothing was written.
            WrongState: the machine was put back since this space was opened.
        """
        given = EpisodeInput(content, source_kind, occurred_at, session, subjects, sensitivity)
        return recording.record(self._line, [given], reason)[0]

    def record_many(self, episodes: Sequence[EpisodeInput], *, reason: str = "") -> list[Episode]:
        """Keep several episodes in one transaction, in order: all of them or none."""
        return recording.record(self._line, episodes, reason) if episodes else []

    def remember(
        self,
        subject: str,
        attribute: str,
        value: Json,
        *,
        evidence: Sequence[str | tuple[str, str]] = (),
        kind: FactKind | str = FactKind.FACT,
        scope: Scope | str = Scope.WORLD,
        cardinality: Cardinality | str = Cardinality.ONE,
        authority: Authority | str | None = None,
        text: str | None = None,
        confidence: float = 1.0,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        precision: str = "instant",
        derived_from: Sequence[str] = (),
        pinned: bool = False,
        expires_at: datetime | None = None,
        reason: str = "",
    ) -> Fact:
        """Claim that `attribute` of `subject` is `value`; return the fact that now stands for it.

        A newer claim takes the place of an older one of the same attribute if its authority is not
        lower; otherwise a conflict is opened. An older claim becomes history. The same claim again is a
        confirmation.

        Args:
            evidence: episodes it rests on: ids, or (id, quote) with the quote verbatim. Without any, the
                claim itself is recorded as an episode.
            authority: on whose word; by default that of the evidence, else the agent's inference.
            derived_from: facts it was made from; it is suspended when they no longer hold.

        Raises:
            NotFound: an episode or fact that it names is not on this branch.
            InvalidRequest: a value cannot be right, or a quote is not in its episode.
        """
        given = FactInput(
            subject=subject,
            attribute=attribute,
            value=value,
            evidence=evidence,
            kind=kind,
            scope=scope,
            cardinality=cardinality,
            authority=authority,
            text=text,
            confidence=confidence,
            valid_from=valid_from,
            valid_to=valid_to,
            precision=precision,
            derived_from=derived_from,
            pinned=pinned,
            expires_at=expires_at,
        )
        return recording.remember(self._line, [given], reason)[0][0]

    def remember_many(self, facts: Sequence[FactInput], *, reason: str = "") -> list[Fact]:
        """Make several claims in one transaction, in order: all of them or none."""
        return [f for f, _ in recording.remember(self._line, facts, reason)] if facts else []

    # --- recall ------------------------------------------------------------------------------------

    def recall(
        self,
        query: str,
        *,
        k: int = DEFAULT_K,
        token_budget: int = DEFAULT_TOKENS,
        valid_at: datetime | None = None,
        known_at: int | datetime | None = None,
        kinds: Collection[str] | None = None,
        scopes: Collection[str] | None = None,
        include: Collection[Status | str] = (),
        exclude: Collection[str] = (),
    ) -> Recall:
        """Return at most `k` items about `query` within `token_budget`, and log why.

        Only what holds is given; `suppressed` counts what matched and does not. When nothing that holds
        is close enough, `abstained` says so, and only standing facts are given.

        Args:
            kinds: kinds of facts, and `episode`; all by default.
            include: statuses to give although they do not hold, such as `superseded`.
            exclude: ids that are in the context already.

        Raises:
            InvalidRequest: the query is empty or a number is out of range.
        """
        request = self._request(
            query, k, token_budget, valid_at, known_at, kinds, scopes, include, exclude
        )
        with self._corpus(self._line.branch()) as corpus:
            return recalling.recall(self._line, corpus, request)

    def _request(
        self,
        query: str,
        k: int,
        token_budget: int,
        valid_at: datetime | None,
        known_at: int | datetime | None,
        kinds: Collection[str] | None,
        scopes: Collection[str] | None,
        include: Collection[Status | str],
        exclude: Collection[str],
    ) -> Request:
        return Request(
            query=checks.content(query, "query", checks.MAX_QUERY_CHARS),
            k=checks.positive(k, "k", 1000),
            token_budget=checks.positive(token_budget, "token_budget", 1_000_000),
            valid_at=valid_at,
            known_at=known_at,
            kinds=None if kinds is None else frozenset(map(str, kinds)),
            scopes=None if scopes is None else frozenset(map(str, scopes)),
            include=frozenset(checks.choice(Status, s, "status") for s in include),
            exclude=frozenset(exclude),
        )

    @overload
    def explain(self, what: Recall) -> Explanation: ...

    @overload
    def explain(self, what: Fact) -> FactExplanation: ...

    @overload
    def explain(self, what: str) -> Explanation | FactExplanation: ...

    def explain(self, what: Recall | Fact | str) -> Explanation | FactExplanation:
        """Return why a recall gave what it gave, or why a fact is held; `what` may be an id of either.

        Raises:
            NotFound: this agent made no such recall, or this branch has no such fact.
        """
        target = what if isinstance(what, str) else what.id
        if target.startswith("fact_"):
            return reading.explain_fact(self._line, target)
        return why.explain_recall(self._line, target)

    def why_not(
        self,
        fact_id: str,
        query: str,
        *,
        k: int = DEFAULT_K,
        token_budget: int = DEFAULT_TOKENS,
        valid_at: datetime | None = None,
        known_at: int | datetime | None = None,
    ) -> WhyNot:
        """Return why `recall(query)` does not give a fact; `recalled` if it does."""
        request = self._request(query, k, token_budget, valid_at, known_at, None, None, (), ())
        with self._corpus(self._line.branch()) as corpus:
            return why.why_not(self._line, corpus, fact_id, request)

    # --- reading -----------------------------------------------------------------------------------

    def facts(
        self,
        subject: str | None = None,
        attribute: str | None = None,
        *,
        valid_at: datetime | None = None,
        known_at: int | datetime | None = None,
        include: Collection[Status | str] = (),
    ) -> list[Fact]:
        """Return the facts that hold, of one subject and attribute or of all."""
        extra = frozenset(checks.choice(Status, s, "status") for s in include)
        return reading.facts(
            self._line,
            subject=subject,
            attribute=attribute,
            valid_at=valid_at,
            known_at=known_at,
            include=extra,
        )

    def fact(self, fact_id: str, *, known_at: int | datetime | None = None) -> Fact:
        """Return one fact, whatever became of it."""
        return reading.fact(self._line, fact_id, known_at)

    def episode(self, episode_id: str) -> Episode:
        """Return one episode."""
        return reading.episode(self._line, episode_id)

    def episodes(
        self, session: str | None = None, *, known_at: int | datetime | None = None
    ) -> list[Episode]:
        """Return the episodes in the order they were recorded."""
        return reading.episodes(self._line, session, known_at)

    def history(
        self,
        fact_id: str | None = None,
        *,
        subject: str | None = None,
        attribute: str | None = None,
    ) -> list[Change]:
        """Return all that happened to a fact and its versions, or to a subject's attribute."""
        return reading.history(self._line, fact_id, subject, attribute)

    def timeline(self, subject: str, *, known_at: int | datetime | None = None) -> list[Interval]:
        """Return what held about a subject, from when to when."""
        return reading.timeline(self._line, subject, known_at)

    def diff(self, tx1: int, tx2: int, *, valid_at: datetime | None = None) -> Diff:
        """Return which facts came to hold and which ceased between two transactions."""
        return reading.diff(self._line, tx1, tx2, valid_at)

    def conflicts(self, *, include_resolved: bool = False) -> list[ConflictSet]:
        """Return the conflicts that wait for a decision."""
        return reading.conflicts(self._line, include_resolved)

    # --- editing -----------------------------------------------------------------------------------

    def supersede(self, old: str, new: str, reason: str) -> Done:
        """Say that the world changed: `old` ends when `new` begins."""
        return editing.supersede(self._line, old, new, reason)

    def correct(self, fact_id: str, value: Json, reason: str, *, text: str | None = None) -> Fact:
        """Say that a fact was wrong from the start; return the right one, which takes its place in time.

        Raises:
            NotFound: this branch has no such fact.
            WrongState: it was corrected already; the hint names its successor.
            InvalidRequest: it has that value.
        """
        return editing.correct(self._line, fact_id, value, reason, text)

    def retract(self, target: str, reason: str) -> Done:
        """Take back a fact or an episode; what rested on it is suspended, what it replaced returns."""
        return editing.retract(self._line, target, reason)

    def restore(self, target: str, reason: str = "") -> Done:
        """Undo a retraction, suspension or correction."""
        return editing.restore(self._line, target, reason)

    def pin(self, fact_id: str, *, pinned: bool = True, reason: str = "") -> Done:
        """Let a fact surface before others, or no longer."""
        return editing.pin(self._line, fact_id, pinned, reason)

    def expire(self, fact_id: str, *, at: datetime | None = None, reason: str = "") -> Done:
        """Let a fact hold only until `at`, now by default."""
        return editing.expire(self._line, fact_id, at, reason)

    def resolve(self, conflict_id: str, choice: str, reason: str = "") -> Done:
        """Settle a conflict by the fact that holds, or `both`."""
        return editing.resolve(self._line, conflict_id, choice, reason)

    def revert(self, tx: int, reason: str = "") -> Done:
        """Undo one transaction; what was changed again since is skipped and listed."""
        return editing.revert(self._line, tx, reason)

    # --- consolidation -----------------------------------------------------------------------------

    def consolidate(
        self, *, dry_run: bool = False, extractor: Extractor | None = None, reason: str = ""
    ) -> Plan:
        """Make facts from the episodes that were not read yet, in one transaction.

        With `dry_run` the plan is returned and nothing is written; give it to `apply`. What was done is
        undone with `revert(plan.tx)`. Without an extractor the deterministic rules are used.
        """
        reader = extractor or RuleExtractor()
        if dry_run:
            return consolidate.plan(self._line, reader)
        return consolidate.apply(self._line, consolidate.prepare(self._line, reader), reason)

    def unread(self, extractor: str) -> list[Episode]:
        """Return the episodes that an extractor of that name may read and has not read, oldest first."""
        return consolidate.unread(self._line.view(), checks.name(extractor, "extractor"))

    def plan_of(
        self, extractor: str, episodes: Sequence[str], candidates: Sequence[Candidate]
    ) -> Plan:
        """Return the plan of an extractor that ran elsewhere: what it was given of `unread`, what it proposes."""
        given = consolidate.Given(checks.name(extractor, "extractor"), episodes, candidates)
        return consolidate.plan(self._line, given, only=frozenset(episodes))

    def apply(self, plan: Plan, *, reason: str = "") -> Plan:
        """Carry out a plan of a dry run.

        Raises:
            WrongState: memory changed so that the plan would now do something else, or it was applied.
        """
        return consolidate.apply(self._line, plan, reason)

    # --- forgetting --------------------------------------------------------------------------------

    def erase(
        self,
        *,
        fact: str | None = None,
        episode: str | None = None,
        session: str | None = None,
        subject: str | None = None,
        dry_run: bool = False,
        reason: str = "",
        exports: Sequence[str | Path] = (),
    ) -> Receipt:
        """Erase for good, on all branches, with everything made from it, and verify that no byte is left.

        `subject` takes every fact about a name, the episodes tagged with it, and every text that has the
        name as a word. Exports that were written earlier are searched if they are named, not changed.

        A name that nothing has gives a receipt that counts nothing.

        Raises:
            NotFound: there is no such fact, episode or session.
            InvalidRequest: not exactly one selector was given.
        """
        return erasing.erase(
            self._line,
            Selector(fact, episode, session, subject),
            dry_run=dry_run,
            reason=reason,
            exports=[Path(p) for p in exports],
            unproven=self._unproven,
        )

    def verify_erasure(self, receipt_id: str, *, exports: Sequence[str | Path] = ()) -> Receipt:
        """Look again for the bytes of an erasure that a reader kept from being verified.

        Raises:
            NotFound: the erasure is verified already, or another process made it.
        """
        return proving.verify(self._line, receipt_id, [Path(p) for p in exports], self._unproven)

    def verify_chain(self, *, expect: str | None = None) -> ChainReport:
        """Compare every row of the file with the hash chain."""
        return chain.verify(self._line.store, expect)

    # --- with the machine --------------------------------------------------------------------------

    def watermark(self, snapshot_id: str) -> Watermark:
        """Note where memory stands as a snapshot of the machine is made."""
        return machine.watermark(self._line, snapshot_id)

    def on_restore(
        self, snapshot_id: str, policy: Policy | str = Policy.RECONCILE, *, reason: str = ""
    ) -> Restored:
        """Bring memory in line with a machine that was put back; writers of the old epoch are refused.

        Args:
            policy: `reconcile`: facts about the machine and its tasks go back, the world's stay;
                `rewind`: a new branch that sees nothing later than the snapshot; `keep`: all stays,
                machine facts are flagged unverified.

        Raises:
            NotFound: no watermark was set for the snapshot.
        """
        chosen = checks.choice(Policy, policy, "policy")
        mark = machine.find_watermark(self._line, snapshot_id)
        return machine.on_restore(self._line, mark, chosen, reason)

    def fork(self, agent: str, *, snapshot_id: str | None = None, reason: str = "") -> Space:
        """Give a new agent a child branch of this memory, as it is or as it was at a snapshot."""
        line = self._line
        mark = None if snapshot_id is None else machine.find_watermark(line, snapshot_id)
        machine.fork(line, agent, mark, reason)
        child = Line(line.store, line.clock, line.embedder, agent, f"agent:{agent}")
        return Space(child, self._corpus, self._unproven)

    def switch(self, branch: str, *, reason: str = "") -> Done:
        """Go to another branch of this agent: the way back from a rewind."""
        return machine.switch(self._line, branch, reason)

    def plan_merge(self, branch: str) -> MergePlan:
        """Return the world facts that another branch of the family has and this one lacks."""
        return merging.plan_merge(self._line, branch)

    def merge(
        self, plan: MergePlan, *, take: Sequence[str] | None = None, reason: str = ""
    ) -> Done:
        """Take facts of a merge plan, all or some; contradictions become conflicts."""
        return merging.merge(self._line, plan, take, reason)

    def effect(self, key: str, what: str, *, outcome: str = "started") -> Effect:
        """Note an effect on the outside world under an idempotency key, before doing it.

        `fresh` in the answer says whether this call was the first; if not, it was done, or begun, before.
        """
        return effects.effect(self._line, key, what, outcome)

    def finish_effect(self, key: str, outcome: str = "done") -> Effect:
        """Note how an effect ended."""
        return effects.finish_effect(self._line, key, outcome)

    def effects(self) -> list[Effect]:
        """Return all effects, oldest first; no restore takes one back."""
        return effects.effects(self._line)

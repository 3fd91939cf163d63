"""`sandbox.memory` and `AsyncDaemonMemory`: what agents know, in the daemon's keeping.

The methods are those of an embedded space (`torpor.memory.Space`), which says more of each; so are the results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from typing_extensions import override

from torpor.base.plain import from_plain, to_plain
from torpor.model_memory import (
    Authority,
    Candidate,
    Cardinality,
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
from torpor.sdk.client import Client, connection, resolved
from torpor.sdk.memory_files import AsyncMemoryFiles

if TYPE_CHECKING:
    from torpor.model_memory_inputs import EpisodeInput, FactInput

T = TypeVar("T")

MEMORY_LIMIT_S = 600.0
"""Seconds for one call: an erasure reads the whole memory, a consolidation every new episode."""

DEFAULT_K = 8
DEFAULT_TOKENS = 1200

_GETS = frozenset(
    [
        "explain",
        "facts",
        "fact",
        "episode",
        "episodes",
        "unread",
        "history",
        "timeline",
        "diff",
        "conflicts",
        "effects",
        "plan_merge",
    ]
)


class Extracts(Protocol):
    """Reads episodes; see `torpor.memory.Extractor`. It runs here, not in the daemon."""

    @property
    def name(self) -> str:
        """Name and version; episodes are read once by each."""
        ...

    def extract(self, episodes: Sequence[Episode]) -> Sequence[Candidate]:
        """Return candidates."""
        ...


class AsyncMemorySpace:
    """The memory of one agent.

    That of a sandbox writes with the epoch that the machine had when it was first asked: once the machine was
    put back, it is refused, and `sandbox.memory` gives a new one.
    """

    def __init__(
        self,
        client: Client | None,
        *,
        agent: str | None = None,
        sandbox_id: str | None = None,
        branch: str | None = None,
        epoch: int | None = None,
        actor: str | None = None,
    ) -> None:
        self._client = resolved(client)
        self._where: dict[str, object] = {
            "agent": agent,
            "sandbox_id": sandbox_id,
            "branch": branch,
            "epoch": epoch,
            "actor": actor,
        }
        self._binding: asyncio.Task[None] | None = None

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._where['agent'] or self._where['sandbox_id']}>"

    async def info(self) -> SpaceInfo:
        """Return agent, branch, epoch and last transaction as they are now."""
        query = {k: self._where[k] for k in ("agent", "sandbox_id", "branch")}
        body = await connection(self._client).call("GET", "/v1/memory/space", query=query)
        return from_plain(SpaceInfo, body)

    async def ask(self, verb: str, params: Mapping[str, object]) -> Any:
        """Make the call `verb`, by its name in the REST API, and return its answer as JSON."""
        if self._where["sandbox_id"] is not None and self._where["epoch"] is None:
            self._where["epoch"] = (await self.info()).epoch
        given = {**params, **{k: v for k, v in self._where.items() if v is not None}}
        given = {name: to_plain(value) for name, value in given.items()}
        path = f"/v1/memory/{verb.replace('.', '/')}"
        made = connection(self._client)
        if verb in _GETS or verb == "files.files":
            return await made.call("GET", path, query=_pairs(given), limit_s=MEMORY_LIMIT_S)
        return await made.call("POST", path, body=given, limit_s=MEMORY_LIMIT_S)

    async def _one(self, verb: str, answer: type[T], **params: object) -> T:
        return from_plain(answer, await self.ask(verb, params))

    async def _many(self, verb: str, answer: type[T], **params: object) -> list[T]:
        body = await self.ask(verb, params)
        return [from_plain(answer, item) for item in body["items"]]

    @property
    def files(self) -> AsyncMemoryFiles:
        """The memory as files under `/memories`, for an agent with a file-based memory tool."""
        return AsyncMemoryFiles(self)

    # ---- writing ----

    async def record(
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
        """Keep what happened, verbatim, durably, at once."""
        return await self._one(
            "record",
            Episode,
            content=content,
            source_kind=source_kind,
            occurred_at=occurred_at,
            session=session,
            subjects=list(subjects),
            sensitivity=sensitivity,
            reason=reason,
        )

    async def record_many(
        self, episodes: Sequence[EpisodeInput], *, reason: str = ""
    ) -> list[Episode]:
        """Keep several episodes in one transaction: all of them or none."""
        return await self._many("record_many", Episode, episodes=list(episodes), reason=reason)

    async def remember(
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
        """Claim that `attribute` of `subject` is `value`; return the fact that now stands for it."""
        return await self._one(
            "remember",
            Fact,
            subject=subject,
            attribute=attribute,
            value=value,
            evidence=list(evidence),
            kind=kind,
            scope=scope,
            cardinality=cardinality,
            authority=authority,
            text=text,
            confidence=confidence,
            valid_from=valid_from,
            valid_to=valid_to,
            precision=precision,
            derived_from=list(derived_from),
            pinned=pinned,
            expires_at=expires_at,
            reason=reason,
        )

    async def remember_many(self, facts: Sequence[FactInput], *, reason: str = "") -> list[Fact]:
        """Make several claims in one transaction, in order: all of them or none."""
        return await self._many("remember_many", Fact, facts=list(facts), reason=reason)

    # ---- recall ----

    async def recall(
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
        """Return at most `k` items about `query` within `token_budget`, and log why."""
        return await self._one(
            "recall",
            Recall,
            query=query,
            k=k,
            token_budget=token_budget,
            valid_at=valid_at,
            known_at=known_at,
            kinds=None if kinds is None else list(kinds),
            scopes=None if scopes is None else list(scopes),
            include=list(include),
            exclude=list(exclude),
        )

    async def explain(self, what: Recall | Fact | str) -> Explanation | FactExplanation:
        """Return why a recall gave what it gave, or why a fact is held; `what` may be an id of either."""
        target = what if isinstance(what, str) else what.id
        if target.startswith("fact_"):
            return await self._one("explain", FactExplanation, target=target)
        return await self._one("explain", Explanation, target=target)

    async def why_not(
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
        return await self._one(
            "why_not",
            WhyNot,
            fact_id=fact_id,
            query=query,
            k=k,
            token_budget=token_budget,
            valid_at=valid_at,
            known_at=known_at,
        )

    # ---- reading ----

    async def facts(
        self,
        subject: str | None = None,
        attribute: str | None = None,
        *,
        valid_at: datetime | None = None,
        known_at: int | datetime | None = None,
        include: Collection[Status | str] = (),
    ) -> list[Fact]:
        """Return the facts that hold, of one subject and attribute or of all."""
        return await self._many(
            "facts",
            Fact,
            subject=subject,
            attribute=attribute,
            valid_at=valid_at,
            known_at=known_at,
            include=list(include),
        )

    async def fact(self, fact_id: str, *, known_at: int | datetime | None = None) -> Fact:
        """Return one fact, whatever became of it."""
        return await self._one("fact", Fact, fact_id=fact_id, known_at=known_at)

    async def episode(self, episode_id: str) -> Episode:
        """Return one episode."""
        return await self._one("episode", Episode, episode_id=episode_id)

    async def episodes(
        self, session: str | None = None, *, known_at: int | datetime | None = None
    ) -> list[Episode]:
        """Return the episodes in the order they were recorded."""
        return await self._many("episodes", Episode, session=session, known_at=known_at)

    async def unread(self, extractor: str) -> list[Episode]:
        """Return the episodes that an extractor of that name may read and has not read, oldest first."""
        return await self._many("unread", Episode, extractor=extractor)

    async def history(
        self,
        fact_id: str | None = None,
        *,
        subject: str | None = None,
        attribute: str | None = None,
    ) -> list[Change]:
        """Return all that happened to a fact and its versions, or to a subject's attribute."""
        return await self._many(
            "history", Change, fact_id=fact_id, subject=subject, attribute=attribute
        )

    async def timeline(
        self, subject: str, *, known_at: int | datetime | None = None
    ) -> list[Interval]:
        """Return what held about a subject, from when to when."""
        return await self._many("timeline", Interval, subject=subject, known_at=known_at)

    async def diff(self, tx1: int, tx2: int, *, valid_at: datetime | None = None) -> Diff:
        """Return which facts came to hold and which ceased between two transactions."""
        return await self._one("diff", Diff, tx1=tx1, tx2=tx2, valid_at=valid_at)

    async def conflicts(self, *, include_resolved: bool = False) -> list[ConflictSet]:
        """Return the conflicts that wait for a decision."""
        return await self._many("conflicts", ConflictSet, include_resolved=include_resolved)

    # ---- editing ----

    async def supersede(self, old: str, new: str, reason: str) -> Done:
        """Say that the world changed: `old` ends when `new` begins."""
        return await self._one("supersede", Done, old=old, new=new, reason=reason)

    async def correct(
        self, fact_id: str, value: Json, reason: str, *, text: str | None = None
    ) -> Fact:
        """Say that a fact was wrong from the start; return the right one, which takes its place in time."""
        return await self._one(
            "correct", Fact, fact_id=fact_id, value=value, reason=reason, text=text
        )

    async def retract(self, target: str, reason: str) -> Done:
        """Take back a fact or an episode; what rested on it is suspended, what it replaced returns."""
        return await self._one("retract", Done, target=target, reason=reason)

    async def restore(self, target: str, reason: str = "") -> Done:
        """Undo a retraction, suspension or correction."""
        return await self._one("restore", Done, target=target, reason=reason)

    async def pin(self, fact_id: str, *, pinned: bool = True, reason: str = "") -> Done:
        """Let a fact surface before others, or no longer."""
        return await self._one("pin", Done, fact_id=fact_id, pinned=pinned, reason=reason)

    async def expire(self, fact_id: str, *, at: datetime | None = None, reason: str = "") -> Done:
        """Let a fact hold only until `at`, now by default."""
        return await self._one("expire", Done, fact_id=fact_id, at=at, reason=reason)

    async def resolve(self, conflict_id: str, choice: str, reason: str = "") -> Done:
        """Settle a conflict by the fact that holds, or `both`."""
        return await self._one(
            "resolve", Done, conflict_id=conflict_id, choice=choice, reason=reason
        )

    async def revert(self, tx: int, reason: str = "") -> Done:
        """Undo one transaction; what was changed again since is skipped and listed."""
        return await self._one("revert", Done, tx=tx, reason=reason)

    # ---- consolidation ----

    async def consolidate(
        self, *, dry_run: bool = False, extractor: Extracts | None = None, reason: str = ""
    ) -> Plan:
        """Make facts from the episodes that were not read yet, in one transaction.

        With `dry_run` the plan is returned and nothing is written; give it to `apply`. An extractor of
        yours runs here, in a thread; without one the daemon uses its rules.
        """
        if extractor is None:
            return await self._one("consolidate", Plan, dry_run=dry_run, reason=reason)
        episodes = await self.unread(extractor.name)
        found = await asyncio.to_thread(extractor.extract, episodes) if episodes else ()
        return await self._one(
            "consolidate",
            Plan,
            dry_run=dry_run,
            reason=reason,
            extractor=extractor.name,
            episodes=[e.id for e in episodes],
            candidates=list(found),
        )

    async def apply(self, plan: Plan, *, reason: str = "") -> Plan:
        """Carry out a plan of a dry run. Raises `WrongState` if it would now do something else."""
        return await self._one("apply", Plan, plan=plan, reason=reason)

    # ---- forgetting ----

    async def erase(
        self,
        *,
        fact: str | None = None,
        episode: str | None = None,
        session: str | None = None,
        subject: str | None = None,
        dry_run: bool = False,
        reason: str = "",
    ) -> Receipt:
        """Erase for good, on all branches, with everything made from it, and verify that no byte is left."""
        return await self._one(
            "erase",
            Receipt,
            fact=fact,
            episode=episode,
            session=session,
            subject=subject,
            dry_run=dry_run,
            reason=reason,
        )

    async def verify_erasure(self, receipt_id: str) -> Receipt:
        """Look again for the bytes of an erasure that a reader kept from being verified."""
        return await self._one("verify_erasure", Receipt, receipt_id=receipt_id)

    # ---- branches and the outside world ----

    async def watermark(self, snapshot_id: str) -> Watermark:
        """Note where memory stands as a snapshot is made of a machine that Torpor does not run."""
        return await self._one("watermark", Watermark, snapshot_id=snapshot_id)

    async def on_restore(
        self, snapshot_id: str, policy: Policy | str = Policy.RECONCILE, *, reason: str = ""
    ) -> Restored:
        """Bring memory in line with a machine, which Torpor does not run, that was put back to a watermark."""
        return await self._one(
            "on_restore", Restored, snapshot_id=snapshot_id, policy=policy, reason=reason
        )

    async def fork(
        self, agent: str, *, snapshot_id: str | None = None, reason: str = ""
    ) -> AsyncMemorySpace:
        """Give a new agent a child branch of this memory, as it is or as it was at a watermark."""
        await self._one("fork", SpaceInfo, new_agent=agent, snapshot_id=snapshot_id, reason=reason)
        return AsyncMemorySpace(self._client, agent=agent)

    async def switch(self, branch: str, *, reason: str = "") -> Done:
        """Go to another branch of this agent: the way back from a rewind."""
        return await self._one("switch", Done, to_branch=branch, reason=reason)

    async def plan_merge(self, branch: str) -> MergePlan:
        """Return the world facts that another branch of the family has and this one lacks."""
        return await self._one("plan_merge", MergePlan, source=branch)

    async def merge(
        self, plan: MergePlan, *, take: Sequence[str] | None = None, reason: str = ""
    ) -> Done:
        """Take facts of a merge plan, all or some; contradictions become conflicts."""
        wanted = [fact.id for fact in plan.facts] if take is None else list(take)
        return await self._one("merge", Done, source=plan.source, take=wanted, reason=reason)

    async def effect(self, key: str, what: str, *, outcome: str = "started") -> Effect:
        """Note an effect on the outside world under an idempotency key, before doing it."""
        return await self._one("effect", Effect, key=key, what=what, outcome=outcome)

    async def finish_effect(self, key: str, outcome: str = "done") -> Effect:
        """Note how an effect ended."""
        return await self._one("finish_effect", Effect, key=key, outcome=outcome)

    async def effects(self) -> list[Effect]:
        """Return all effects, oldest first; no restore takes one back."""
        return await self._many("effects", Effect)


def _pairs(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a query: a list is its name again for each item, None is left out."""
    found: list[tuple[str, str]] = []
    for name, value in given.items():
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                text = str(item).lower() if isinstance(item, bool) else str(item)
                found.append((name, text))
    return found

"""Evidence recall at k on conversations: the product's own recall, and plain methods beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torpor.memory.bench.datasets import Conversation, Question
from torpor.memory.candidates import Request
from torpor.memory.corpus import EPISODE, FACT, Corpus
from torpor.memory.embed.base import Embedder
from torpor.memory.line import Line
from torpor.memory.memory import Memory
from torpor.memory.ranking import Scores, score, top
from torpor.memory.recall import rank
from torpor.memory.rows import EvidenceRow
from torpor.memory.space import Space
from torpor.model_memory import Cardinality, SourceKind
from torpor.model_memory_inputs import EpisodeInput, FactInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RRF_K = 60


@dataclass(slots=True)
class Tally:
    """Mean fractional recall by method."""

    sums: dict[str, float] = field(default_factory=dict)
    questions: int = 0

    def add(self, found: dict[str, float]) -> None:
        """Count one question."""
        self.questions += 1
        for name, value in found.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        """Return the means, rounded to four places."""
        return {n: round(s / max(self.questions, 1), 4) for n, s in self.sums.items()}


def measure(
    conversations: Iterable[Conversation], embedder: Embedder | None, *, k: int = 10
) -> dict[str, Any]:
    """Return mean recall at `k` over all questions, each conversation in a memory of its own."""
    tally = Tally()
    for conversation in conversations:
        with tempfile.TemporaryDirectory(prefix="torpor-bench-") as folder:
            memory = Memory.open(Path(folder) / "bench.db", embedder=embedder)
            with memory:
                _conversation(memory, conversation, tally, k)
    return {"questions": tally.questions, **tally.means()}


def _conversation(memory: Memory, conversation: Conversation, tally: Tally, k: int) -> None:
    space = memory.space("bench")
    turn_of = _record(space, conversation)
    first = [_episodes_only(memory, space, q, turn_of, k) for q in conversation.questions]
    second: Sequence[dict[str, float]] = [{} for _ in first]
    if conversation.facts:
        _remember(space, conversation, {turn: e for e, turn in turn_of.items()})
        second = [_with_facts(memory, space, q, turn_of, k) for q in conversation.questions]
    for one, two in zip(first, second, strict=True):
        tally.add({**one, **two})


def _record(space: Space, conversation: Conversation) -> dict[str, str]:
    inputs = [
        EpisodeInput(
            f"{turn.speaker}: {turn.text}",
            SourceKind.USER if turn.is_user else SourceKind.AGENT,
            turn.at,
            turn.session,
        )
        for turn in conversation.turns
    ]
    made = space.record_many(inputs)
    return {e.id: turn.id for e, turn in zip(made, conversation.turns, strict=True)}


def _remember(space: Space, conversation: Conversation, episode_of: dict[str, str]) -> None:
    space.remember_many(
        [
            FactInput(
                subject=speaker,
                attribute="observation",
                value=text,
                text=text,
                cardinality=Cardinality.MANY,
                evidence=[episode_of[t] for t in turns],
            )
            for speaker, text, turns in conversation.facts
        ]
    )


def _product(line: Line, corpus: Corpus, question: Question, k: int, threshold: bool) -> list[str]:
    """Return the episodes behind what recall gives, in its order; several facts may rest on one."""
    request = Request(
        question.text, 4 * k, 1_000_000, None, None, None, None, (), (), threshold=threshold
    )
    ranked = rank(line, corpus, request)
    return list(dict.fromkeys(e for c in ranked.taken for e in c.episodes))


def _episodes_only(
    memory: Memory, space: Space, question: Question, turn_of: dict[str, str], k: int
) -> dict[str, float]:
    line = space._line
    with memory._corpus(line.branch()) as corpus:
        scores = _scores(line, corpus, question.text)
        only = scores.visible & (corpus.kinds == EPISODE)
        orders = {
            "r_at_10_bm25": _owners(corpus, top(scores.bm25, only, k)),
            "r_at_10_episodes": _product(line, corpus, question, k, threshold=False),
            "r_at_10_episodes_thresholded": _product(line, corpus, question, k, threshold=True),
        }
        if line.embedder is not None:
            orders["r_at_10_dense"] = _owners(corpus, top(scores.cosine + 2, only, k))
            orders["r_at_10_rrf"] = _owners(corpus, _rrf(scores, only, k))
    return {name: _recall(order, question, turn_of, k) for name, order in orders.items()}


def _with_facts(
    memory: Memory, space: Space, question: Question, turn_of: dict[str, str], k: int
) -> dict[str, float]:
    line = space._line
    with memory._corpus(line.branch()) as corpus:
        orders = {"r_at_10_with_facts": _product(line, corpus, question, k, threshold=False)}
        if line.embedder is not None:
            scores = _scores(line, corpus, question.text)
            only = scores.visible & (corpus.kinds == FACT)
            facts = _owners(corpus, top(scores.cosine + 2, only, 3 * k))
            beliefs = line.beliefs()
            beliefs.load(facts)
            behind = {
                f: [e.episode for e in line.store.select(EvidenceRow, {"fact": f})] for f in facts
            }
            orders["r_at_10_add_only"] = list(dict.fromkeys(e for f in facts for e in behind[f]))
    return {name: _recall(order, question, turn_of, k) for name, order in orders.items()}


def _scores(line: Line, corpus: Corpus, query: str) -> Scores:
    blobs = line.embed([query])
    return score(line.store, corpus, line.view(), query, blobs[0] if blobs else None)


def _owners(corpus: Corpus, places: Sequence[int]) -> list[str]:
    return [corpus.owners[p] for p in places]


def _rrf(scores: Scores, only: NDArray[np.bool_], k: int) -> list[int]:
    total: dict[int, float] = {}
    for values in (scores.bm25, scores.cosine + 2):
        for n, place in enumerate(top(values, only, 200), start=1):
            total[place] = total.get(place, 0.0) + 1 / (RRF_K + n)
    return sorted(total, key=lambda p: -total[p])[:k]


def _recall(order: Sequence[str], question: Question, turn_of: dict[str, str], k: int) -> float:
    found = {turn_of[e] for e in order[:k] if e in turn_of}
    return len(found & question.gold) / len(question.gold)

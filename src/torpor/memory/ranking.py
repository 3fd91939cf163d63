"""Scores: BM25 and cosine brought to one scale and mixed, then smoothed over neighbours in a session.

Each score is brought to 0…1 within its kind (episodes, facts) by its least and greatest value; the mix is
half and half; an episode also gets a quarter of the mix of the episode before and of the one after. These
weights were published for conversation data before this code was written. Facts are a second view of the
episodes they rest on: the best one adds a quarter of its score. That quarter was chosen on REALTALK's human
chats, with facts made from their turns by rule; nothing was fitted on LoCoMo or BEAM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torpor.memory.corpus import EPISODE, FACT, Corpus
from torpor.memory.store import Store
from torpor.memory.view import NOW, View
from torpor.memory.words import terms_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BM25_LIMIT = 2000
"""Matches taken from the text index; the tail has scores near 0."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How the parts of a score are mixed."""

    bm25: float = 0.5
    dense: float = 0.5
    neighbour: float = 0.25
    facts: float = 0.25

    def as_dict(self) -> dict[str, float]:
        """Return the weights by name, for the log."""
        return {
            "bm25": self.bm25,
            "dense": self.dense,
            "neighbour": self.neighbour,
            "facts": self.facts,
        }


DEFAULT = Weights()


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of all documents of a corpus for one query; arrays by position."""

    terms: list[str]
    bm25: NDArray[np.float32]
    """0…1 within the kind."""
    cosine: NDArray[np.float32]
    """As measured, -1…1; 0 where there is no vector."""
    mixed: NDArray[np.float32]
    """The two at their weights."""
    visible: NDArray[np.bool_]


def score(
    store: Store,
    corpus: Corpus,
    view: View,
    query: str,
    vector: bytes | None,
    weights: Weights = DEFAULT,
) -> Scores:
    """Score every document that `view` sees."""
    import numpy as np

    terms = terms_of(query)
    size = corpus.size
    visible = corpus.txs <= (NOW if view.known_at is None else view.known_at)
    raw = np.zeros(size, np.float32)
    hits = store.bm25(terms, view.scopes, BM25_LIMIT)
    if hits and size:
        found, ranks = zip(*hits, strict=True)
        numbers = np.array(found, np.int64)
        places = np.searchsorted(corpus.docs, numbers)
        places = np.minimum(places, size - 1)
        known = corpus.docs[places] == numbers
        raw[places[known]] = np.array(ranks, np.float32)[known]
    cosine = np.zeros(size, np.float32)
    if vector is not None and corpus.vectors.shape[1]:
        # Not `@`: the threads of the BLAS behind it go on spinning for some 20 ms after each call, on the cores
        # that embed and search; one thread is as fast here.
        query_vector = np.frombuffer(vector, np.float16).astype(np.float32)
        cosine = np.einsum("ij,j->i", corpus.vectors, query_vector)
    bm25 = np.zeros(size, np.float32)
    dense = np.zeros(size, np.float32)
    for kind in (EPISODE, FACT):
        mine = visible & (corpus.kinds == kind)
        if not mine.any():
            continue
        bm25[mine] = _scaled(raw[mine], 0.0)
        if vector is not None:
            # Not above 0: the only text there is may be the right one.
            dense[mine] = _scaled(cosine[mine], min(0.0, float(cosine[mine].min())))
    mixed = weights.bm25 * bm25 + weights.dense * dense
    return Scores(terms, bm25, cosine, mixed, visible)


def _scaled(values: NDArray[np.float32], low: float) -> NDArray[np.float32]:
    span = float(values.max()) - low
    if span <= 0:
        return values * 0
    result: NDArray[np.float32] = (values - low) / span
    return result


def with_facts(
    corpus: Corpus,
    scores: Scores,
    episodes: NDArray[np.float32],
    links: Iterable[tuple[str, str]],
    weight: float,
) -> NDArray[np.float32]:
    """Return the episodes' scores, brought to 0…1, plus that of the best fact that rests on each."""
    import numpy as np

    highest = float(episodes.max()) if len(episodes) else 0.0
    result: NDArray[np.float32] = episodes / np.float32(highest or 1.0)
    raised = np.zeros_like(result)
    for fact, episode in links:
        at, source = corpus.position.get(episode), corpus.position.get(fact)
        if at is not None and source is not None and scores.visible[source]:
            raised[at] = max(raised[at], weight * scores.mixed[source])
    return result + raised


def neighbours(
    corpus: Corpus, mixed: NDArray[np.float32], visible: NDArray[np.bool_], weight: float
) -> NDArray[np.float32]:
    """Return what each episode gets from the one before and the one after it in its session."""
    import numpy as np

    shown = np.where(visible, mixed * np.float32(weight), np.float32(0))
    padded = np.append(shown, np.float32(0))  # position -1 reads this 0
    result: NDArray[np.float32] = padded[corpus.before] + padded[corpus.after]
    return np.where(corpus.kinds == EPISODE, result, np.float32(0))


def top(scores: NDArray[np.float32], among: NDArray[np.bool_], count: int) -> list[int]:
    """Return the positions of the best scores above 0, best first; ties go to the later one."""
    import numpy as np

    places = np.flatnonzero(among & (scores > 0))
    if len(places) > count:
        part = np.argpartition(scores[places], len(places) - count)[-count:]
        places = places[part]
    order = np.lexsort((places, scores[places]))[::-1]
    return [int(p) for p in places[order]]

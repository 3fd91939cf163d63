"""How long a recall and a durable commit take with many facts, with the embedding of the query and without."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torpor.memory.embed.base import Embedder
from torpor.memory.memory import Memory
from torpor.memory.rows import VectorRow
from torpor.memory.space import Space
from torpor.model_memory import Cardinality
from torpor.model_memory_inputs import FactInput

WORDS = 4000
RECALLS = 200
COMMITS = 200


def measure(size: int, embedder: Embedder | None, *, seed: int = 11) -> dict[str, float]:
    """Return p50 and p95 in milliseconds with `size` facts (vectors random: their content costs nothing)."""
    pick = random.Random(seed)  # noqa: S311  # reproducible filler, not a secret
    with tempfile.TemporaryDirectory(prefix="torpor-bench-") as folder:
        path = Path(folder) / "latency.db"
        with Memory.open(path) as memory:
            _fill(memory.space("bench"), size, pick)
            if embedder is not None:
                _random_vectors(memory, embedder)
        found: dict[str, float] = {}
        with Memory.open(path) as memory:
            space = memory.space("bench")
            cold = _timed(lambda: space.recall(_query(pick)), 1)
            found["first_recall"] = cold[0]
            found |= _figures(
                "recall_no_embedder", _timed(lambda: space.recall(_query(pick)), RECALLS)
            )
            found |= _figures("commit", _timed(lambda: _commit(space, pick), COMMITS))
        found |= _flushes(Path(folder) / "flushed")
        if embedder is not None:
            embedder.embed(["warm"])
            with Memory.open(path, embedder=embedder) as memory:
                space = memory.space("bench")
                space.recall(_query(pick))
                before = time.process_time()
                found |= _figures("recall", _timed(lambda: space.recall(_query(pick)), RECALLS))
                found["recall_cpu_mean"] = round(
                    (time.process_time() - before) * 1000 / RECALLS, 2
                )  # what it costs when the machine is shared
                found |= _figures(
                    "commit_with_embedding", _timed(lambda: _commit(space, pick), COMMITS // 4)
                )
        else:
            found["recall_p50"] = found["recall_no_embedder_p50"]
            found["recall_p95"] = found["recall_no_embedder_p95"]
        found["file_mib"] = round(path.stat().st_size / (1 << 20), 1)
        return found


def _word(pick: random.Random) -> str:
    """Words are as unequal as in real text: few are in most sentences."""
    return f"w{int(WORDS * pick.random() ** 3)}x"


def _sentence(pick: random.Random) -> str:
    return " ".join(_word(pick) for _ in range(14))


def _query(pick: random.Random) -> str:
    return f"what about {' '.join(_word(pick) for _ in range(7))}?"


def _fill(space: Space, size: int, pick: random.Random) -> None:
    batch = 500
    for start in range(0, size, batch):
        space.remember_many([_fact(n, pick) for n in range(start, min(start + batch, size))])


def _fact(n: int, pick: random.Random) -> FactInput:
    many = n % 3 == 0
    return FactInput(
        subject=f"entity-{n % 997}",
        attribute=f"attribute-{n % 41}",
        value=f"value {n}",
        text=f"entity-{n % 997} {_sentence(pick)}",
        cardinality=Cardinality.MANY if many else Cardinality.ONE,
    )


def _random_vectors(memory: Memory, embedder: Embedder) -> None:
    import numpy as np

    from torpor.memory.corpus import GENERATION
    from torpor.memory.rows import FactRow

    store = memory._store
    owners = [row.id for row in store.stream(FactRow)]
    made = np.random.default_rng(3).standard_normal((len(owners), embedder.dim), np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    with store.transaction():
        for owner, vector in zip(owners, made.astype(np.float16), strict=True):
            store.put_vector(
                VectorRow(owner, embedder.model, embedder.dim, "float16", vector.tobytes())
            )
        store.set_meta(GENERATION, "vectors")


def _commit(space: Space, pick: random.Random) -> None:
    space.remember(f"entity-{pick.randrange(997)}", "fresh", pick.random(), text=_sentence(pick))


def _flushes(path: Path) -> dict[str, float]:
    """Return what the disk takes to keep 4 KiB: the floor of a durable commit."""
    with path.open("wb") as file:

        def flush() -> None:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())

        return _figures("flush", _timed(flush, COMMITS))


def _timed(call: Callable[[], Any], count: int) -> list[float]:
    found = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1000)
    return sorted(found)


def _figures(name: str, values: list[float]) -> dict[str, float]:
    return {
        f"{name}_p50": round(values[len(values) // 2], 2),
        f"{name}_p95": round(values[int(len(values) * 0.95)], 2),
    }

"""All measurements as one object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torpor.memory.bench import datasets, latency, retrieval, stream
from torpor.memory.embed.base import Embedder
from torpor.memory.ranking import DEFAULT

WEIGHTS_NOTE = (
    "half BM25, half cosine after min-max, neighbours a quarter: published for conversation data before "
    "this code; facts a quarter: chosen on REALTALK with facts made by rule. Nothing was fitted on LoCoMo."
)
ADD_ONLY_NOTE = "add_only is dense search over facts that are never replaced: the storage shape of mem0, not mem0."


def run(
    *,
    embedder: Embedder | None,
    locomo: Path | None = None,
    longmemeval: Path | None = None,
    beam: Path | None = None,
    updates: int = 10_000,
    sizes: Sequence[int] = (10_000, 100_000),
) -> dict[str, Any]:
    """Measure what is asked for and return the object that `torpor memory bench --json` prints."""
    found: dict[str, Any] = {
        "model": embedder.model if embedder is not None else None,
        "weights": DEFAULT.as_dict(),
        "notes": [WEIGHTS_NOTE, ADD_ONLY_NOTE],
    }
    for name, path, load in (
        ("locomo", locomo, datasets.locomo),
        ("longmemeval", longmemeval, datasets.longmemeval),
        ("beam", beam, datasets.beam),
    ):
        if path is not None:
            found[name] = retrieval.measure(load(path), embedder)
    if updates:
        found["generated"] = stream.measure(updates, None)
    if sizes:
        found["latency_ms"] = {str(n): latency.measure(n, embedder) for n in sizes}
    return found

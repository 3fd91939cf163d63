"""An agent's memory: traced to words, corrected, forgotten, and put back with its machine.

Episodes are what happened, verbatim; facts are claims with words behind them, made by consolidation. What
holds is a pure function of branch, transaction and time (`belief.py`). No model is needed for anything here.
"""

from __future__ import annotations

from torpor.memory.extract.base import Extractor
from torpor.memory.memory import Memory
from torpor.memory.space import Space
from torpor.model_memory import (
    Authority,
    Candidate,
    Cardinality,
    Episode,
    Fact,
    FactKind,
    Plan,
    Policy,
    Recall,
    Receipt,
    Scope,
    SourceKind,
    Status,
)
from torpor.model_memory_inputs import EpisodeInput, FactInput

__all__ = [
    "Authority",
    "Candidate",
    "Cardinality",
    "Episode",
    "EpisodeInput",
    "Extractor",
    "Fact",
    "FactInput",
    "FactKind",
    "Memory",
    "Plan",
    "Policy",
    "Recall",
    "Receipt",
    "Scope",
    "SourceKind",
    "Space",
    "Status",
]

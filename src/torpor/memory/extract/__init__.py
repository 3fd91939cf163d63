"""Extractors: from episodes to candidate facts. They propose; the quote gate and the rules decide."""

from __future__ import annotations

from torpor.memory.extract.base import Extractor
from torpor.memory.extract.rules import RuleExtractor
from torpor.model_memory import Candidate

__all__ = ["Candidate", "Extractor", "RuleExtractor"]

"""Measuring memory without a model that judges: evidence recall, structural checks, latency.

`torpor memory bench --json` prints one object; see docs/memory.md for what each number means.
"""

from __future__ import annotations

from torpor.memory.bench.report import run

__all__ = ["run"]

"""Inventories of machines: what is there, compared with what was there."""

from torpor.model_inventory_diff import compare
from torpor.model_inventory_rules import DEFAULT_RULES, check_rules, violations
from torpor.recovery.inventory.taking import (
    SNAPSHOT_SECONDS,
    Detected,
    before_snapshots,
    detect,
    take,
)

__all__ = [
    "DEFAULT_RULES",
    "SNAPSHOT_SECONDS",
    "Detected",
    "before_snapshots",
    "check_rules",
    "compare",
    "detect",
    "take",
    "violations",
]

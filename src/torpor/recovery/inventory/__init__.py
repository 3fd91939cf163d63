"""Inventories of machines: what is there, compared with what was there."""

from torpor.model_inventory_diff import compare
from torpor.model_inventory_rules import DEFAULT_RULES, check_rules, violations

__all__ = ["DEFAULT_RULES", "check_rules", "compare", "violations"]

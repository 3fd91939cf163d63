"""Which differences between two inventories are allowed: a rule for each kind, or for one field of a kind.

`equal`: nothing may differ. `superset`: nothing may go or change, except that numbers may rise; more may come.
`may-change`: anything may. A rule for `kind.field` wins over the kind's, and tells only about changes of that field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from torpor.errors import InvalidRequest
from torpor.model_inventory import KINDS
from torpor.model_inventory_diff import EntryChange, FieldChange, InventoryDiff

Rule = Literal["equal", "superset", "may-change"]
RULES: tuple[Rule, ...] = get_args(Rule)

DEFAULT_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "versions": "equal",
        "models": "equal",
        "settings": "equal",
        "tools": "superset",
        "skills": "superset",
        "jobs": "equal",
        "memory": "superset",
        "memory.content": "may-change",
        "memory.size_bytes": "may-change",
        "channels": "superset",
        "env": "superset",
        "sqlite": "superset",
        "sqlite.size_bytes": "may-change",
        "tables": "superset",
        "cron": "equal",
        "timers": "equal",
        "units": "superset",
        "units.restarts": "equal",
        "ports": "superset",
        "users": "equal",
        "debian": "equal",
        "python": "equal",
        "npm": "equal",
        "files": "may-change",
    }
)
"""What holds for a change that declares nothing: an agent may remember more, and nothing else may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A difference that no rule allows."""

    rule: str
    """The rule that forbids it, such as `skills: superset`."""
    change: EntryChange
    """With only the fields that are not allowed."""


def check_rules(rules: Mapping[str, str]) -> dict[str, Rule]:
    """Return `rules` as they are.

    Raises:
        InvalidRequest: a kind, or a rule, that there is not.
    """
    found: dict[str, Rule] = {}
    for key, rule in rules.items():
        if key.partition(".")[0] not in KINDS:
            raise InvalidRequest(
                f"there is no kind {key.partition('.')[0]!r} in an inventory",
                hint=f"one of {', '.join(KINDS)}, or KIND.FIELD",
            )
        if rule not in RULES:
            raise InvalidRequest(
                f"{key}: there is no rule {rule!r}", hint=f"one of {', '.join(RULES)}"
            )
        found[key] = rule
    return found


def violations(diff: InventoryDiff, rules: Mapping[str, Rule]) -> tuple[Violation, ...]:
    """Return the differences that `rules` forbid, in the order of the diff; a kind without a rule may change."""
    found = []
    for change in diff.changes:
        rule = rules.get(change.kind, "may-change")
        if change.what != "changed":
            if rule == "equal" or (rule == "superset" and change.what == "removed"):
                found.append(Violation(rule=f"{change.kind}: {rule}", change=change))
            continue
        for name, fields in _forbidden(change, rules):
            only = EntryChange(
                kind=change.kind, name=change.name, what="changed", fields=tuple(fields)
            )
            found.append(Violation(rule=name, change=only))
    return tuple(found)


def _forbidden(
    change: EntryChange, rules: Mapping[str, Rule]
) -> Iterable[tuple[str, list[FieldChange]]]:
    by_rule: dict[str, list[FieldChange]] = {}
    for field in change.fields:
        key = f"{change.kind}.{field.field}"
        if key not in rules:
            key = change.kind
        rule = rules.get(key, "may-change")
        if rule == "equal" or (rule == "superset" and not _rose(field)):
            by_rule.setdefault(f"{key}: {rule}", []).append(field)
    return by_rule.items()


def _rose(change: FieldChange) -> bool:
    """Return whether a number is higher than it was, or a field is new."""
    if change.is_hidden:
        return change.appeared is True
    before, after = change.before, change.after
    if before is None:
        return True
    return (
        isinstance(before, int)
        and isinstance(after, int)
        and not isinstance(before, bool)
        and not isinstance(after, bool)
        and after > before
    )

"""`inventory` checks: compares what the machine holds now with an inventory from before, by a rule a kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from torpor.errors import GuestFailed, GuestUnreachable, HostNotReady, OperationTimeout
from torpor.model_inventory import Inventory
from torpor.model_inventory_diff import Count, EntryChange, InventoryDiff, compare
from torpor.model_inventory_rules import violations
from torpor.recovery.checks.clean import clean, clean_output
from torpor.recovery.checks.facts import Facts, Unclear
from torpor.recovery.checks.plan import Check

_SHOWN = 10
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An inventory from before, and how to take one of the machine as it is now."""

    before: Inventory
    take: Callable[[], Awaitable[Inventory]]
    """Takes an inventory of the machine that is checked, with the profile of `before`. Raises as `ProbeMachine.run`."""


class Comparer:
    """Compares with a baseline for one run: checks that ask at the same time share what was taken."""

    def __init__(self, baseline: Baseline | None) -> None:
        self._baseline = baseline
        self._lock = asyncio.Lock()
        self._now: Inventory | None = None
        self._asked: set[int] = set()
        """The checks (by identity) that have seen `_now`; a second attempt of one takes it anew."""

    async def look(self, check: Check) -> Facts:
        """Return whether a kind is as its rule wants.

        Raises:
            Unclear: there is nothing to compare with, or it could not be read.
            TorporError: as `ProbeMachine.run`.
        """
        if self._baseline is None:
            raise Unclear("there is no inventory from before to compare with")
        try:
            async with asyncio.timeout(check.timing.timeout_seconds):
                now = await self._taken(check)
        except TimeoutError:
            limit = f"{check.timing.timeout_seconds:g} s"
            raise Unclear(f"the machine's inventory could not be taken within {limit}") from None
        except GuestUnreachable:
            raise
        except (HostNotReady, GuestFailed, OperationTimeout) as error:
            told = clean(error.message)
            raise Unclear(f"the machine's inventory could not be taken: {told}") from error
        # in a thread: they may be large
        return await asyncio.to_thread(_compared, check, self._baseline.before, now)

    async def _taken(self, check: Check) -> Inventory:
        assert self._baseline is not None
        async with self._lock:
            if self._now is None or id(check) in self._asked:
                self._now = await self._baseline.take()
                self._asked.clear()
            self._asked.add(id(check))
            return self._now


def _compared(check: Check, before: Inventory, now: Inventory) -> Facts:
    kind, rule = check.name.partition(".")[0], check.options["rule"]
    for inventory, when in ((before, "from before"), (now, "of now")):
        if kind not in inventory.sections:
            raise Unclear(f"the inventory {when} did not look at {kind}")
    diff = compare(before, now)
    changes = diff.of(kind)
    offends = violations(diff, {check.name: rule})
    count = diff.counts.get(kind, Count())
    said = f"{count.added} added, {count.removed} gone, {count.changed} changed"
    if offends:
        names = clean(", ".join(_named(found.change) for found in offends[:_SHOWN]))
        reason = f"{said}; the rule is {rule}: {names}"
    else:
        unknown = None if rule == "may-change" else _unknown(kind, before, now)
        if unknown is not None:
            raise Unclear(unknown)
        reason = f"{said}; the rule is {rule}"
    only = InventoryDiff(changes=changes, counts={kind: count} if changes else {})
    return Facts(
        decided="fail" if offends else "pass",
        reason=reason,
        output=clean_output("\n".join(only.sentences()).encode()),
    )


def _named(change: EntryChange) -> str:
    fields = f" ({', '.join(field.field for field in change.fields)})"
    return f"{_SIGNS[change.what]}{change.name}{fields if change.what == 'changed' else ''}"


def _unknown(kind: str, before: Inventory, now: Inventory) -> str | None:
    """Return what is not known of a kind in which no difference was seen; None: all is."""
    then, today = before.sections[kind], now.sections[kind]
    for section, when in ((then, "from before"), (today, "of now")):
        if not section.is_complete:
            return (
                f"the inventory {when} does not list all {kind}: {clean('; '.join(section.notes))}"
            )
    hides = any(entry.hidden for entry in then.entries.values())
    if hides and before.key_id != now.key_id:
        return f"hidden values of {kind} cannot be compared: the two machines have different keys"
    for name, entry in today.entries.items():
        known = then.entries.get(name)
        lost = {*entry.unknown} & ({*known.shown, *known.hidden} if known else set())
        if lost:
            return f"{clean(name)}: {', '.join(sorted(lost))} could not be read this time"
    return None

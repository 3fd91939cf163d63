"""What differs between two inventories, and whether that was allowed.

`compare` is exact about what it does not know: a field that one of the two could not read, a kind that one did not
look at, digests under different keys and entries beyond the end of a cut list are no differences; they are in
`not_compared`. Its result is sorted and bounded, and the same whenever it is made of the same two inventories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torpor.model_inventory import KINDS, Entry, Inventory, Section, Value

CHANGES_MOST = 1000
"""Changes of one kind that are listed; more are counted."""

What = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """A field of an entry that is not what it was."""

    field: str
    before: Value
    """None: it was not there, or `is_hidden`."""
    after: Value
    is_hidden: bool = False
    """The values stay in the machine; only that they differ is known."""
    appeared: bool | None = None
    """For a hidden field: True when it is new, False when it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """An entry that is not what it was."""

    kind: str
    name: str
    what: What
    fields: tuple[FieldChange, ...] = ()
    """What changed; for an entry that came or went, its shown fields."""

    def field(self, name: str) -> FieldChange | None:
        """Return the change of one field; None: it did not change."""
        return next((change for change in self.fields if change.field == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many entries of a kind came, went and changed; also those that are not listed."""

    added: int = 0
    removed: int = 0
    changed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryDiff:
    """What differs between two inventories: sorted by kind as `KINDS`, then by name."""

    changes: tuple[EntryChange, ...]
    """At most `CHANGES_MOST` of each kind; those that went first, then those that came, then the others."""
    counts: Mapping[str, Count]
    """Of each kind that differs."""
    not_compared: tuple[str, ...] = ()
    """Sentences on what is not known to be the same."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing that could be compared differs."""
        return not self.changes

    def of(self, kind: str) -> tuple[EntryChange, ...]:
        """Return the changes of one kind."""
        return tuple(change for change in self.changes if change.kind == kind)

    def sentences(self) -> tuple[str, ...]:
        """Return the differences in the words of people who run agents, the most telling first."""
        from torpor.model_inventory_words import sentences

        return sentences(self)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, with its sentences."""
        return {
            "is_empty": self.is_empty,
            "sentences": list(self.sentences()),
            "counts": {
                kind: {"added": n.added, "removed": n.removed, "changed": n.changed}
                for kind, n in self.counts.items()
            },
            "changes": [_change_json(change) for change in self.changes],
            "not_compared": list(self.not_compared),
        }


def compare(before: Inventory, after: Inventory) -> InventoryDiff:
    """Return what differs between two inventories."""
    comparer = _Comparer(before, after)
    changes: list[EntryChange] = []
    counts: dict[str, Count] = {}
    for kind in KINDS:
        found = comparer.section(kind)
        if not found:
            continue
        counts[kind] = Count(
            added=sum(change.what == "added" for change in found),
            removed=sum(change.what == "removed" for change in found),
            changed=sum(change.what == "changed" for change in found),
        )
        kept = sorted(found, key=lambda change: (_URGENCY[change.what], change.name))
        changes += kept[:CHANGES_MOST]
    return InventoryDiff(
        changes=tuple(changes), counts=counts, not_compared=tuple(comparer.not_compared)
    )


_URGENCY: Mapping[What, int] = {"removed": 0, "added": 1, "changed": 2}


class _Comparer:
    def __init__(self, before: Inventory, after: Inventory) -> None:
        self._before = before
        self._after = after
        self._same_key = before.key_id == after.key_id
        self.not_compared: list[str] = []
        if before.profile_digest != after.profile_digest:
            self.not_compared.append(
                f"they were taken with different profiles ({before.profile}, {after.profile}): "
                "what only one of them looks at shows as come or gone"
            )
        if not self._same_key:
            self.not_compared.append(
                "hidden values were not compared: the two machines have different keys"
            )

    def section(self, kind: str) -> list[EntryChange]:
        before, after = self._before.sections.get(kind), self._after.sections.get(kind)
        if before is None or after is None:
            if before is not after:
                which = "first" if before is None else "second"
                self.not_compared.append(
                    f"{kind} were not compared: the {which} did not look at them"
                )
            return []
        return list(self._changes(kind, before, after))

    def _changes(self, kind: str, before: Section, after: Section) -> Iterator[EntryChange]:
        gone = before.entries.keys() - after.entries.keys()
        new = after.entries.keys() - before.entries.keys()
        if not before.is_complete or not after.is_complete:
            self.not_compared.append(f"{kind} were compared in part: the list is cut short")
        if after.is_complete:
            for name in gone:
                yield _whole(kind, "removed", before.entries[name])
        if before.is_complete:
            for name in new:
                yield _whole(kind, "added", after.entries[name])
        unknown = 0
        for name in before.entries.keys() & after.entries.keys():
            left, right = before.entries[name], after.entries[name]
            unknown += bool(left.unknown or right.unknown)
            fields = tuple(self._fields(left, right))
            if fields:
                yield EntryChange(kind=kind, name=name, what="changed", fields=fields)
        if unknown:
            self.not_compared.append(f"{kind}: {unknown} could not be read whole in both")

    def _fields(self, left: Entry, right: Entry) -> Iterator[FieldChange]:
        unknown = {*left.unknown, *right.unknown}
        names = {*left.shown, *left.hidden, *right.shown, *right.hidden} - unknown
        for name in sorted(names):
            if name in left.hidden or name in right.hidden:
                yield from self._hidden(name, left, right)
            elif (name in left.shown) != (name in right.shown) or (
                left.shown[name] != right.shown[name]
                or type(left.shown[name]) is not type(right.shown[name])
            ):
                yield FieldChange(
                    field=name, before=left.shown.get(name), after=right.shown.get(name)
                )

    def _hidden(self, name: str, left: Entry, right: Entry) -> Iterator[FieldChange]:
        was = name in left.hidden or name in left.shown
        is_now = name in right.hidden or name in right.shown
        if was and is_now:
            both = name in left.hidden and name in right.hidden
            if not both or not self._same_key or left.hidden[name] == right.hidden[name]:
                return  # shown by one profile and hidden by another, or simply the same
        yield FieldChange(
            field=name,
            before=None,
            after=None,
            is_hidden=True,
            appeared=None if was and is_now else is_now,
        )


def _whole(kind: str, what: What, entry: Entry) -> EntryChange:
    fields = tuple(
        FieldChange(
            field=name,
            before=value if what == "removed" else None,
            after=None if what == "removed" else value,
        )
        for name, value in sorted(entry.shown.items())
    )
    return EntryChange(kind=kind, name=entry.name, what=what, fields=fields)


def _change_json(change: EntryChange) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "name": change.name,
        "what": change.what,
        "fields": [
            {"field": f.field, "is_hidden": True, "appeared": f.appeared}
            if f.is_hidden
            else {"field": f.field, "before": f.before, "after": f.after}
            for f in change.fields
        ],
    }

"""A diff of inventories in plain sentences: what a person who runs an agent would say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from torpor.model_inventory import KINDS

if TYPE_CHECKING:
    from torpor.model_inventory_diff import EntryChange, FieldChange, InventoryDiff

NAMED_MOST = 5
"""Names that one sentence tells; more are counted."""
EACH_MOST = 10
"""Changed entries of a kind that get a sentence each."""

_NOUNS: Mapping[str, tuple[str, str]] = {
    "versions": ("version", "versions"),
    "models": ("model setting", "model settings"),
    "settings": ("protected setting", "protected settings"),
    "tools": ("tool", "tools"),
    "skills": ("skill", "skills"),
    "jobs": ("scheduled job", "scheduled jobs"),
    "memory": ("memory file", "memory files"),
    "channels": ("channel", "channels"),
    "env": ("environment variable", "environment variables"),
    "sqlite": ("database", "databases"),
    "tables": ("table", "tables"),
    "cron": ("cron entry", "cron entries"),
    "timers": ("timer", "timers"),
    "units": ("service", "services"),
    "ports": ("listening port", "listening ports"),
    "users": ("user", "users"),
    "debian": ("Debian package", "Debian packages"),
    "python": ("Python package", "Python packages"),
    "npm": ("npm package", "npm packages"),
    "files": ("watched file", "watched files"),
}
_CAME_AND_WENT: Mapping[str, tuple[str, str]] = {
    "debian": ("installed", "removed"),
    "python": ("installed", "removed"),
    "npm": ("installed", "removed"),
    "ports": ("opened", "closed"),
}


def sentences(diff: InventoryDiff) -> tuple[str, ...]:
    """Return the sentences of a diff, in the order of `KINDS`; within a kind what went, came, and changed."""
    found: list[str] = []
    for kind in KINDS:
        changes = diff.of(kind)
        if not changes:
            continue
        count = diff.counts[kind]
        came, went = _CAME_AND_WENT.get(kind, ("new", "gone"))
        removed = [change.name for change in changes if change.what == "removed"]
        added = [change.name for change in changes if change.what == "added"]
        if count.removed:
            found.append(f"{counted(kind, count.removed)} {went}{_named(removed, count.removed)}")
        if count.added:
            found.append(f"{counted(kind, count.added)} {came}{_named(added, count.added)}")
        changed = [change for change in changes if change.what == "changed"]
        if kind in ("jobs", "files", "memory", "skills", "tools", "channels", "cron", "env"):
            found += _together(kind, changed, count.changed)
        else:
            found += [_sentence(change) for change in changed[:EACH_MOST]]
            if count.changed > EACH_MOST:
                found.append(f"{count.changed - EACH_MOST} more {_NOUNS[kind][1]} changed")
    return tuple(found)


def counted(kind: str, number: int) -> str:
    """Return a number of entries of a kind in words, such as `2 skills`."""
    return f"{number:,} {_NOUNS[kind][number != 1]}"


def _named(names: Sequence[str], number: int) -> str:
    """Return `: a, b and 3 more`."""
    if not names:
        return ""
    listed = ", ".join(names[:NAMED_MOST])
    more = number - min(len(names), NAMED_MOST)
    return f": {listed} and {more:,} more" if more else f": {listed}"


def _together(kind: str, changed: Sequence[EntryChange], number: int) -> list[str]:
    """Return one sentence for all entries in which the same fields changed."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for change in changed:
        groups.setdefault(tuple(f.field for f in change.fields), []).append(change.name)
    found = []
    for fields, names in groups.items():
        found.append(f"{len(names):,} {_noun(kind, fields, len(names))}{_named(names, len(names))}")
    if number > len(changed):
        found.append(f"{number - len(changed):,} more {_NOUNS[kind][1]} changed")
    return found


def _noun(kind: str, fields: Sequence[str], number: int) -> str:
    if kind in _SHORT and len(fields) == 1:
        return f"{_SHORT[kind]} {fields[0]}{'s' if number != 1 else ''} changed"
    what = _what(kind, fields)
    noun = _NOUNS[kind][number != 1]
    return f"{noun} changed ({what})" if what else f"{noun} changed"


def _what(kind: str, fields: Sequence[str]) -> str:
    if kind in ("files", "memory", "skills", "env") and set(fields) <= _CONTENT:
        return ""  # that the content changed needs no words
    return ", ".join(fields)


_CONTENT = frozenset({"content", "size_bytes", "files", "value"})
_SHORT: Mapping[str, str] = {"jobs": "job", "cron": "cron"}


def _sentence(change: EntryChange) -> str:
    """Return the sentence on one entry that changed."""
    own = _OWN.get(change.kind)
    text = None if own is None else own(change)
    if text is not None:
        return text
    noun = _NOUNS[change.kind][0]
    return f"{noun} {change.name}: {', '.join(_field(field) for field in change.fields)}"


def _field(change: FieldChange) -> str:
    if change.is_hidden:
        how = {None: "changed", True: "is new", False: "is gone"}[change.appeared]
        return f"{change.field} {how}"
    return f"{change.field} {_value(change.before)} -> {_value(change.after)}"


def _value(value: object) -> str:
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _package(change: EntryChange) -> str | None:
    version = change.field("version")
    if version is None or len(change.fields) != 1:
        return None
    prefix = "package" if change.kind == "debian" else _NOUNS[change.kind][0]
    return f"{prefix} {change.name} {_value(version.before)} -> {_value(version.after)}"


def _only_value(change: EntryChange) -> str | None:
    value = change.field("value") or change.field("version")
    if value is None or len(change.fields) != 1:
        return None
    noun = {"models": "model", "settings": "protected setting", "versions": "version of"}[
        change.kind
    ]
    if value.is_hidden:
        return f"{noun} {change.name} changed"
    return f"{noun} {change.name} {_value(value.before)} -> {_value(value.after)}"


def _unit(change: EntryChange) -> str | None:
    parts = []
    for field in change.fields:
        if field.field == "restarts" and isinstance(field.after, int) and not field.is_hidden:
            times = field.after - (field.before if isinstance(field.before, int) else 0)
            parts.append(f"restarted {times} times more" if times > 0 else "restarts counted anew")
        else:
            parts.append(_field(field))
    return f"service {change.name}: {', '.join(parts)}"


def _table(change: EntryChange) -> str | None:
    parts = []
    for field in change.fields:
        if field.field == "rows":
            parts.append(f"{_value(field.before)} -> {_value(field.after)} rows")
        else:
            parts.append(_field(field))
    return f"table {change.name}: {', '.join(parts)}"


_OWN: Mapping[str, Callable[[EntryChange], str | None]] = {
    "debian": _package,
    "python": _package,
    "npm": _package,
    "models": _only_value,
    "settings": _only_value,
    "versions": _only_value,
    "units": _unit,
    "tables": _table,
}

"""What a machine holds, as a list of entries by kind: packages, services, skills, scheduled jobs and so on.

Values that may be secret never leave the machine: an entry has `shown` values and, for the others, `hidden`
digests under a key that only the machine has. Two inventories made under the same key say whether such a value
changed, and nothing else. docs/reference/inventory.md has the kinds and their fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from torpor.errors import DataDamaged

if TYPE_CHECKING:
    from torpor.model_inventory_diff import InventoryDiff

FORMAT = 1
KINDS: tuple[str, ...] = (
    "versions", "models", "settings", "tools", "skills", "jobs", "memory", "channels", "env",
    "sqlite", "tables", "cron", "timers", "units", "ports", "users", "debian", "python", "npm", "files",
)  # fmt: skip
"""All kinds of entries, the most telling first: the order of everything that is sorted by kind."""

ENTRIES_MOST = 60_000
"""Entries of one inventory; a machine that says it has more is not believed."""
NOTES_MOST = 200
_NAME_MOST = 1024
_TEXT_MOST = 512
_FIELDS_MOST = 64
_FIELD = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_KEY_ID = re.compile(r"[0-9a-f]{16}")

Value = str | int | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that is there."""

    name: str
    """Unique within its kind."""
    shown: Mapping[str, Value] = field(default_factory=dict)
    hidden: Mapping[str, str] = field(default_factory=dict)
    """Keyed digests (32 hex digits) of values that stay in the machine."""
    unknown: tuple[str, ...] = ()
    """Fields that could not be found out this time; they compare with nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """All entries of one kind."""

    entries: Mapping[str, Entry]
    """By name, sorted."""
    is_complete: bool = True
    """False: there is more than what is listed; why is in `notes`."""
    notes: tuple[str, ...] = ()
    """What could not be read, and what was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What a machine held at one moment."""

    taken_at: datetime
    profile: str
    """Name of the agent profile that said where to look; `machine`: none fitted."""
    profile_digest: str
    key_id: str
    """Which key the hidden digests are under: comparable only with those of the same key."""
    duration_ms: int
    """How long the machine took."""
    sections: Mapping[str, Section]
    """By kind; a kind that is missing was not looked at."""
    notes: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every kind that was looked at is listed whole."""
        return all(section.is_complete for section in self.sections.values())

    def entries(self, kind: str) -> Mapping[str, Entry]:
        """Return the entries of a kind by name; none if it was not looked at."""
        section = self.sections.get(kind)
        return {} if section is None else section.entries

    def diff(self, after: Inventory) -> InventoryDiff:
        """Return what differs between this inventory and a later one."""
        from torpor.model_inventory_diff import compare

        return compare(self, after)

    def to_json(self) -> dict[str, Any]:
        """Return it as the JSON object that is stored and sent."""
        return {
            "format": FORMAT,
            "taken_at": self.taken_at.isoformat(),
            "profile": self.profile,
            "profile_digest": self.profile_digest,
            "key_id": self.key_id,
            "duration_ms": self.duration_ms,
            "notes": list(self.notes),
            "sections": {
                kind: {
                    "is_complete": section.is_complete,
                    "notes": list(section.notes),
                    "entries": [_entry_json(entry) for entry in section.entries.values()],
                }
                for kind, section in self.sections.items()
            },
        }


def inventory_from_json(raw: object, *, source: str = "the inventory") -> Inventory:
    """Return the inventory that `to_json` made. `source` names it in errors.

    Raises:
        DataDamaged: it is none, of another format, or over a limit.
    """
    try:
        return _inventory(_object(raw))
    except (KeyError, TypeError, ValueError) as exc:
        raise DataDamaged(
            f"{source} is not an inventory of a version that is known: {exc}"
        ) from exc


def entry_from_json(raw: object) -> Entry:
    """Return one entry.

    Raises:
        ValueError, TypeError, KeyError: it is none, or over a limit.
    """
    item = _object(raw)
    shown, hidden = _object(item.get("shown", {})), _object(item.get("hidden", {}))
    unknown = item.get("unknown", [])
    if len(shown) + len(hidden) > _FIELDS_MOST or len(unknown) > _FIELDS_MOST:
        raise ValueError(f"an entry has more than {_FIELDS_MOST} fields")
    return Entry(
        name=_text(item["name"], _NAME_MOST),
        shown={_field(key): _value(value) for key, value in sorted(shown.items())},
        hidden={_field(key): _match(value, _DIGEST) for key, value in sorted(hidden.items())},
        unknown=tuple(sorted({_field(key) for key in unknown})),
    )


def section_from_json(raw: object) -> Section:
    """Return one section. Raises as `entry_from_json`."""
    item = _object(raw)
    found = [entry_from_json(entry) for entry in item["entries"]]
    entries = {entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}
    if len(entries) != len(found):
        raise ValueError("two entries have one name")
    return Section(
        entries=entries,
        is_complete=item["is_complete"] is True,
        notes=notes_from_json(item.get("notes", [])),
    )


def notes_from_json(raw: object) -> tuple[str, ...]:
    """Return notes, bounded. Raises as `entry_from_json`."""
    if not isinstance(raw, list):
        raise TypeError("notes are no list")
    return tuple(_text(note, _TEXT_MOST) for note in raw[:NOTES_MOST])


def _inventory(raw: Mapping[str, Any]) -> Inventory:
    if raw["format"] != FORMAT:
        raise ValueError(f"its format is {raw['format']!r}; this version reads {FORMAT}")
    sections = _object(raw["sections"])
    strange = sorted(sections.keys() - set(KINDS))
    if strange:
        raise ValueError(f"there is no kind {strange[0][:40]!r}")
    if sum(len(section["entries"]) for section in sections.values()) > ENTRIES_MOST:
        raise ValueError(f"it has more than {ENTRIES_MOST} entries")
    taken_at = datetime.fromisoformat(_text(raw["taken_at"], 64))
    if taken_at.tzinfo is None:
        raise ValueError("taken_at has no time zone")
    return Inventory(
        taken_at=taken_at,
        profile=_text(raw["profile"], 64),
        profile_digest=_text(raw["profile_digest"], 64),
        key_id=_match(raw["key_id"], _KEY_ID),
        duration_ms=_number(raw["duration_ms"]),
        sections={kind: section_from_json(sections[kind]) for kind in KINDS if kind in sections},
        notes=notes_from_json(raw.get("notes", [])),
    )


def _entry_json(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = {"name": entry.name}
    if entry.shown:
        found["shown"] = dict(entry.shown)
    if entry.hidden:
        found["hidden"] = dict(entry.hidden)
    if entry.unknown:
        found["unknown"] = list(entry.unknown)
    return found


def _object(raw: object) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise TypeError(f"{str(raw)[:60]!r} is no object")
    return raw


def _text(raw: object, most: int) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"{str(raw)[:60]!r} is no text")
    if len(raw) > most:
        raise ValueError(f"a text has {len(raw)} characters; {most} are the most")
    return raw


def _value(raw: object) -> Value:
    if raw is None or isinstance(raw, bool):
        return raw
    if isinstance(raw, int):
        return _number(raw)
    return _text(raw, _TEXT_MOST)


def _number(raw: object) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or not -(1 << 63) <= raw < 1 << 63:
        raise ValueError(f"{str(raw)[:60]!r} is no whole number of 64 bits")
    return raw


def _field(raw: object) -> str:
    return _match(raw, _FIELD)


def _match(raw: object, pattern: re.Pattern[str]) -> str:
    text = _text(raw, _NAME_MOST)
    if not pattern.fullmatch(text):
        raise ValueError(f"{text[:60]!r} cannot be")
    return text

"""Inventories made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from torpor.model_inventory import KINDS, Entry, Inventory, Section, Value

KEY = "0" * 16


def digest(text: str) -> str:
    """A digest that is another for each text."""
    return text.encode().hex().ljust(32, "0")[:32]


def entry(
    name: str,
    shown: Mapping[str, Value] | None = None,
    *,
    unknown: tuple[str, ...] = (),
    **hidden: str,
) -> Entry:
    return Entry(
        name=name,
        shown=shown or {},
        hidden={key: digest(text) for key, text in hidden.items()},
        unknown=unknown,
    )


def section(*entries: Entry, is_complete: bool = True) -> Section:
    return Section(
        entries={e.name: e for e in sorted(entries, key=lambda e: e.name)}, is_complete=is_complete
    )


def inventory(
    sections: Mapping[str, Section], *, key_id: str = KEY, profile: str = "hermes"
) -> Inventory:
    return Inventory(
        taken_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        profile=profile,
        profile_digest=f"digest of {profile}",
        key_id=key_id,
        duration_ms=12,
        sections={kind: sections[kind] for kind in KINDS if kind in sections},
    )

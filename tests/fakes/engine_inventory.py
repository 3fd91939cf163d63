"""What a fake guest says it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from torpor.errors import TorporError
from torpor.guest.inventories import ProfileFit, TakenSections
from torpor.model_inventory import KINDS, Entry, Inventory, Section

KEY = "0123456789abcdef"


class FakeInventories:
    """The part of a fake guest that is about inventories; tests fill `held`."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Entry]] = {
            "debian": {"base-files": Entry(name="base-files", shown={"version": "13"})},
            "skills": {name: Entry(name=name) for name in ("mail", "notes")},
        }
        self.cut_kinds: set[str] = set()
        """Kinds that it does not list whole."""
        self.fits: tuple[str, ...] = ("hermes",)
        self.own_profile: str | None = None
        self.plans: list[Mapping[str, Any]] = []
        self.inventory_error: TorporError | None = None
        self.hangs = False

    async def detect_profiles(
        self, signs: Mapping[str, Mapping[str, Any]], *, deadline_seconds: float
    ) -> ProfileFit:
        """See `Guest.detect_profiles`."""
        if self.inventory_error is not None:
            raise self.inventory_error
        fits = tuple(name for name in signs if name in self.fits)
        return ProfileFit(fits=fits, own=self.own_profile, own_error=None)

    async def inventory(self, plan: Mapping[str, Any], *, deadline_seconds: float) -> TakenSections:
        """See `Guest.inventory`."""
        self.plans.append(plan)
        while self.hangs:
            await asyncio.sleep(0.01)
        return TakenSections(
            sections={
                kind: Section(
                    entries=dict(sorted(self.held[kind].items())),
                    is_complete=kind not in self.cut_kinds,
                    notes=("it took too long",) if kind in self.cut_kinds else (),
                )
                for kind in KINDS
                if kind in self.held
            },
            notes=(),
            key_id=KEY,
            duration_ms=7,
        )

    def as_of_now(self) -> Inventory:
        """The inventory of a snapshot that is taken now."""
        return Inventory(
            taken_at=datetime.now(UTC),
            profile="hermes",
            profile_digest="d",
            key_id=KEY,
            duration_ms=7,
            sections={
                kind: Section(entries=dict(sorted(self.held[kind].items())))
                for kind in KINDS
                if kind in self.held
            },
        )

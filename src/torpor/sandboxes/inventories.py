"""A machine's inventory before it is captured: asked for while it runs, and never a reason not to take a snapshot."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from torpor.errors import TorporError
from torpor.layers.inventories import TAKEN, InventoryRef, encoded
from torpor.model_inventory import Inventory
from torpor.sandboxes.machine import SandboxMachine

LIMIT_S: Final = 12.0
"""What asking may take in all; a machine that has more to tell than fits is cut short well before."""
WITH_INVENTORY: Final = frozenset({"snapshot", "hibernate", "change"})
"""Reasons for which somebody may want to compare later; a fork's own snapshot goes again at once."""
_NOTE_MOST = 300


@dataclass(frozen=True, slots=True)
class Before:
    """What came of asking."""

    ref: InventoryRef
    data: bytes | None = None


async def inventory_before(m: SandboxMachine, reason: str, *, paused: bool) -> Before:
    """Return the inventory that goes with a snapshot, or why there is none. Raises nothing but a cancellation."""
    if reason not in WITH_INVENTORY:
        return _none(f"a snapshot for a {reason} has none")
    if paused:
        return _none("the sandbox was paused")
    if m.parts.take_inventory is None:
        return _none("this engine takes none")
    try:
        async with asyncio.timeout(LIMIT_S):
            inventory = await m.parts.take_inventory(await m.guest())
    except TimeoutError:
        return _none(f"the machine took longer than {LIMIT_S:g} s")
    except TorporError as exc:
        return _none(exc.message)
    except Exception as exc:  # noqa: BLE001 - whatever it is: the snapshot is worth more
        m.parts.report(f"inventory of {m.info.id}", exc)
        return _none(f"{exc!r}")
    ref, data = await asyncio.to_thread(encoded, inventory, _note(inventory))
    return Before(ref, data)


def _none(why: str) -> Before:
    return Before(InventoryRef(f"not taken: {why}"[:_NOTE_MOST]))


def _note(inventory: Inventory) -> str:
    cut = {
        kind: section.notes[-1] if section.notes else "cut short"
        for kind, section in inventory.sections.items()
        if not section.is_complete
    }
    if not cut:
        return TAKEN
    return f"incomplete: {'; '.join(f'{kind}: {why}' for kind, why in cut.items())}"[:_NOTE_MOST]

"""What the host asks of a guest about its inventory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from torpor.errors import GuestFailed, HostNotReady, OperationTimeout
from torpor.guest.calls import Calls
from torpor.model import GuestInfo
from torpor.model_inventory import (
    ENTRIES_MOST,
    KINDS,
    Entry,
    Section,
    entry_from_json,
    notes_from_json,
)
from torpor_guest import protocol
from torpor_guest.protocol import ItemBuffer

_MARGIN_S: Final = 15.0
"""What the guest has beyond the deadline it was given, to say that it could not keep it."""
_OWN_MOST: Final = 64 << 10
_KEY_ID_DIGITS: Final = 16
CAPABILITY: Final = "inventory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFit:
    """Which agent profiles fit a machine."""

    fits: tuple[str, ...]
    """Of those asked for, in their order."""
    own: str | None
    """The words of the machine's own profile; not checked yet."""
    own_error: str | None
    """Why there is a profile of its own that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenSections:
    """What a guest says it holds: bounded and checked, and no more to be believed than any guest."""

    sections: Mapping[str, Section]
    notes: tuple[str, ...]
    key_id: str
    duration_ms: int


class InventoryCalls(Calls):
    """Asking what the machine holds."""

    _info: GuestInfo

    async def detect_profiles(
        self, signs: Mapping[str, Mapping[str, Any]], *, deadline_seconds: float
    ) -> ProfileFit:
        """See `Guest.detect_profiles`."""
        self._check_capability()
        params: dict[str, object] = {"profiles": dict(signs), "deadline_s": deadline_seconds}
        answer = await self._channel.call(
            "inventory.detect", params, limit_s=deadline_seconds + _MARGIN_S
        )
        fits, own = answer.get("fits"), answer.get("own")
        text = own.get("text") if isinstance(own, dict) else None
        error = own.get("error") if isinstance(own, dict) else None
        if isinstance(text, str) and len(text) > _OWN_MOST:
            text, error = None, f"it is longer than {_OWN_MOST >> 10} KiB"
        return ProfileFit(
            fits=tuple(name for name in signs if isinstance(fits, list) and name in fits),
            own=text if isinstance(text, str) else None,
            own_error=error[:500] if isinstance(error, str) else None,
        )

    async def inventory(self, plan: Mapping[str, Any], *, deadline_seconds: float) -> TakenSections:
        """See `Guest.inventory`."""
        self._check_capability()
        params: dict[str, object] = {**plan, "deadline_s": deadline_seconds}
        found: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
        limit_s = deadline_seconds + _MARGIN_S
        try:
            async with asyncio.timeout(limit_s):
                return _taken(await self._take(params, found, limit_s), found)
        except TimeoutError as exc:
            raise OperationTimeout(
                f"timeout: the machine's inventory took longer than {limit_s:g} s"
            ) from exc
        except (KeyError, TypeError, ValueError) as exc:
            raise GuestFailed(f"the guest's inventory makes no sense: {exc}") from exc

    async def _take(
        self, params: dict[str, object], found: dict[str, dict[str, Entry]], limit_s: float
    ) -> Mapping[str, Any]:
        """Fill `found` with what the guest sends; return what it says at the end."""
        buffer, count = ItemBuffer(), 0
        with self._stream("inventory.take", params) as stream:
            while (piece := await self._channel.receive(stream, limit_s=limit_s)) is not None:
                if piece[0] != protocol.CHANNEL_ITEMS:
                    continue
                for item in buffer.feed(piece[1]):
                    count += 1
                    if count > ENTRIES_MOST:
                        raise ValueError(f"it has more than {ENTRIES_MOST} entries")
                    entry = entry_from_json(item)
                    found[str(item["kind"])][entry.name] = entry
            return self._channel.result(stream)

    def _check_capability(self) -> None:
        if CAPABILITY not in self._info.capabilities:
            raise HostNotReady(
                f"the agent in the machine is of version {self._info.agent_version}, "
                "which takes no inventory",
                hint="build the template anew; sandboxes made from it then can",
            )


def _taken(end: Mapping[str, Any], found: Mapping[str, Mapping[str, Entry]]) -> TakenSections:
    told = end["sections"]
    sections = {}
    for kind in KINDS:
        if kind not in told:
            continue
        sections[kind] = Section(
            entries=dict(sorted(found[kind].items())),
            is_complete=told[kind]["is_complete"] is True,
            notes=notes_from_json(told[kind]["notes"]),
        )
    key_id, duration_ms = end["key_id"], end["duration_ms"]
    if not isinstance(key_id, str) or len(key_id) != _KEY_ID_DIGITS:
        raise ValueError("the key has no id")
    int(key_id, 16)
    if not isinstance(duration_ms, int) or not 0 <= duration_ms < 1 << 40:
        raise ValueError("it took no time that can be")
    return TakenSections(
        sections=sections,
        notes=notes_from_json(end["notes"]),
        key_id=key_id,
        duration_ms=duration_ms,
    )

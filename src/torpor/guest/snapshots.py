"""What the host asks of a guest around a snapshot: sync, freeze, thaw, and the renewal after a restore."""

from __future__ import annotations

import logging
from typing import Any, Final

from torpor.errors import GuestFailed, InvalidRequest
from torpor.guest.calls import Calls
from torpor.model import Renewal, Stillness

_FLUSH_LIMIT_S: Final = 300.0
"""What writing all dirty pages may take; a slow disk under a large guest needs it."""
_THAW_LIMIT_S: Final = 60.0
_RENEW_LIMIT_S: Final = 300.0
"""New SSH host keys on an emulated CPU, and programs in on-restore.d, which have limits of their own."""
_STILL_LIMIT_S: Final = 120.0
_STEPS: Final = ("entropy", "clock", "thaw", "generation")
_MAX_NOTES: Final = 32

_log = logging.getLogger(__name__)


class SnapshotCalls(Calls):
    """Putting the guest's file systems down and giving it back its identity."""

    async def sync(self) -> None:
        """See `Guest.sync`."""
        await self._channel.call("sync", {}, limit_s=_FLUSH_LIMIT_S)

    async def freeze(self, *, dead_man_seconds: float) -> None:
        """See `Guest.freeze`. When this fails or is cancelled the guest thaws what it froze."""
        params: dict[str, object] = {"dead_man_seconds": dead_man_seconds}
        await self._channel.call("freeze", params, limit_s=_FLUSH_LIMIT_S)

    async def thaw(self) -> bool:
        """See `Guest.thaw`."""
        answer = await self._channel.call("thaw", {}, limit_s=_THAW_LIMIT_S)
        return answer.get("was_frozen") is True

    async def hold_still(self, still: Stillness) -> None:
        """See `Guest.hold_still`."""
        await self._channel.call("still", _held(still), limit_s=_STILL_LIMIT_S)

    async def renew(self, renewal: Renewal) -> None:
        """See `Guest.renew`. Idempotent: after a failure or a cut it can be asked again."""
        if renewal.now.tzinfo is None:
            raise InvalidRequest(f"the time {renewal.now} has no time zone")
        params: dict[str, object] = {
            "reason": renewal.reason,
            "generation": renewal.generation,
            "now_ns": round(renewal.now.timestamp() * 1_000_000) * 1000,
            "entropy": renewal.entropy.hex(),
            "hostname": renewal.hostname,
        }
        if renewal.still is not None:
            params["still"] = _held(renewal.still)
        answer = await self._channel.call("renew", params, limit_s=_RENEW_LIMIT_S)
        wanted = (*_STEPS, "identity") if renewal.hostname is not None else _STEPS
        if renewal.still is not None:
            wanted = ("still", *wanted)
        done = answer.get("done")
        missing = [step for step in wanted if not isinstance(done, list) or step not in done]
        if missing:
            raise GuestFailed(
                f"the guest agent did not confirm its renewal: {', '.join(missing)}",
                hint="it is of an earlier version; build the template anew for later sandboxes"
                if missing == ["still"]
                else None,
            )
        for note in _notes(answer):
            _log.warning("the guest's renewal for %s: %s", renewal.reason, note)


def _held(still: Stillness) -> dict[str, object]:
    return {"units": list(still.units), "processes": list(still.processes)}


def _notes(answer: dict[str, Any]) -> list[str]:
    """Return what went wrong without being fatal, such as a program in on-restore.d that failed."""
    notes = answer.get("notes")
    if not isinstance(notes, list):
        return []
    return [ascii(str(note)[:500]) for note in notes[:_MAX_NOTES]]

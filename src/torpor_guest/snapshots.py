"""The methods around a snapshot: quiesce, sync, freeze, thaw, renew."""

from __future__ import annotations

from typing import Any

from torpor_guest import errors
from torpor_guest.errors import AgentError
from torpor_guest.freezer import Freezer
from torpor_guest.quiesce import Quiesce
from torpor_guest.renewal import Renewals, Request
from torpor_guest.stillness import Stillness, Wanted
from torpor_guest.stream import Stream

_DEAD_MAN_MOST_S = 3600.0


class SnapshotMethods:
    """What the host asks before it takes a snapshot, and after it has restored one."""

    def __init__(
        self, freezer: Freezer, renewals: Renewals, quiesce: Quiesce, stillness: Stillness
    ) -> None:
        self._freezer = freezer
        self._quiesce = quiesce
        self._renewals = renewals
        self._stillness = stillness

    async def sync(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Write all dirty pages out."""
        await self._freezer.sync()
        return {}

    async def freeze(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Freeze the file systems, for `dead_man_seconds` at most."""
        dead_man_s = params.get("dead_man_seconds")
        if not isinstance(dead_man_s, (int, float)) or not 0 < dead_man_s <= _DEAD_MAN_MOST_S:
            raise AgentError(
                errors.INVALID,
                f"a dead man waits up to {_DEAD_MAN_MOST_S:g} seconds, not {dead_man_s!r}",
            )
        return {"places": await self._freezer.freeze(dead_man_s)}

    async def thaw(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Thaw, and say whether all was frozen until now."""
        return {"was_frozen": await self._freezer.thaw()}

    async def renew(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Make a machine that goes on from a snapshot safe to hand out."""
        return await self._renewals.renew(Request.parse(params))

    async def still(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Hold still what acts by itself, for good."""
        return await self._stillness.hold(Wanted.parse(params))

    async def quiesce(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Bring the machine's programs to rest by their hooks."""
        return await self._quiesce.begin(params)

    async def confirm(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Say whether all is held still."""
        return await self._quiesce.confirm(params.get("token"))

    async def release(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Let the machine's programs go on."""
        return await self._quiesce.release(params.get("token"), params.get("outcome"))

"""The fake guest around a snapshot: it can be frozen, and remembers how it was renewed."""

from __future__ import annotations

import asyncio

from typing_extensions import override

from tests.fakes.guest_quiesce import FakeQuiesce
from torpor.errors import Conflict, GuestFailed, GuestUnreachable, InvalidRequest
from torpor.model import Renewal, Stillness


class FakeSnapshots(FakeQuiesce):
    """The part of `Guest` that is about snapshots. What writes waits for the thaw."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = False
        self.syncs = 0
        self.renewals: list[Renewal] = []
        self.held_still: list[Stillness] = []
        self.fail_next: set[str] = set()
        """Of `sync`, `freeze` and `renew`: those that the guest's kernel refuses the next time."""
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._dead_man: asyncio.TimerHandle | None = None

    @property
    def closed(self) -> bool:
        """See `Guest.closed`."""
        return self.is_cut

    @property
    def is_frozen(self) -> bool:
        """Whether it is frozen."""
        return not self._thawed.is_set()

    async def _until_writable(self) -> None:
        """Wait as a write waits."""
        self._check()
        await self._thawed.wait()
        self._check()

    async def sync(self) -> None:
        """See `Guest.sync`."""
        await self._until_writable()
        self._refuse_if_asked("sync")
        self.syncs += 1

    async def freeze(self, *, dead_man_seconds: float) -> None:
        """See `Guest.freeze`."""
        self._check()
        if not 0 < dead_man_seconds <= 3600:
            raise InvalidRequest(f"a dead man does not wait {dead_man_seconds} seconds")
        if self.is_frozen:
            raise Conflict("the file systems are frozen already")
        self._refuse_if_asked("freeze")
        self.syncs += 1
        self._thawed.clear()
        loop = asyncio.get_running_loop()
        self._dead_man = loop.call_later(dead_man_seconds, self._thawed.set)

    async def thaw(self) -> bool:
        """See `Guest.thaw`."""
        self._check()
        was_frozen = self.is_frozen
        self.let_go()
        return was_frozen

    async def hold_still(self, still: Stillness) -> None:
        """See `Guest.hold_still`."""
        self._check()
        self._refuse_if_asked("still")
        self.held_still.append(still)

    async def renew(self, renewal: Renewal) -> None:
        """See `Guest.renew`."""
        self._check()
        if renewal.now.tzinfo is None or not 32 <= len(renewal.entropy) <= 512:
            raise InvalidRequest(f"{renewal.now} or {len(renewal.entropy)} bytes cannot be")
        self._refuse_if_asked("renew")
        self.let_go()
        await self.quiesce_release(None, "restored")
        self.renewals.append(renewal)

    @override
    def let_go(self) -> None:
        """Thaw it, and send the dead man home."""
        if self._dead_man:
            self._dead_man.cancel()
        self._thawed.set()

    def _refuse_if_asked(self, what: str) -> None:
        if what in self.fail_next:
            self.fail_next.discard(what)
            raise GuestFailed(f"{what}: Input/output error")

    @override
    def _check(self) -> None:
        if self.is_cut:
            raise GuestUnreachable("the guest channel was cut")

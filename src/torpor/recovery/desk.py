"""`Recovery`: what makes changes safe, as the server sees it. One a daemon, over its engine."""

from __future__ import annotations

from torpor.base.clock import Clock
from torpor.base.home import Home
from torpor.recovery.changes.desk import ChangeDesk
from torpor.recovery.drills.desk import DrillDesk
from torpor.recovery.durable import Durable
from torpor.recovery.watches.desk import WatchDesk
from torpor.sandboxes.port import EnginePort


class Recovery:
    """The desks, and the workflows that they share."""

    def __init__(self, home: Home, engine: EnginePort, *, clock: Clock | None = None) -> None:
        self.home = home
        self._durable = Durable(home)
        self.changes = ChangeDesk(home, engine, self._durable, clock=clock)
        self.drills = DrillDesk(home, engine, self._durable, clock=clock)
        self.watches = WatchDesk(home, engine, self.changes.open_of, clock=clock)

    async def start(self) -> None:
        """Go on with what an earlier daemon left; after the engine has started, before anybody is served."""
        await self.changes.start()
        await self.drills.start()
        await self.watches.start()

    async def aclose(self) -> None:
        """Stop; what is under way, the next daemon goes on with. Before the engine is closed."""
        await self.watches.aclose()
        await self.drills.aclose()
        await self.changes.aclose()
        await self._durable.aclose()

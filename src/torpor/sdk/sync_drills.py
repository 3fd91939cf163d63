"""`Drill`: the synchronous face of `AsyncDrill`, which says more of each call."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, Self

from typing_extensions import override

from torpor.model_checks import Verdict
from torpor.model_drills import DrillId, DrillInfo, ScheduleInfo
from torpor.sdk.client import Client
from torpor.sdk.drills import AsyncDrill, Progress
from torpor.sdk.loop import loop_thread


class Drill:
    """One drill. Made by `Sandbox.drill`, `Snapshot.drill`, `get` or `list`."""

    def __init__(self, drill: AsyncDrill) -> None:
        self._drill = drill

    @classmethod
    def get(cls, drill_id: str, *, client: Client | None = None) -> Self:
        """Return the drill with that id, with its evidence when it is over. Raises `NotFound`."""
        return cls(loop_thread.run(AsyncDrill.get(drill_id, client=client)))

    @classmethod
    def list(
        cls, target: str | None = None, *, limit: int = 100, client: Client | None = None
    ) -> builtins.list[Self]:
        """Return drills, newest first: all, or those of one sandbox or snapshot, by id."""
        found = loop_thread.run(AsyncDrill.list(target, limit=limit, client=client))
        return [cls(drill) for drill in found]

    @classmethod
    def schedules(cls, *, client: Client | None = None) -> builtins.list[ScheduleInfo]:
        """Return the schedules that begin drills, the one that comes first first."""
        return loop_thread.run(AsyncDrill.schedules(client=client))

    @classmethod
    def unschedule(cls, schedule_id: str, *, client: Client | None = None) -> ScheduleInfo:
        """Begin no more drills by a schedule, and return it. Raises `NotFound`."""
        return loop_thread.run(AsyncDrill.unschedule(schedule_id, client=client))

    @override
    def __repr__(self) -> str:
        return repr(self._drill).replace("AsyncDrill", type(self).__name__, 1)

    @property
    def info(self) -> DrillInfo:
        """What was so when the daemon was last heard of."""
        return self._drill.info

    @property
    def id(self) -> DrillId:
        """The drill's id, `drl_…`."""
        return self._drill.id

    @property
    def verdict(self) -> Verdict | None:
        """`pass`, `fail` or `inconclusive`; None while it goes on."""
        return self._drill.verdict

    @property
    def sentence(self) -> str:
        """The verdict in one sentence; empty while it goes on."""
        return self._drill.sentence

    @property
    def evidence(self) -> Mapping[str, Any] | None:
        """All that was found, as it is kept; None while it goes on."""
        return self._drill.evidence

    @property
    def text(self) -> str:
        """The evidence as text; empty while it goes on."""
        return self._drill.text

    @property
    def points(self) -> Mapping[str, str]:
        """What came of each of the six points, by name: `pass`, `fail`, `inconclusive` or `nothing`."""
        return self._drill.points

    def wait(self, progress: Progress | None = None) -> Self:
        """Return when it is over. A caller that is interrupted ends nothing: it goes on in the daemon."""
        loop_thread.run(self._drill.wait(progress))
        return self

    def check(self) -> Self:
        """Return this drill if it passed. Raises `DrillFailed`, `CheckInconclusive`."""
        self._drill.check()
        return self

"""Verbs on branches: with the machine, back from a restore, and between agents. None is for the agent inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from torpor.memory.verbs.base import Verb
from torpor.model_memory import Done, MergePlan, Policy, Restored, SpaceInfo, Watermark

if TYPE_CHECKING:
    from torpor.memory.space import Space


class SetWatermark(Verb):
    """Note where memory stands as a snapshot is made of a machine that Torpor does not run."""

    name = "watermark"
    answer = Watermark
    from_inside = False
    snapshot_id: str

    @override
    def run(self, space: Space) -> Watermark:
        return space.watermark(self.snapshot_id)


class OnRestore(Verb):
    """Bring memory in line with a machine, which Torpor does not run, that was put back to a watermark."""

    name = "on_restore"
    answer = Restored
    from_inside = False
    snapshot_id: str
    policy: Policy = Policy.RECONCILE
    reason: str = ""

    @override
    def run(self, space: Space) -> Restored:
        return space.on_restore(self.snapshot_id, self.policy, reason=self.reason)


class Fork(Verb):
    """Give a new agent a child branch of this memory, as it is or as it was at a watermark."""

    name = "fork"
    answer = SpaceInfo
    from_inside = False
    new_agent: str
    snapshot_id: str | None = None
    reason: str = ""

    @override
    def run(self, space: Space) -> SpaceInfo:
        return space.fork(self.new_agent, snapshot_id=self.snapshot_id, reason=self.reason).info()


class Switch(Verb):
    """Go to another branch of this agent: the way back from a rewind."""

    name = "switch"
    answer = Done
    from_inside = False
    to_branch: Annotated[str, Field(description="A branch of the same agent.")]
    reason: str = ""

    @override
    def run(self, space: Space) -> Done:
        return space.switch(self.to_branch, reason=self.reason)


class PlanMerge(Verb):
    """Return the world facts that another branch of the family has and this one lacks."""

    name = "plan_merge"
    answer = MergePlan
    from_inside = False
    writes = False
    reads_by_get = True
    source: str

    @override
    def run(self, space: Space) -> MergePlan:
        return space.plan_merge(self.source)


class Merge(Verb):
    """Take facts of another branch of the family; contradictions become conflicts."""

    name = "merge"
    answer = Done
    from_inside = False
    source: str
    take: Annotated[list[str], Field(description="Ids of facts in `plan_merge`.")]
    reason: str = ""

    @override
    def run(self, space: Space) -> Done:
        return space.merge(space.plan_merge(self.source), take=self.take, reason=self.reason)


MOVING: tuple[type[Verb], ...] = (SetWatermark, OnRestore, Fork, Switch, PlanMerge, Merge)
"""In the order of the reference."""

"""The memory of the agents in the sandboxes: whose memory a sandbox has, and every call on it from outside.

An agent is named by the sandbox's metadata `agent`, else by its id. The space of an agent begins with the first
thing that is written to it.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torpor.base.fsio import remove_tree
from torpor.errors import InvalidRequest, NotAllowed
from torpor.memory.memory import Memory
from torpor.memory.service import MemoryService, open_space
from torpor.memory.verbs import Verb, answered
from torpor.memory.verbs.moving import Fork
from torpor.model import ELSEWHERE_MARK, SandboxId, SandboxInfo, agent_in
from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_memory import SpaceInfo
from torpor.sandboxes.memory_moves import FollowingMemory
from torpor.sandboxes.requests import check_agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which space a call is about: an agent's, or that of a sandbox's agent."""

    agent: str | None = None
    sandbox_id: str | None = None
    branch: str | None = None
    epoch: int | None = None
    actor: str | None = None


class AgentMemories:
    """All spaces of one host."""

    def __init__(
        self,
        service: MemoryService,
        moves: FollowingMemory,
        *,
        find: Callable[[SandboxId], Awaitable[SandboxInfo]],
        scratch: Path,
    ) -> None:
        """Serve the spaces in `service`; `find` returns a sandbox, `scratch` is a folder for exports under way."""
        self.service = service
        self.moves = moves
        self.scratch = scratch
        self._find = find
        self._workspace: str | None = None

    def seen_by(
        self, find: Callable[[SandboxId], Awaitable[SandboxInfo]], workspace: str | None
    ) -> AgentMemories:
        """Return the same, for someone of a workspace (None: of all), who finds only what `find` does."""
        found = copy.copy(self)
        found._find = find
        found._workspace = workspace
        return found

    @property
    def whole(self) -> MemoryService:
        """The memory of all agents. Raises `NotAllowed` in a workspace of its own."""
        if self._workspace not in (None, DEFAULT_WORKSPACE):
            raise NotAllowed(
                f"the memory of all agents is not in the workspace {self._workspace!r}",
                hint="use a token of the workspace `default`",
            )
        return self.service

    async def spaces(self) -> list[SpaceInfo]:
        """Return what is so about the memory of every agent of the workspace, by name."""
        found = [self._seen(info) for info in await self.service.spaces()]
        return [info for info in found if info is not None]

    def _seen(self, info: SpaceInfo) -> SpaceInfo | None:
        """Return a space under the name that it has in the workspace; None if it is elsewhere."""
        if self._workspace is None:
            return info
        place, mark, name = info.agent.rpartition(ELSEWHERE_MARK)
        if (place or DEFAULT_WORKSPACE) != self._workspace:
            return None
        return replace(info, agent=name) if mark else info

    def clean(self) -> None:
        """Remove exports that an earlier daemon had begun. Blocks."""
        for left in self.scratch.glob("memory.*"):
            remove_tree(left)

    async def call(self, where: Where, verb: Verb) -> Any:
        """Make a call and return its answer as JSON has it.

        Raises:
            NotFound: there is no such space, sandbox, branch, fact or episode.
            WrongState: the machine of the agent was put back since `where.epoch`.
            TorporError: what the verb raises; nothing was written then.
        """
        agent = await self._agent(where)
        await self.moves.follow_agent(agent)
        if isinstance(verb, Fork):
            verb = verb.model_copy(update={"new_agent": self._name(verb.new_agent)})

        def work(memory: Memory) -> Any:
            space = open_space(
                memory,
                agent,
                branch=where.branch,
                epoch=where.epoch,
                actor=where.actor,
                make=verb.writes,
            )
            found = verb.run(space)
            return answered((self._seen(found) or found) if isinstance(found, SpaceInfo) else found)

        return await self.service.run(work)

    async def space(self, where: Where) -> SpaceInfo:
        """Return what is so about a space, which is made if it is a sandbox's. Raises `NotFound`."""
        agent = await self._agent(where)
        await self.moves.follow_agent(agent)
        make = where.sandbox_id is not None

        def work(memory: Memory) -> SpaceInfo:
            return open_space(
                memory, agent, branch=where.branch, epoch=None, actor=None, make=make
            ).info()

        info = await self.service.run(work)
        return self._seen(info) or info

    def _name(self, agent: str) -> str:
        """Return the name under which the memory of an agent is kept, who is named by someone of the workspace."""
        if self._workspace is None:
            return agent
        return agent_in(self._workspace, check_agent(agent))

    async def _agent(self, where: Where) -> str:
        if (where.agent is None) == (where.sandbox_id is None):
            raise InvalidRequest(
                "a space is that of one agent or of one sandbox",
                hint="give either agent or sandbox_id",
            )
        if where.agent is not None:
            return self._name(where.agent)
        return (await self._find(SandboxId(where.sandbox_id or ""))).agent

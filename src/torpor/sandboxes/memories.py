"""The memory of the agents in the sandboxes: whose memory a sandbox has, and every call on it from outside.

An agent is named by the sandbox's metadata `agent`, else by its id. The space of an agent begins with the first
thing that is written to it.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor.base.fsio import remove_tree
from torpor.errors import InvalidRequest
from torpor.memory.memory import Memory
from torpor.memory.service import MemoryService, open_space
from torpor.memory.verbs import Verb, answered
from torpor.model import SandboxId, SandboxInfo
from torpor.model_memory import SpaceInfo


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
        *,
        find: Callable[[SandboxId], Awaitable[SandboxInfo]],
        scratch: Path,
    ) -> None:
        """Serve the spaces in `service`; `find` returns a sandbox, `scratch` is a folder for exports under way."""
        self.service = service
        self.scratch = scratch
        self._find = find

    def seen_by(self, find: Callable[[SandboxId], Awaitable[SandboxInfo]]) -> AgentMemories:
        """Return the same, for someone who finds only what `find` does."""
        found = copy.copy(self)
        found._find = find
        return found

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

        def work(memory: Memory) -> Any:
            space = open_space(
                memory,
                agent,
                branch=where.branch,
                epoch=where.epoch,
                actor=where.actor,
                make=verb.writes,
            )
            return answered(verb.run(space))

        return await self.service.run(work)

    async def space(self, where: Where) -> SpaceInfo:
        """Return what is so about a space, which is made if it is a sandbox's. Raises `NotFound`."""
        agent = await self._agent(where)
        make = where.sandbox_id is not None

        def work(memory: Memory) -> SpaceInfo:
            return open_space(
                memory, agent, branch=where.branch, epoch=None, actor=None, make=make
            ).info()

        return await self.service.run(work)

    async def _agent(self, where: Where) -> str:
        if (where.agent is None) == (where.sandbox_id is None):
            raise InvalidRequest(
                "a space is that of one agent or of one sandbox",
                hint="give either agent or sandbox_id",
            )
        if where.agent is not None:
            return where.agent
        return (await self._find(SandboxId(where.sandbox_id or ""))).agent

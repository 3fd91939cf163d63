"""How the memory of a sandbox's agent follows its machine: marked at a snapshot, put back with a rollback.

A move is a row before the machine is touched. It is carried out when the machine runs again, and by whoever asks
for the memory first: until then nobody reads or writes it. A daemon that dies in between leaves the row, and the
next one goes on. A memory that cannot be used holds up no machine: the row waits, and says why.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable

from torpor.base.faults import reach
from torpor.db.memory_moves import MemoryMoves
from torpor.errors import Busy, Conflict, NotFound, TorporError
from torpor.memory.following import check_new
from torpor.memory.service import MemoryService
from torpor.model import SandboxId, SandboxInfo, SandboxState
from torpor.model_memory import MachineMove, Move, Policy, Watermark

S = SandboxState
_NOT_BACK = frozenset({S.CREATING, S.RESTORING, S.FAILED, S.DELETING})
"""States in which a machine that moves is not there yet: its memory stays as it is."""


class FollowingMemory:
    """What memory has still to do after machines moved."""

    def __init__(
        self,
        service: MemoryService,
        rows: MemoryMoves,
        *,
        find: Callable[[SandboxId], Awaitable[SandboxInfo]],
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._service = service
        self._rows = rows
        self._find = find
        self._report = report
        self._pending: dict[str, MachineMove] = {}
        self._notes: dict[str, str] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def load(self, living: Collection[SandboxInfo]) -> None:
        """Read what an earlier daemon left; what belongs to no sandbox, or was never begun, is dropped."""
        known = {info.id: info for info in living}
        for sandbox_id, (move, note) in (await asyncio.to_thread(self._rows.all)).items():
            info = known.get(SandboxId(sandbox_id))
            if info is None or (move is not None and info.generation < move.generation):
                await asyncio.to_thread(self._rows.drop, sandbox_id)
                continue
            self._notes[sandbox_id] = note
            if move is not None:
                self._pending[sandbox_id] = move

    def note(self, sandbox_id: str) -> str | None:
        """Return what is wrong with a sandbox's memory since its machine moved; None: nothing."""
        move = self._pending.get(sandbox_id)
        if move is not None and move.move is Move.ROLLBACK:
            return self._notes.get(sandbox_id) or "it did not follow the machine yet"
        return self._notes.get(sandbox_id) or None

    def waits(self, sandbox_id: str) -> bool:
        """Return whether memory has still to follow that machine."""
        return sandbox_id in self._pending

    # ---- at a snapshot ----

    async def mark(self, info: SandboxInfo) -> Watermark:
        """Return where the memory of a sandbox's agent stands; never raises, see `MemoryService.position`."""
        if info.id in self._pending:
            why = self._notes.get(info.id) or "it was about to"
            problem = f"it had not followed an earlier move of the machine: {why}"
            return Watermark("", "", 0, 0, agent=info.agent, problem=problem)
        return await self._service.position(info.agent)

    # ---- before a move ----

    @contextlib.asynccontextmanager
    async def rollback_intended(
        self, info: SandboxInfo, mark: Watermark | None, policy: Policy | None
    ) -> AsyncIterator[None]:
        """Write down, before the machine is touched, that memory has to follow it; on a failure in the block, not.

        Args:
            mark: the snapshot's; None: it has none, and memory stays as it is.
            policy: None: that of the rollback which is made again, else `reconcile`.
        """
        if mark is None:
            yield
            return
        if policy is None:
            earlier = self._pending.get(info.id)
            policy = Policy.RECONCILE if earlier is None else earlier.policy
        await self._put(
            MachineMove(info.id, info.agent, Move.ROLLBACK, info.generation + 1, mark, policy)
        )
        try:
            yield
        except Exception:
            await self.withdraw(info.id)
            raise

    async def intend_new(
        self,
        info: SandboxInfo,
        mark: Watermark | None,
        *,
        is_fork: bool,
        policy: Policy | None,
        others: Iterable[str],
    ) -> None:
        """Write down that a machine, which is to be made from a snapshot, goes on with its agent's memory.

        Args:
            info: of the machine that is to be made.
            mark: the snapshot's; None: it has none.
            policy: None: `rewind` for a fork, `reconcile` for a restore.
            others: the living sandboxes of the same agent, whose place it takes.

        Raises:
            Conflict: it is named as an agent that has a memory of its own; nothing was made.
        """
        if mark is None or not (mark.branch or mark.problem or info.agent != info.id):
            return
        usual = Policy.REWIND if is_fork else Policy.RECONCILE
        move = MachineMove(
            sandbox=info.id,
            agent=info.agent,
            move=Move.FORK if is_fork else Move.RESTORE,
            generation=info.generation,
            watermark=mark,
            policy=policy or usual,
            supplants=tuple(others),
        )
        try:
            await self._service.run(lambda memory: check_new(memory, move))
        except TorporError as exc:
            if isinstance(exc, Conflict) and not isinstance(exc, Busy):
                raise
            self._report(f"memory of {info.id}", exc)  # it holds up no machine
        await self._put(move)

    async def _put(self, move: MachineMove) -> None:
        await asyncio.to_thread(self._rows.put, move.sandbox, move)
        self._pending[move.sandbox] = move
        self._notes.pop(move.sandbox, None)
        reach("memory.intent")

    async def withdraw(self, sandbox_id: str) -> None:
        """Forget a move that came to nothing: the machine is as it was, or gone."""
        if sandbox_id in self._pending or sandbox_id in self._notes:
            await asyncio.to_thread(self._rows.drop, sandbox_id)
            self._pending.pop(sandbox_id, None)
            self._notes.pop(sandbox_id, None)
        self._locks.pop(sandbox_id, None)

    # ---- after a move ----

    async def follow(self, sandbox_id: str) -> None:
        """Carry a sandbox's move out, if there is one and the machine has made it.

        Raises:
            TorporError: memory cannot be used; the move waits.
        """
        if sandbox_id not in self._pending:
            return
        async with self._locks[sandbox_id]:
            move = self._pending.get(sandbox_id)
            if move is None or not await self._is_made(move):
                return
            try:
                done = await self._service.follow(move)
            except TorporError as exc:
                self._notes[sandbox_id] = f"it did not follow the machine yet: {exc.message}"
                raise
            reach("memory.followed")
            await asyncio.to_thread(self._rows.put, sandbox_id, None, done.note)
            if self._pending.get(sandbox_id) is move:
                del self._pending[sandbox_id]
                self._notes[sandbox_id] = done.note

    async def follow_quietly(self, sandbox_id: str) -> None:
        """Do the same; a failure is kept as the sandbox's note, and the next who asks tries again."""
        try:
            await self.follow(sandbox_id)
        except TorporError as exc:
            self._report(f"memory of {sandbox_id}", exc)

    async def follow_agent(self, agent: str) -> None:
        """Carry out the moves of an agent's machines. Raises as `follow`."""
        for move in [move for move in self._pending.values() if move.agent == agent]:
            await self.follow(move.sandbox)

    async def follow_rollbacks(self) -> None:
        """Carry out the rollbacks that wait; a new machine's memory is made when it is first asked for."""
        for move in list(self._pending.values()):
            if move.move is Move.ROLLBACK:
                await self.follow_quietly(move.sandbox)

    async def _is_made(self, move: MachineMove) -> bool:
        try:
            info = await self._find(SandboxId(move.sandbox))
        except NotFound:
            return False
        return info.generation >= move.generation and info.state not in _NOT_BACK

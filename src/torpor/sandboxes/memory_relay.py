"""Serves the memory socket inside each machine: whose memory it is, the host knows from the machine.

What a program in a machine asks is bounded in size (by the channel's frames), in number at once, in rate, and in
what it may write altogether. Verbs that cannot be undone, that concern other agents or the host, and words that
only a human can say are not for it. A request belongs to the life of the machine in which it was made: once that
is over, the request writes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Protocol

from torpor.base.clock import Clock
from torpor.errors import (
    Busy,
    GenerationChanged,
    GuestFailed,
    InvalidRequest,
    LimitExceeded,
    NotAllowed,
    TorporError,
    VmmFailed,
)
from torpor.guest.port import Guest
from torpor.memory.following import check_seat
from torpor.memory.memory import Memory
from torpor.memory.verbs import Verb, answered, parse
from torpor.model import SandboxInfo, SandboxState
from torpor.model_memory import Authority, SourceKind
from torpor.sandboxes.memories import AgentMemories

PER_SECOND = 50.0
BURST = 200.0
"""Requests of one machine: so many at once, and so many a second after that; more wait."""
MIB = 1 << 20
QUOTA_MIB = 1024
"""What one agent may write from inside its machines, altogether; see `TORPOR_MEMORY_MAX_MIB_PER_AGENT`."""
_PER_ITEM_BYTES = 2 << 10
"""What the rows and indexes of one episode or fact take beside its text, about: it counts as written, too."""
_READ_BYTES = 128 * MIB
"""Text that one request may have read. An answer is at most 2 MiB; a recall looks at some 80 texts of a MiB each."""
_NOTED_BYTES = MIB
"""What was written is noted that often; a crash forgets less than this."""
_FOLLOW_S, _FOLLOW_AGAIN_S = 15.0, 0.05
"""How long a request waits for memory to follow the machine that made it, and how often it looks."""
_AGAIN_S = (1.0, 2.0, 5.0, 15.0, 30.0)
"""How long to wait before a channel that was cut is connected again."""


class Machine(Protocol):
    """What the relay needs of a sandbox's machine."""

    @property
    def info(self) -> SandboxInfo:
        """What is so about the sandbox now."""
        ...

    async def guest(self) -> Guest:
        """Return the connected guest."""
        ...


class MemoryRelay:
    """Answers what programs inside machines ask of their agents' memory."""

    def __init__(
        self,
        memories: AgentMemories,
        *,
        clock: Clock,
        report: Callable[[str, BaseException], None],
        quota_bytes: int = QUOTA_MIB * MIB,
    ) -> None:
        self._memories = memories
        self._clock = clock
        self._report = report
        self._quota_bytes = quota_bytes
        self._written: dict[str, int] = {}
        self._noted: dict[str, int] = {}

    async def attend(self, machine: Machine, guest: Guest) -> None:
        """Serve a machine's socket over a connected guest, and over the next one when that is cut by accident.

        It returns when the machine is put down or back, or ends: who connects to it then calls this again.
        """
        if "memory" not in guest.info.capabilities:
            return  # an older agent in its image
        generation = machine.info.generation
        pauses = iter(_AGAIN_S)
        while True:
            try:
                await self._serve(machine, guest, generation)
            except TorporError as exc:
                if not guest.closed:
                    self._report(f"memory socket of {machine.info.id}", exc)
            await asyncio.sleep(next(pauses, _AGAIN_S[-1]))
            if not _is_same_life(machine, generation):
                return
            try:
                again = await machine.guest()
            except (GuestFailed, VmmFailed):
                continue
            if again is not guest:
                return  # whoever connected it attends to it

    async def _serve(self, machine: Machine, guest: Guest, generation: int) -> None:
        bucket = _Bucket(self._clock)

        async def answer(name: str, params: dict[str, Any]) -> Any:
            await bucket.take()
            return await self.call(machine, generation, name, params)

        await guest.serve_memory(answer)

    async def call(
        self, machine: Machine, generation: int, name: str, params: dict[str, Any]
    ) -> Any:
        """Carry out what a machine asked in a certain life of it, and return the answer as JSON.

        Raises:
            NotAllowed: the verb, or a word in it, is not for the inside.
            GenerationChanged: that life is over; nothing was written.
            LimitExceeded: the agent has written all that it may.
            TorporError: as the verb.
        """
        verb = _allowed(parse(name, params))
        info = machine.info
        _check_life(machine, generation)
        await self._followed(info)
        size = _size_of(params) if verb.writes else 0

        def fence(memory: Memory) -> None:
            _check_life(machine, generation)
            check_seat(memory, info.id, info.agent)

        def work(memory: Memory) -> Any:
            _check_life(machine, generation)
            self._check_quota(memory, info.agent, size)
            space = memory.space(info.agent, fence=lambda: fence(memory))
            with memory.store.reading_at_most(_READ_BYTES):
                found = answered(verb.run(space))
            self._count(memory, info.agent, size)
            return found

        return await self._memories.service.run(work)

    async def _followed(self, info: SandboxInfo) -> None:
        """Return when memory has followed the machine, which may be on its way still: nobody tells when it is there."""
        moves, until = self._memories.moves, self._clock.monotonic_s() + _FOLLOW_S
        await moves.follow(info.id)
        while moves.waits(info.id):
            if self._clock.monotonic_s() >= until:
                raise Busy(f"the memory of {info.agent} has still to follow its machine")
            await asyncio.sleep(_FOLLOW_AGAIN_S)
            await moves.follow(info.id)

    def _check_quota(self, memory: Memory, agent: str, size: int) -> None:
        if agent not in self._written:
            self._written[agent] = self._noted[agent] = int(memory.store.meta(_key(agent)) or 0)
        if size and self._written[agent] + size > self._quota_bytes:
            raise LimitExceeded(
                f"agent {agent} has written {self._written[agent]} bytes from inside its machines; "
                f"{self._quota_bytes} are allowed",
                hint="raise TORPOR_MEMORY_MAX_MIB_PER_AGENT on the host",
                limit_bytes=self._quota_bytes,
            )

    def _count(self, memory: Memory, agent: str, size: int) -> None:
        self._written[agent] += size
        if self._written[agent] - self._noted[agent] >= _NOTED_BYTES:
            with memory.store.transaction():
                memory.store.set_meta(_key(agent), str(self._written[agent]))
            self._noted[agent] = self._written[agent]


def _size_of(params: dict[str, Any]) -> int:
    """Return what a request writes, about."""
    items = [params.get(name) for name in ("episodes", "facts", "candidates")]
    count = sum(len(many) for many in items if isinstance(many, list))
    return len(json.dumps(params)) + _PER_ITEM_BYTES * max(1, count)


def _key(agent: str) -> str:
    return f"written:{agent}"


def _is_same_life(machine: Machine, generation: int) -> bool:
    info = machine.info
    return info.generation == generation and info.state is SandboxState.RUNNING


def _check_life(machine: Machine, generation: int) -> None:
    info = machine.info
    if info.generation != generation:
        raise GenerationChanged(
            f"sandbox {info.id} was put down or back since this was asked",
            sandbox_id=info.id,
            generation=info.generation,
        )


def _allowed(verb: Verb) -> Verb:
    """Return a verb that a machine may ask for. Raises `NotAllowed`."""
    if not verb.from_inside:
        raise NotAllowed(
            f"{verb.name} is not for the inside of a machine", hint="ask for it on the host"
        )
    if getattr(verb, "authority", None) is Authority.HUMAN_EDITED:
        raise NotAllowed("an agent cannot speak for a human's edit", hint="use user_said")
    if getattr(verb, "source_kind", None) in (SourceKind.HUMAN_NOTE, SourceKind.SYSTEM):
        raise NotAllowed("notes of humans and of the system are written on the host")
    for many in ("facts", "episodes"):
        for item in getattr(verb, many, ()):
            if not isinstance(item, str):
                _check_item(item)
    return verb


def _check_item(item: Any) -> None:
    if str(getattr(item, "authority", "")) == Authority.HUMAN_EDITED or str(
        getattr(item, "source_kind", "")
    ) in (SourceKind.HUMAN_NOTE, SourceKind.SYSTEM):
        raise NotAllowed("an agent cannot speak for a human or for the system")


class _Bucket:
    """Lets through `BURST` requests at once and `PER_SECOND` after that; the others wait for their turn."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = BURST
        self._at_s = clock.monotonic_s()
        self._turn = asyncio.Lock()

    async def take(self) -> None:
        """Return when one more request may be carried out."""
        async with self._turn:
            now = self._clock.monotonic_s()
            self._left = min(BURST, self._left + (now - self._at_s) * PER_SECOND)
            self._at_s = now
            self._left -= 1
            if self._left < 0:
                await asyncio.sleep(-self._left / PER_SECOND)


def quota_of(text: str | None) -> int:
    """Return the bytes that `TORPOR_MEMORY_MAX_MIB_PER_AGENT` allows. Raises `InvalidRequest`."""
    if text is None:
        return QUOTA_MIB * MIB
    if not text.isdecimal() or int(text) < 1:
        raise InvalidRequest(
            f"TORPOR_MEMORY_MAX_MIB_PER_AGENT is {text!r}; a whole number of MiB is wanted"
        )
    return int(text) * MIB

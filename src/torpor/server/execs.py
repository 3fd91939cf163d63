"""Starts execs for requests and follows them; what has begun goes on when the request ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from torpor.base.aio import Supervisor, finish
from torpor.base.ids import new_id
from torpor.errors import CommandLost, OperationTimeout, RateLimited, TorporError
from torpor.guest.port import Guest
from torpor.model import ExecEnded, ExecEvent, ExecId, ExecInfo, ExecOutput, ExecSpec, SandboxId
from torpor.sandboxes.port import EnginePort
from torpor.server.exec_output import Collected, SseEncoder
from torpor.server.lives import Lives
from torpor.server.wire_exec import OUTPUT_LIMIT_BYTES

log = logging.getLogger(__name__)

STDIN_CHUNK_BYTES = 256 << 10
FEED_WAIT_S = 0.5
"""Seconds that a start waits for small input to be taken, so that the client knows it was."""
KILL_GRACE_S = 20.0
"""Seconds after a command's own limit in which the guest has to report its end."""
INPUT_MOST_BYTES = 128 << 20
"""Of all input that commands have not yet taken."""
ANSWERS_MOST_BYTES = 512 << 20
"""Of output that answers under way may hold together, beyond what each may by default."""
_REMEMBERED_FEEDS = 4096


@dataclass(frozen=True, slots=True)
class Start:
    """A command to start, and what to do beside it."""

    spec: ExecSpec
    exec_id: ExecId
    stdin: bytes | None = None
    """All of stdin; None: it is not ours to feed."""
    kill_on_disconnect: bool = False


class ExecDesk:
    """Feeds the stdin of execs, each once, in tasks that outlive the request."""

    def __init__(
        self, engine: EnginePort, *, on_end: Callable[[ExecInfo], None] = lambda _info: None
    ) -> None:
        self.engine = engine
        self._on_end = on_end
        """Told of each command whose end was waited for by who started it."""
        self.lives = Lives(engine)
        self._fed: OrderedDict[str, bool] = OrderedDict()
        self._waiting_bytes = 0
        self._answers_bytes = 0
        self._supervisor = Supervisor(_feed_failed)

    async def aclose(self) -> None:
        """Stop feeding."""
        await self._supervisor.aclose(within_s=2)

    def stdin_done(self, sandbox_id: SandboxId, exec_id: ExecId) -> bool | None:
        """Return whether the input that came with an exec's request is fed; None: not by this daemon."""
        return self._fed.get(f"{sandbox_id}/{exec_id}")

    async def start(self, sandbox_id: SandboxId, start: Start) -> ExecInfo:
        """Start a command, or find the one that has this id already.

        Feeding `start.stdin` goes on when this has returned, if the guest does not take it at once.

        Raises:
            RateLimited: commands take so slowly what others gave them that there is no room for more.
        """
        self._check_room(start)
        async with self.lives.enter(sandbox_id) as (guest, generation):
            self.lives.note_start(sandbox_id, start.exec_id, generation)
            info = await guest.exec_start(start.exec_id, start.spec)
            await self._begin_feeding(generation, sandbox_id, start)
            return info

    @contextlib.asynccontextmanager
    async def _started(
        self, guest: Guest, generation: int, sandbox_id: SandboxId, start: Start
    ) -> AsyncIterator[AsyncIterator[ExecEvent]]:
        """Enter with the events of a command that is started, or found, by this. Raises as `start`."""
        self._check_room(start)
        self.lives.note_start(sandbox_id, start.exec_id, generation)
        async with guest.exec_run(start.exec_id, start.spec) as events:
            await self._begin_feeding(generation, sandbox_id, start)
            yield events

    def _check_room(self, start: Start) -> None:
        if self._waiting_bytes + len(start.stdin or b"") > INPUT_MOST_BYTES:
            raise RateLimited(
                "the daemon holds as much input for commands as it may; the command was not started",
                hint="send it again in a moment, or with stdin_open and in pieces",
                retry_after_seconds=5,
            )

    async def _begin_feeding(self, generation: int, sandbox_id: SandboxId, start: Start) -> None:
        key = f"{sandbox_id}/{start.exec_id}"
        if start.stdin is None or key in self._fed:
            return
        self._fed[key] = False
        if len(self._fed) > _REMEMBERED_FEEDS:
            self._fed.popitem(last=False)
        feeding = self._supervisor.spawn(
            self._feed(generation, sandbox_id, start.exec_id, start.stdin),
            name=f"stdin of {start.exec_id}",
        )
        size = len(start.stdin)
        self._waiting_bytes += size
        feeding.add_done_callback(lambda _task: self._feeding_ended(key, size))
        await asyncio.wait({feeding}, timeout=FEED_WAIT_S)

    def _feeding_ended(self, key: str, size: int) -> None:
        self._waiting_bytes -= size
        if key in self._fed:
            self._fed[key] = True

    async def _feed(
        self, generation: int, sandbox_id: SandboxId, exec_id: ExecId, data: bytes
    ) -> None:
        async with self.lives.enter(sandbox_id, generation) as (guest, _):
            for begin in range(0, max(1, len(data)), STDIN_CHUNK_BYTES):
                end = begin + STDIN_CHUNK_BYTES
                await guest.exec_stdin(exec_id, data[begin:end], eof=end >= len(data))

    async def run(self, sandbox_id: SandboxId, start: Start, *, limit_bytes: int) -> object:
        """Start a command, wait for its end and return its result.

        When the caller is cancelled the command runs on, unless `start.kill_on_disconnect`.

        Raises:
            OperationTimeout: it was killed at its time limit; the facts have its output until then.
            CommandLost: its end cannot be known.
            RateLimited: answers under way may hold so much output that there is no room for this one's.
        """
        with self._room_for(2 * max(0, limit_bytes - OUTPUT_LIMIT_BYTES)):
            return await self._run(sandbox_id, start, limit_bytes)

    @contextlib.contextmanager
    def _room_for(self, size: int) -> Iterator[None]:
        if size and self._answers_bytes + size > ANSWERS_MOST_BYTES:
            raise RateLimited(
                "answers with so much output are under way; the command was not started",
                hint="follow it instead (…/exec/stream), ask for less output, or send it again in a moment",
                retry_after_seconds=5,
            )
        self._answers_bytes += size
        try:
            yield
        finally:
            self._answers_bytes -= size

    async def _run(self, sandbox_id: SandboxId, start: Start, limit_bytes: int) -> object:
        collected = Collected(limit_bytes)
        limit_s = start.spec.timeout_seconds
        async with self.lives.enter(sandbox_id) as (guest, generation):
            try:
                async with (
                    asyncio.timeout(None if limit_s is None else limit_s + KILL_GRACE_S),
                    self._started(guest, generation, sandbox_id, start) as events,
                ):
                    async for event in events:
                        if isinstance(event, ExecOutput):
                            collected.add(event)
                        elif isinstance(event, ExecEnded):
                            self._on_end(event.info)
                            return collected.result(event.info)
            except TimeoutError as exc:
                await finish(_kill(guest, start.exec_id), within_s=5)
                raise OperationTimeout(
                    f"timeout: the guest did not end the command within {KILL_GRACE_S:g} s of its "
                    f"limit of {limit_s:g} s; it was told to kill it",
                    exec_id=start.exec_id,
                ) from exc
            except asyncio.CancelledError:
                if start.kill_on_disconnect:
                    await finish(_kill(guest, start.exec_id), within_s=5)
                raise
        raise CommandLost(f"{start.exec_id} sent no end", exec_id=start.exec_id)

    async def frames(
        self,
        sandbox_id: SandboxId,
        exec_id: ExecId,
        encoder: SseEncoder,
        *,
        start: Start | None = None,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        generation: int | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of an exec as server-sent events, after starting it if `start` is given.

        Raises:
            GenerationChanged: the machine is not in the life of `generation`, or left it on the way.
        """
        async with self.lives.enter(sandbox_id, generation) as (guest, encoder.generation):
            is_over = False
            followed: contextlib.AbstractAsyncContextManager[AsyncIterator[ExecEvent]]
            if start is not None:
                followed = self._started(guest, encoder.generation, sandbox_id, start)
            else:
                followed = guest.exec_attach(
                    exec_id, stdout_offset=stdout_offset, stderr_offset=stderr_offset
                )
            try:
                async with followed as events:
                    encoder.stdin_done = self.stdin_done(sandbox_id, exec_id)
                    async for event in events:
                        is_over = isinstance(event, ExecEnded)
                        if start is not None and isinstance(event, ExecEnded):
                            self._on_end(event.info)
                        for frame in encoder.encode(event):
                            yield frame
                        if is_over:
                            return
            except (asyncio.CancelledError, GeneratorExit):
                if start is not None and start.kill_on_disconnect and not is_over:
                    await finish(_kill(guest, exec_id), within_s=5)
                raise
        raise CommandLost(f"{exec_id} sent no end", exec_id=exec_id)


def new_exec_id(chosen: str | None) -> ExecId:
    """Return the id that the client chose, or a fresh one."""
    return ExecId(chosen or new_id("exec"))


async def _kill(guest: Guest, exec_id: ExecId) -> None:
    try:
        await guest.exec_signal(exec_id, 9)
    except TorporError as error:
        log.warning("%s could not be killed: %s", exec_id, error.message)


def _feed_failed(name: str, error: BaseException) -> None:
    # A command may end without reading its input; that is its business.
    log.info("%s was not taken whole: %s", name, error)

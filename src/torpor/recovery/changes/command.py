"""Runs the command of a change in its machine: once, whatever dies meanwhile, and never with a made-up end.

The command's id is derived from the change's. Before it is started it is written down in which boot of the machine
that happens. A daemon that comes later only follows it; in another boot of the machine its end cannot be known.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torpor.base.aio import Supervisor
from torpor.base.faults import reach
from torpor.base.masking import masked
from torpor.errors import (
    CommandLost,
    GenerationChanged,
    GuestUnreachable,
    InsufficientResources,
    InvalidRequest,
    NotFound,
    TorporError,
    VmmFailed,
    WrongState,
)
from torpor.guest.port import Guest
from torpor.model import (
    ExecEnded,
    ExecId,
    ExecInfo,
    ExecOutput,
    ExecSpec,
    SandboxId,
    SandboxState,
)
from torpor.model_changes import ChangeId, ChangeSpec
from torpor.recovery.changes.feeds import Feed
from torpor.recovery.changes.live import LiveText
from torpor.sandboxes.port import EnginePort

TAIL_BYTES = 64 << 10
"""Kept of the end of each stream, for the report."""
_CUT_MOST = 4096
SILENT_S = 120.0
"""How long a machine that runs may not answer until the command's end counts as unknown."""
_RETRY_S = 0.5
_LOST = frozenset({SandboxState.FAILED, SandboxState.STOPPED, SandboxState.DELETED})

Outcome = Literal["ok", "failed", "unknown", "refused", "unstarted", "rejected"]
Note = Callable[[Mapping[str, Any]], Awaitable[None]]


def exec_id_of(change_id: ChangeId) -> ExecId:
    """Return the id of a change's command."""
    return ExecId(f"exec_{change_id.removeprefix('chg_')}")


class _Refused(Exception):
    """Raised when a command cannot be, such as one of a user that is not there: nothing was begun."""


@dataclass(slots=True)
class _Tails:
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    next: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})

    def add(self, event: ExecOutput) -> None:
        kept = self.stdout if event.stream == "stdout" else self.stderr
        kept += event.data
        del kept[:-TAIL_BYTES]  # what is cut in the midst may be half a secret: see `_tail_of`
        self.next[event.stream] = event.offset + len(event.data)


class CommandRun:
    """One change's command, followed to its end."""

    def __init__(
        self,
        engine: EnginePort,
        change_id: ChangeId,
        sandbox_id: SandboxId,
        spec: ChangeSpec,
        feed: Feed,
        rejected: asyncio.Event,
    ) -> None:
        self._engine = engine
        self._sandbox_id = sandbox_id
        self._spec = spec
        self._feed = feed
        self._rejected = rejected
        self._tails = _Tails()
        self._live = {"stdout": LiveText(), "stderr": LiveText()}
        self.exec_id = exec_id_of(change_id)

    async def run(self, started: Mapping[str, Any] | None, note: Note) -> dict[str, Any]:
        """Run it, or follow what an earlier daemon started, and return how it ended, for the report.

        Args:
            started: what `note` was given before, if it was.
            note: writes down durably that the command is about to be started, and in which boot.
        """
        tasks = Supervisor(lambda _name, _error: None)  # told to whoever waits, here
        try:
            ending = tasks.spawn(self._follow(started, note), name=f"follow {self.exec_id}")
            stop = tasks.spawn(self._rejected.wait(), name=f"rejection of {self.exec_id}")
            await asyncio.wait({ending, stop}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return ending.result()
        except InsufficientResources:  # says nothing about the command; see `Durable.run`
            raise
        except TorporError as exc:
            return self._told("failed", f"the command could not be run: {exc.message}", None)
        finally:
            await tasks.aclose()
            for stream, live in self._live.items():
                self._tell(stream, live.end())
        await self._kill()
        return self._told("rejected", "it was rejected while its command ran", None)

    async def _follow(self, started: Mapping[str, Any] | None, note: Note) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        silent_since: float | None = None
        while True:
            try:
                async with self._engine.guest(self._sandbox_id) as guest:
                    silent_since = None
                    generation = (await self._engine.get(self._sandbox_id)).generation
                    here = {"instance": guest.info.instance, "generation": generation}
                    if started is None:
                        await note(here)
                        started = here
                        reach("change.started")
                        found = await self._run(guest)
                    elif await self._is_known(guest):
                        found = await self._attach(guest)
                    elif started.get("instance") == here["instance"]:
                        found = await self._run(guest)  # noted, and never begun
                    else:
                        return self._unknown("the machine was booted meanwhile")
                    return self._ended(found)
            except _Refused as exc:
                return self._told("refused", f"the command cannot be started: {exc}", None)
            except (InvalidRequest, CommandLost) as exc:
                return self._unknown(exc.message)
            except (GuestUnreachable, GenerationChanged, VmmFailed, WrongState) as exc:
                info = await self._engine.get(self._sandbox_id)
                if info.state in _LOST:
                    return self._lost(started, f"the machine is {info.state}")
                silent_since = loop.time() if silent_since is None else silent_since
                if loop.time() - silent_since > SILENT_S:
                    return self._lost(started, f"the machine does not answer: {exc.message}")
                await asyncio.sleep(_RETRY_S)

    async def _is_known(self, guest: Guest) -> bool:
        try:
            await guest.exec_get(self.exec_id)
        except NotFound:
            return False
        return True

    async def _run(self, guest: Guest) -> ExecInfo:
        spec = self._spec
        assert spec.command is not None
        wanted = ExecSpec(
            command=spec.command,
            cwd=spec.cwd,
            user=spec.user,
            timeout_seconds=spec.command_timeout_seconds,
        )
        is_begun = False
        try:
            async with guest.exec_run(self.exec_id, wanted) as events:
                is_begun = True
                return await self._read(events)
        except InvalidRequest as exc:
            if is_begun:
                raise
            raise _Refused(exc.message) from exc

    async def _attach(self, guest: Guest) -> ExecInfo:
        at = self._tails.next
        async with guest.exec_attach(
            self.exec_id, stdout_offset=at["stdout"], stderr_offset=at["stderr"]
        ) as events:
            return await self._read(events)

    async def _read(self, events: Any) -> ExecInfo:
        async for event in events:
            if isinstance(event, ExecOutput):
                self._tails.add(event)
                live = self._live[event.stream]
                self._tell(event.stream, live.feed(event.data, event.offset))
            elif isinstance(event, ExecEnded):
                return event.info
        raise CommandLost("the command sent no end")

    def _tell(self, stream: str, pieces: Iterable[tuple[int, str]]) -> None:
        for offset, chunk in pieces:
            self._feed.add("output", {"stream": stream, "offset": offset, "chunk": chunk})

    async def _kill(self) -> None:
        with contextlib.suppress(TorporError, TimeoutError):
            async with asyncio.timeout(10), self._engine.guest(self._sandbox_id) as guest:
                await guest.exec_signal(self.exec_id, 9)

    def _ended(self, info: ExecInfo) -> dict[str, Any]:
        if info.timed_out:
            limit = self._spec.command_timeout_seconds
            return self._told("failed", f"the command was killed at its limit of {limit:g} s", info)
        if info.exit_code == 0:
            return self._told("ok", "the command ended with status 0", info)
        killed = " (the machine ran out of memory)" if info.oom_killed else ""
        return self._told("failed", f"the command ended with status {info.exit_code}{killed}", info)

    def _lost(self, started: Mapping[str, Any] | None, why: str) -> dict[str, Any]:
        if started is not None:
            return self._unknown(why)
        return self._told("unstarted", f"the command was not started: {why}", None)

    def _unknown(self, why: str) -> dict[str, Any]:
        return self._told("unknown", f"how the command ended cannot be known: {why}", None)

    def _told(self, outcome: Outcome, why: str, info: ExecInfo | None) -> dict[str, Any]:
        return {
            "outcome": outcome,
            "why": why,
            "command": self._spec.command,
            "exec_id": self.exec_id,
            "exit_code": None if info is None else info.exit_code,
            "signal": None if info is None else info.signal,
            "duration_ms": None if info is None else info.duration_ms,
            "stdout_bytes": self._tails.next["stdout"],
            "stderr_bytes": self._tails.next["stderr"],
            "stdout_tail": _tail_of(self._tails.stdout),
            "stderr_tail": _tail_of(self._tails.stderr),
        }


def _tail_of(tail: bytes | bytearray) -> str:
    """Return the end of a stream for the report, which others read: without what looks like a secret."""
    if len(tail) == TAIL_BYTES:
        cut = re.search(rb"\s", tail[:_CUT_MOST])
        tail = tail[cut.end() :] if cut else tail
    return masked(tail.decode("utf-8", "replace"))

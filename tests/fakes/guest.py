"""A `Guest` without a guest: files in a folder, commands by this machine's own shell.

It passes the same contract suite as the real client and agent. What a guest's path `/x` is lies at `root/x`.
Commands really run, in that folder's place of their `cwd`; `scripts` answers chosen ones without running anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal as signals
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from tests.fakes.guest_files import FakeFiles
from tests.fakes.guest_ports import FakePorts
from torpor.errors import (
    CommandLost,
    Conflict,
    GuestUnreachable,
    InvalidRequest,
    NotFound,
)
from torpor.model import (
    ExecEnded,
    ExecEvent,
    ExecId,
    ExecInfo,
    ExecOutput,
    ExecSpec,
    ExecStarted,
    GuestInfo,
    ProcessInfo,
)

STREAMS: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")


@dataclass(frozen=True)
class Script:
    """What a command that is not really run does."""

    exit_code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""


@dataclass
class FakeExec:
    """One command of the fake."""

    info: ExecInfo
    limit: int
    output: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    totals: list[int] = field(default_factory=lambda: [0, 0])
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    process: asyncio.subprocess.Process | None = None
    task: asyncio.Task[None] | None = None
    timed_out: bool = False

    def now(self) -> ExecInfo:
        """What is so about it."""
        return replace(self.info, stdout_bytes=self.totals[0], stderr_bytes=self.totals[1])


class FakeGuest(FakePorts, FakeFiles):
    """See `torpor.guest.port.Guest`."""

    def __init__(
        self,
        root: Path,
        *,
        scripts: Mapping[str, Script] | None = None,
        image_env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(root)
        self.scripts = dict(scripts or {})
        self.image_env = dict(image_env or {})
        self.clock: datetime | None = None
        self.is_settled = False
        self.is_shut_down = False
        self.execs: dict[ExecId, FakeExec] = {}
        self._starting = asyncio.Lock()

    @property
    def info(self) -> GuestInfo:
        """What the fake says of itself."""
        return GuestInfo(
            agent_version="fake",
            protocol_version=1,
            capabilities=frozenset(
                {
                    "exec",
                    "exec.run",
                    "exec.drop",
                    "files",
                    "archive",
                    "processes",
                    "system",
                    "snapshots",
                    "ports",
                }
            ),
            instance="0000000000000000",
            agent_pid=os.getpid(),
        )

    # What tests do to it

    def cut(self) -> None:
        """Cut the channel: every call from now on, and every attach under way, raises GuestUnreachable."""
        self.is_cut = True

    def reconnect(self) -> None:
        """Let calls through again."""
        self.is_cut = False

    def restart_agent(self) -> None:
        """End the agent as kill -9 would: what runs is killed and lost."""
        for found in self.execs.values():
            if found.info.state == "running":
                found.info = replace(found.info, state="lost")
                self._kill(found, signals.SIGKILL)

    # Execs

    async def ping(self, *, timeout_s: float = 5.0) -> None:
        """See `Guest.ping`."""
        self._check()

    async def exec_start(
        self, exec_id: ExecId, spec: ExecSpec, *, output_limit_bytes: int | None = None
    ) -> ExecInfo:
        """See `Guest.exec_start`."""
        self._check()
        async with self._starting:
            if exec_id not in self.execs:
                await self._until_writable()
            if exec_id not in self.execs:
                self.execs[exec_id] = await self._start(exec_id, spec, output_limit_bytes)
            return self.execs[exec_id].now()

    async def _start(
        self, exec_id: ExecId, spec: ExecSpec, output_limit_bytes: int | None
    ) -> FakeExec:
        if not spec.command or (spec.user or "root") not in ("root", str(os.geteuid())):
            raise InvalidRequest(f"cannot run {spec.command!r} as {spec.user!r}")
        cwd = spec.cwd or "/"
        if not cwd.startswith("/") or not self.place(cwd).is_dir():
            raise InvalidRequest(f"the working directory {cwd!r} is no folder in the guest")
        found = FakeExec(
            ExecInfo(
                exec_id=exec_id,
                command=spec.command,
                state="running",
                pid=None,
                user=spec.user or "root",
                cwd=cwd,
                background=spec.background,
                started_at=datetime.now(UTC),
                stdout_path=f"/var/lib/torpor/exec/{exec_id}/stdout",
                stderr_path=f"/var/lib/torpor/exec/{exec_id}/stderr",
            ),
            limit=1 << 30 if output_limit_bytes is None else output_limit_bytes,
        )
        key = spec.command if isinstance(spec.command, str) else " ".join(spec.command)
        if key in self.scripts:
            self._play(found, self.scripts[key])
        else:
            await self._launch(found, spec)
        return found

    @contextlib.asynccontextmanager
    async def exec_run(
        self, exec_id: ExecId, spec: ExecSpec, *, output_limit_bytes: int | None = None
    ) -> AsyncIterator[AsyncIterator[ExecEvent]]:
        """See `Guest.exec_run`."""
        await self.exec_start(exec_id, spec, output_limit_bytes=output_limit_bytes)
        async with self.exec_attach(exec_id) as events:
            yield events

    @contextlib.asynccontextmanager
    async def exec_attach(
        self, exec_id: ExecId, *, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> AsyncIterator[AsyncIterator[ExecEvent]]:
        """See `Guest.exec_attach`."""
        found = self._find(exec_id)
        offsets = [stdout_offset, stderr_offset]
        if any(offset > total for offset, total in zip(offsets, found.totals, strict=True)):
            raise InvalidRequest(f"offsets {offsets} are beyond what was written: {found.totals}")
        events = self._events(found, offsets)
        async with contextlib.aclosing(events):
            yield events

    async def exec_stdin(self, exec_id: ExecId, data: bytes, *, eof: bool = False) -> None:
        """See `Guest.exec_stdin`."""
        found = self._find(exec_id)
        pipe = found.process.stdin if found.process else None
        if pipe is None or pipe.is_closing() or found.info.state != "running":
            raise Conflict(f"exec {exec_id} takes no stdin")
        try:
            pipe.write(data)
            await pipe.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise Conflict(f"exec {exec_id} takes no stdin") from None
        if eof:
            pipe.close()

    async def exec_signal(self, exec_id: ExecId, signal: int) -> None:
        """See `Guest.exec_signal`."""
        found = self._find(exec_id)
        if not 0 < signal < signals.NSIG:
            raise InvalidRequest(f"{signal} is no signal")
        self._kill(found, signal)

    async def exec_get(self, exec_id: ExecId) -> ExecInfo:
        """See `Guest.exec_get`."""
        return self._find(exec_id).now()

    async def exec_list(self) -> list[ExecInfo]:
        """See `Guest.exec_list`."""
        self._check()
        return [found.now() for found in self.execs.values()]

    async def exec_drop(self, exec_id: ExecId) -> bool:
        """See `Guest.exec_drop`."""
        self._check()
        found = self.execs.get(exec_id)
        if found is None or found.info.state == "running":
            return False
        del self.execs[exec_id]
        return True

    async def exec_forget(self) -> int:
        """See `Guest.exec_forget`."""
        self._check()
        ended = [key for key, found in self.execs.items() if found.now().state != "running"]
        for key in ended:
            del self.execs[key]
        return len(ended)

    async def processes(self) -> list[ProcessInfo]:
        """See `Guest.processes`."""
        self._check()
        return [
            ProcessInfo(
                pid=found.info.pid,
                ppid=os.getpid(),
                user=found.info.user,
                state="S",
                rss_bytes=1 << 20,
                command=found.info.command
                if isinstance(found.info.command, str)
                else " ".join(found.info.command),
                exec_id=exec_id,
            )
            for exec_id, found in self.execs.items()
            if found.info.state == "running" and found.info.pid
        ]

    # The machine

    async def set_clock(self, now: datetime) -> None:
        """See `Guest.set_clock`."""
        self._check()
        if now.tzinfo is None or not 2000 <= now.year < 2200:
            raise InvalidRequest(f"{now} is no time of day")
        self.clock = now

    async def grow_disk(self) -> int:
        """See `Guest.grow_disk`."""
        self._check()
        return 4 << 30

    async def settle(self, *, timeout_s: float) -> None:
        """See `Guest.settle`."""
        self._check()
        self.is_settled = True

    async def shutdown(self) -> None:
        """See `Guest.shutdown`."""
        self._check()
        self.is_shut_down = True

    async def aclose(self) -> None:
        """See `Guest.aclose`. Whatever still runs is killed, so that a test leaves nothing behind."""
        self.let_go()
        for found in self.execs.values():
            self._kill(found, signals.SIGKILL)
        tasks = [found.task for found in self.execs.values() if found.task]
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        for found in self.execs.values():
            if found.process:
                found.process._transport.close()  # type: ignore[attr-defined]
        self.is_cut = True

    # Inside

    def _find(self, exec_id: ExecId) -> FakeExec:
        self._check()
        if exec_id not in self.execs:
            raise NotFound(f"the guest knows no exec {exec_id}")
        return self.execs[exec_id]

    def _play(self, found: FakeExec, script: Script) -> None:
        for which, data in enumerate((script.stdout, script.stderr)):
            found.totals[which] = len(data)
            found.output[which][:] = data[: found.limit]
        found.info = replace(
            found.info, state="exited", pid=1, exit_code=script.exit_code, duration_ms=0
        )

    async def _launch(self, found: FakeExec, spec: ExecSpec) -> None:
        command = spec.command
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else command
        base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "USER": "root"}
        pipe = asyncio.subprocess.PIPE
        try:
            found.process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=self.place(found.info.cwd),
                env={**base, **self.image_env, **spec.env, "TORPOR_EXEC_ID": found.info.exec_id},
                stdin=pipe if spec.stdin else asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
            )
        except OSError as exc:
            raise InvalidRequest(
                f"the program {argv[0]!r} cannot be run: {exc}",
                step="program",
                errno=errno.errorcode.get(exc.errno or 0, ""),
            ) from exc
        found.info = replace(found.info, pid=found.process.pid)
        found.task = asyncio.get_running_loop().create_task(
            self._watch(found, found.process, spec.timeout_seconds)
        )

    async def _watch(
        self, found: FakeExec, process: asyncio.subprocess.Process, timeout_s: float | None
    ) -> None:
        assert process.stdout
        assert process.stderr
        pumps = [
            asyncio.get_running_loop().create_task(self._pump(found, which, pipe))
            for which, pipe in enumerate((process.stdout, process.stderr))
        ]
        try:
            async with asyncio.timeout(timeout_s):
                await _exit_of(process)
        except TimeoutError:
            found.timed_out = True
            self._kill(found, signals.SIGKILL)
            await _exit_of(process)
        _, pending = await asyncio.wait(pumps, timeout=0.2)
        for pump in pending:
            pump.cancel()
        code = process.returncode
        assert code is not None
        if found.info.state == "running":
            found.info = replace(
                found.info,
                state="exited",
                exit_code=128 - code if code < 0 else code,
                signal=-code if code < 0 else None,
                timed_out=found.timed_out,
                duration_ms=round(
                    (datetime.now(UTC) - found.info.started_at).total_seconds() * 1000
                ),
            )
        async with found.changed:
            found.changed.notify_all()

    async def _pump(self, found: FakeExec, which: int, pipe: asyncio.StreamReader) -> None:
        while data := await pipe.read(64 << 10):
            found.totals[which] += len(data)
            found.output[which].extend(data[: found.limit - len(found.output[which])])
            async with found.changed:
                found.changed.notify_all()

    async def _events(self, found: FakeExec, offsets: list[int]) -> AsyncGenerator[ExecEvent, None]:
        yield ExecStarted(found.info.exec_id, found.info.pid)
        while True:
            state = found.info.state
            for which, name in enumerate(STREAMS):
                data = bytes(found.output[which][offsets[which] : offsets[which] + (64 << 10)])
                if data:
                    offset = offsets[which]
                    offsets[which] += len(data)
                    yield ExecOutput(name, offset, data)
            if self.is_cut:
                raise GuestUnreachable("the guest channel was cut")
            if any(at < len(out) for at, out in zip(offsets, found.output, strict=True)):
                continue
            if state == "exited":
                yield ExecEnded(found.now())
                return
            if state == "lost":
                raise CommandLost(f"the end of exec {found.info.exec_id} is not known")
            if state == found.info.state:
                async with found.changed:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await found.changed.wait()

    def _kill(self, found: FakeExec, signal: int) -> None:
        if found.process and found.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(found.process.pid, signal)


async def _exit_of(process: asyncio.subprocess.Process) -> None:
    """Return when the process itself has ended; `wait` would wait for its pipes too."""
    while process.returncode is None:  # asyncio sets no event then
        await asyncio.sleep(0.005)

"""An engine and a guest in memory, good enough to test the server, the SDK and the CLI over a real socket.

Commands are lines of a small language, joined by `;` or `&&`: `echo W…`, `err W…`, `hex DIGITS`, `sleep S`,
`exit N`, `true`, `false`, `cat` (stdin to stdout), `spew N` (N bytes), `env`, `pwd`, `whoami`, `uname`,
`python3`, `lost` (the agent forgets it), `mark NAME` (counts how often it ran).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from typing_extensions import override

from tests.fakes.engine_exec import FakeExec, end_all
from tests.fakes.engine_files import FakeFiles
from tests.fakes.engine_inventory import FakeInventories
from tests.fakes.engine_snapshots import FakeSnapshots, void
from tests.fakes.engine_volumes import FakeVolumes
from tests.fakes.guest_ports import FakePorts
from torpor.base.home import Home
from torpor.base.ids import is_id, new_id
from torpor.db.database import Database
from torpor.db.memory_moves import MemoryMoves
from torpor.errors import (
    BuildFailed,
    CommandLost,
    Conflict,
    GuestUnreachable,
    HostNotReady,
    InsufficientResources,
    InvalidRequest,
    NotFound,
    TorporError,
    WrongState,
)
from torpor.memory.service import MemoryService
from torpor.model import (
    BuildEvent,
    ExecEnded,
    ExecEvent,
    ExecId,
    ExecInfo,
    ExecOutput,
    ExecSpec,
    ExecStarted,
    FileInfo,
    GuestInfo,
    OnTimeout,
    ProcessInfo,
    SandboxFilter,
    SandboxId,
    SandboxInfo,
    SandboxPage,
    SandboxSpec,
    SandboxState,
    Stillness,
    TemplateInfo,
)
from torpor.model_events import StateEvent
from torpor.model_file_events import FileEvent
from torpor.model_memory import MachineMove
from torpor.model_usage import MachineUsage
from torpor.sandboxes.events import EventLog
from torpor.sandboxes.memories import AgentMemories
from torpor.sandboxes.memory_moves import FollowingMemory
from torpor.sandboxes.missing import no_sandbox
from torpor.sandboxes.requests import check_agent, check_lease
from torpor.templates.missing import no_template

CHUNK_BYTES = 64 << 10
USAGE = MachineUsage(
    since=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    cpu_seconds=1.5,
    memory_bytes=90 << 20,
    disk_read_bytes=3 << 20,
    disk_written_bytes=2 << 20,
    disk_reads=30,
    disk_writes=20,
    disk_failures=0,
    disk_throttled=4,
    network_received_bytes=None,
    network_sent_bytes=None,
    network_received_packets=None,
    network_sent_packets=None,
    network_failures=None,
    network_throttled=None,
)


def fake_template(name: str) -> TemplateInfo:
    """Return a template as if it were built."""
    return TemplateInfo(
        name=name,
        digest="ab" * 32,
        created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        vcpus=1,
        ram_mib=512,
        disk_gib=4,
        size_bytes=400 << 20,
        default_user="agent",
        default_cwd="/workspace",
        env={"LANG": "C.UTF-8"},
        description=f"the template {name}",
    )


class FakeGuest(FakePorts, FakeInventories):
    """A guest in memory."""

    def __init__(self, env: dict[str, str]) -> None:
        super().__init__()
        self.env = env
        self.execs: dict[ExecId, FakeExec] = {}
        self.dropped: list[FakeExec] = []
        """What it was told to keep nothing of."""
        self.files = FakeFiles()
        self.packages: dict[str, str] | None = {"base-files": "13"}
        """None: it has no dpkg."""
        self.held_still: list[Stillness] = []
        self.answers: dict[str, bytes] = {}
        """What programs write whose words hold a key of this."""
        self.marks: Counter[str] = Counter()
        self.attached = 0
        self.reachable = True
        self.instance = "boot"
        self.is_cut = asyncio.Event()
        """Set when its machine was ended or put back: whoever follows it finds the channel cut."""

    def twin(self) -> FakeGuest:
        """Return a guest that shares this one's counters."""
        fresh = FakeGuest(dict(self.env))
        fresh.marks = self.marks
        fresh.packages = None if self.packages is None else dict(self.packages)
        fresh.held = {kind: dict(found) for kind, found in self.held.items()}
        return fresh

    def cut(self) -> FakeGuest:
        """Cut the channel to this guest, and return one to the same machine in its next life."""
        self.is_cut.set()
        for found in self.execs.values():
            found.nudge()
        for _, _, queue in self.files.followed:
            queue.put_nowait(GuestUnreachable("the guest channel was closed"))
        fresh = self.twin()
        fresh.files, fresh.execs = self.files, self.execs
        return fresh

    @property
    def info(self) -> GuestInfo:
        return GuestInfo(
            agent_version="fake",
            protocol_version=1,
            capabilities=frozenset({"exec.drop"}),
            instance=self.instance,
            agent_pid=1,
        )

    async def ping(self, *, timeout_s: float = 5.0) -> None:
        if not self.reachable:
            raise GuestUnreachable("the agent does not answer")

    async def exec_start(
        self, exec_id: ExecId, spec: ExecSpec, *, output_limit_bytes: int | None = None
    ) -> ExecInfo:
        if exec_id not in self.execs:
            if spec.user not in (None, "agent", "root"):
                raise InvalidRequest(f"no user {spec.user!r} in the guest")
            self.execs[exec_id] = FakeExec(
                exec_id,
                spec,
                env=self.env,
                marks=self.marks,
                files=self.files,
                packages=self.packages,
                answers=self.answers,
            )
        return self.execs[exec_id].info()

    @contextlib.asynccontextmanager
    async def exec_attach(
        self, exec_id: ExecId, *, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> AsyncIterator[AsyncIterator[ExecEvent]]:
        found = self._exec(exec_id)
        if stdout_offset > len(found.stdout) or stderr_offset > len(found.stderr):
            raise InvalidRequest("an offset is beyond what was written")
        events = self._events(found, stdout_offset, stderr_offset)
        self.attached += 1
        try:
            yield events
        finally:
            self.attached -= 1
            await events.aclose()

    @contextlib.asynccontextmanager
    async def exec_run(
        self, exec_id: ExecId, spec: ExecSpec, *, output_limit_bytes: int | None = None
    ) -> AsyncIterator[AsyncIterator[ExecEvent]]:
        await self.exec_start(exec_id, spec)
        async with self.exec_attach(exec_id) as events:
            yield events

    @property
    def closed(self) -> bool:
        return False

    async def _events(self, found: FakeExec, out: int, err: int):  # type: ignore[no-untyped-def]
        yield ExecStarted(found.exec_id, found.pid)
        while True:
            if self.is_cut.is_set():
                raise GuestUnreachable("the channel to the guest was cut")
            changed = found.changed
            while out < len(found.stdout) or err < len(found.stderr):
                if out < len(found.stdout):
                    data = bytes(found.stdout[out : out + CHUNK_BYTES])
                    yield ExecOutput("stdout", out, data)
                    out += len(data)
                if err < len(found.stderr):
                    data = bytes(found.stderr[err : err + CHUNK_BYTES])
                    yield ExecOutput("stderr", err, data)
                    err += len(data)
            if found.state == "lost":
                raise CommandLost(f"{found.exec_id} is lost", exec_id=found.exec_id)
            if found.state == "exited":
                yield ExecEnded(found.info())
                return
            if changed is found.changed:
                await changed.wait()

    async def exec_stdin(self, exec_id: ExecId, data: bytes, *, eof: bool = False) -> None:
        self._exec(exec_id).feed(data, eof=eof)

    async def exec_resize(self, exec_id: ExecId, columns: int, rows: int) -> None:
        self._exec(exec_id).window = (columns, rows)

    async def exec_signal(self, exec_id: ExecId, signal: int) -> None:
        self._exec(exec_id).kill(signal)

    async def exec_get(self, exec_id: ExecId) -> ExecInfo:
        return self._exec(exec_id).info()

    async def exec_list(self) -> list[ExecInfo]:
        return [found.info() for found in self.execs.values()]

    async def exec_forget(self) -> int:
        ended = [key for key, found in self.execs.items() if found.info().state != "running"]
        for key in ended:
            del self.execs[key]
        return len(ended)

    async def exec_drop(self, exec_id: ExecId) -> bool:
        found = self.execs.get(exec_id)
        if found is None or found.state == "running":
            return False
        self.dropped.append(self.execs.pop(exec_id))
        return True

    async def processes(self) -> list[ProcessInfo]:
        init = ProcessInfo(
            pid=1, ppid=0, user="root", state="S", rss_bytes=1 << 20, command="init", exec_id=None
        )
        return [init, *(e.process() for e in self.execs.values() if e.state == "running")]

    async def stat(self, path: str) -> FileInfo:
        return self.files.stat(path)

    async def list_dir(self, path: str) -> list[FileInfo]:
        return self.files.list_dir(path)

    async def walk(self, path: str, *, max_depth: int | None = None) -> AsyncIterator[FileInfo]:
        for info in self.files.walk(path, max_depth):
            yield info

    @contextlib.asynccontextmanager
    async def follow_dir(
        self, path: str, *, recursive: bool = False
    ) -> AsyncIterator[AsyncIterator[FileEvent]]:
        self.files.list_dir(path)  # it is one
        queue: asyncio.Queue[FileEvent | TorporError | None] = asyncio.Queue()
        entry = (posixpath.normpath(path), recursive, queue)
        self.files.followed.append(entry)
        try:
            yield self._told(queue)
        finally:
            self.files.followed.remove(entry)

    async def _told(
        self, queue: asyncio.Queue[FileEvent | TorporError | None]
    ) -> AsyncIterator[FileEvent]:
        while (event := await queue.get()) is not None:
            if isinstance(event, TorporError):
                raise event
            yield event

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileInfo:
        return self.files.mkdir(path, parents=parents, mode=mode)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        self.files.remove(path, recursive=recursive)

    async def rename(self, source: str, target: str) -> FileInfo:
        return self.files.rename(source, target)

    async def read(
        self, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        async for chunk in self.files.read(path, offset, limit_bytes):
            yield chunk

    async def write(
        self,
        path: str,
        chunks: AsyncIterator[bytes],
        *,
        append: bool = False,
        mode: int | None = None,
        user: str | None = None,
    ) -> FileInfo:
        return await self.files.write(path, chunks, append=append, mode=mode, user=user)

    async def pack(self, path: str) -> AsyncIterator[bytes]:
        for chunk in self.files.pack(path):
            yield chunk

    async def unpack(
        self, path: str, chunks: AsyncIterator[bytes], *, user: str | None = None
    ) -> int:
        return await self.files.unpack(path, chunks)

    async def set_clock(self, now: datetime) -> None:
        pass

    async def grow_disk(self) -> int:
        return 4 << 30

    async def settle(self, *, timeout_s: float) -> None:
        pass

    async def shutdown(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    def _exec(self, exec_id: ExecId) -> FakeExec:
        if exec_id not in self.execs:
            raise NotFound(f"there is no exec {exec_id}", exec_id=exec_id)
        return self.execs[exec_id]


class FakeMoves(MemoryMoves):
    """Moves that are kept in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[MachineMove | None, str]] = {}

    @override
    def all(self) -> dict[str, tuple[MachineMove | None, str]]:
        return dict(self.kept)

    @override
    def put(self, sandbox_id: str, move: MachineMove | None, note: str = "") -> None:
        self.kept[sandbox_id] = (move, note)

    @override
    def drop(self, sandbox_id: str) -> None:
        self.kept.pop(sandbox_id, None)


@dataclass(slots=True)
class FakeSandbox:
    """One sandbox of the fake engine."""

    info: SandboxInfo
    guest: FakeGuest
    console: bytearray = field(default_factory=lambda: bytearray(b"booting\nlogin: \xc3\xa9\xff\n"))


class FakeEngine(FakeSnapshots):
    """Keeps sandboxes in memory; forgets them when its process ends."""

    def __init__(self, home: Home | None = None, *, folder: Path | None = None) -> None:
        """Keep sandboxes in memory, and what their agents know in `folder`."""
        self.home = home
        self._folder = folder
        self.reports: list[str] = []
        self._memories: AgentMemories | None = None
        self.log = EventLog()
        self.sandboxes: dict[SandboxId, FakeSandbox] = {}
        self.built: dict[str, TemplateInfo] = {}
        self.reset()

    def reset(self) -> None:
        self.sandboxes = {}
        self.built = {name: fake_template(name) for name in ("agent", "base")}
        self.users: Counter[SandboxId] = Counter()
        """How many hold each sandbox's guest."""
        self.usages: dict[SandboxId, MachineUsage] = {}
        """Others than `USAGE`."""
        self.forget_snapshots()
        self.volumes = FakeVolumes(lambda sandbox_id: self._found(sandbox_id).info)
        self._forget_memories()

    @property
    @override
    def memories(self) -> AgentMemories:
        """A real memory, in a folder of its own."""
        assert self._memories is not None, "this engine was given no folder"
        return self._memories

    def _forget_memories(self) -> None:
        if self._folder is not None:
            folder = self._folder / new_id("mem")
            folder.mkdir()
            service = MemoryService(folder / "memory.db")
            moves = FollowingMemory(
                service,
                FakeMoves(),
                find=self.get,
                report=lambda name, exc: self.reports.append(f"{name}: {exc}"),
            )
            self._memories = AgentMemories(service, moves, find=self.get, scratch=folder)

    def attend_too(self, attend: Callable[[Any, Any], Coroutine[Any, Any, None]]) -> None:
        """Take who wants to serve machines; these ask for nothing."""

    async def start(self) -> None:
        """Do what the test asked for in the environment of a daemon of its own."""
        if lacks := os.environ.get("TORPOR_FAKE_LACKS"):
            raise HostNotReady(lacks, hint="install it")
        if os.environ.get("TORPOR_FAKE_CRASHES"):
            raise ZeroDivisionError
        await asyncio.sleep(float(os.environ.get("TORPOR_FAKE_STARTS_S", "0")))

    async def aclose(self) -> None:
        if self._memories is not None:
            await self._memories.service.aclose()
        await end_all()

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        if spec.template not in self.built:
            raise await asyncio.to_thread(no_template, spec.template, tuple(self.built))
        if spec.vcpus is not None and not 1 <= spec.vcpus <= 64:
            raise InvalidRequest(f"vcpus is {spec.vcpus}; it must be 1 to 64")
        if (spec.ram_mib or 512) > 65536:
            raise InsufficientResources(
                f"{spec.ram_mib} MiB of memory are wanted, 2048 MiB are free", free_mib=2048
            )
        if "agent" in spec.metadata:
            check_agent(spec.metadata["agent"])
        now = datetime.now(UTC)
        ttl = spec.ttl_seconds
        template = self.built[spec.template]
        info = SandboxInfo(
            id=spec.sandbox_id or SandboxId(new_id("sbx")),
            state=SandboxState.RUNNING,
            template=template.name,
            template_digest=template.digest,
            vcpus=spec.vcpus or template.vcpus,
            ram_mib=spec.ram_mib or template.ram_mib,
            disk_gib=spec.disk_gib or template.disk_gib,
            network=spec.network,
            env_names=tuple(sorted(spec.env)),
            metadata=dict(spec.metadata),
            ttl_seconds=ttl,
            on_timeout=spec.on_timeout,
            created_at=now,
            expires_at=None if ttl is None else now + timedelta(seconds=ttl),
            boot_mode="cold",
            boot_ms=12,
            accel="tcg",
            idle_seconds=spec.idle_seconds,
            workspace=spec.workspace,
        )
        env = {**template.env, **spec.env}
        self.add(info, FakeGuest(env))
        self.own_layers[info.id] = ()
        try:
            for mount in spec.volumes:
                await self.volumes.attach(info.id, mount)
        except Exception:
            del self.sandboxes[info.id]
            raise
        return info

    @override
    def add(self, info: SandboxInfo, guest: FakeGuest) -> None:
        self.sandboxes[info.id] = FakeSandbox(info, guest)
        self.log.sandbox(info)

    @override
    async def get(self, sandbox_id: SandboxId) -> SandboxInfo:
        info = self._found(sandbox_id).info
        note = self._memories and self._memories.moves.note(sandbox_id)
        return replace(info, memory_note=note) if note else info

    async def list(self, query: SandboxFilter) -> SandboxPage:
        wanted = query.states or tuple(s for s in SandboxState if s != SandboxState.DELETED)
        found = [
            s.info
            for s in reversed(self.sandboxes.values())
            if s.info.state in wanted
            and query.template in (None, s.info.template)
            and query.workspace in (None, s.info.workspace)
            and query.metadata.items() <= dict(s.info.metadata).items()
        ]
        if (query.cursor and not query.cursor.isascii()) or not (query.cursor or "0").isdecimal():
            raise InvalidRequest(f"the cursor {query.cursor!r} is not one of ours")
        begin = int(query.cursor or 0)
        end = begin + query.limit
        return SandboxPage(tuple(found[begin:end]), str(end) if end < len(found) else None)

    async def delete(self, sandbox_id: SandboxId) -> SandboxInfo:
        sandbox = self._found(sandbox_id)
        for found in sandbox.guest.execs.values():
            found.kill(9)
        self.volumes.release(sandbox_id)
        return self._set(sandbox_id, SandboxState.DELETED)

    async def pause(self, sandbox_id: SandboxId, *, holder: str | None = None) -> SandboxInfo:
        self.claims.check(sandbox_id, "pause", holder)
        self._need(sandbox_id, SandboxState.RUNNING, SandboxState.PAUSED)
        return self._set(sandbox_id, SandboxState.PAUSED)

    async def usage(self, sandbox_id: SandboxId) -> MachineUsage:
        self._need(sandbox_id, SandboxState.RUNNING, SandboxState.PAUSED)
        return self.usages.get(sandbox_id, USAGE)

    async def resume(self, sandbox_id: SandboxId) -> SandboxInfo:
        self._need(sandbox_id, SandboxState.RUNNING, SandboxState.PAUSED)
        return self._set(sandbox_id, SandboxState.RUNNING)

    async def set_ttl(
        self, sandbox_id: SandboxId, ttl_seconds: int | None, *, on_timeout: OnTimeout | None = None
    ) -> SandboxInfo:
        check_lease(ttl_seconds, on_timeout)
        sandbox = self._found(sandbox_id)
        ends = None if ttl_seconds is None else datetime.now(UTC) + timedelta(seconds=ttl_seconds)
        sandbox.info = replace(
            sandbox.info,
            ttl_seconds=ttl_seconds,
            expires_at=ends,
            on_timeout=on_timeout or sandbox.info.on_timeout,
        )
        return sandbox.info

    async def console(self, sandbox_id: SandboxId, *, follow: bool = False) -> AsyncIterator[bytes]:
        sandbox = self._found(sandbox_id)
        sent = 0
        while True:
            if sent < len(sandbox.console):
                yield bytes(sandbox.console[sent:])
                sent = len(sandbox.console)
            if not follow or sandbox.info.state == SandboxState.DELETED:
                return
            await asyncio.sleep(0.01)

    @contextlib.asynccontextmanager
    async def guest(self, sandbox_id: SandboxId) -> AsyncIterator[FakeGuest]:
        self.users[sandbox_id] += 1
        try:
            if self._found(sandbox_id).info.state is SandboxState.HIBERNATED:
                await self.wake(sandbox_id)
            self._need(sandbox_id, SandboxState.RUNNING)
            found = self._found(sandbox_id)
            generation, guest = found.info.generation, found.guest
            await guest.ping()
            try:
                yield guest
            except GuestUnreachable as exc:
                if found.info.generation == generation and not guest.is_cut.is_set():
                    raise
                raise void(found.info) from exc
        finally:
            self.users[sandbox_id] -= 1

    async def templates(self) -> tuple[TemplateInfo, ...]:
        return tuple(self.built[name] for name in sorted(self.built))

    async def template(self, name: str) -> TemplateInfo:
        if name not in self.built:
            raise await asyncio.to_thread(no_template, name, tuple(self.built))
        return self.built[name]

    async def build_template(
        self, name_or_recipe: str | Path, *, force: bool = False
    ) -> AsyncIterator[BuildEvent]:
        name = name_or_recipe
        if isinstance(name, Path):
            if not await asyncio.to_thread(name.is_file):
                raise NotFound(f"there is no recipe {name}", path=name)
            name = (await asyncio.to_thread(name.read_text)).strip() or "empty"
            if any(key in name for key in ("rootfs", "image", "dockerfile")):
                name = str(tomllib.loads(name)["name"])
        if name == "unheard-of":
            raise NotFound(f"no recipe is called {name!r}", hint="shipped: base, agent")
        yield BuildEvent(step="plan", message=f"planning {name}", fraction=0.0)
        await asyncio.sleep(0)
        if name == "broken":
            where = f"{name_or_recipe}: " if isinstance(name_or_recipe, Path) else ""
            raise BuildFailed(f"{where}step `run` failed: exit 1", step="run", log="boom")
        yield BuildEvent(step="image", message="writing the image", fraction=0.5)
        self.built[name] = fake_template(name)
        self.log.record("template", name, "built", None)
        yield BuildEvent(step="done", message="ready", fraction=1.0, template=self.built[name])

    async def delete_template(self, name: str) -> None:
        await self.template(name)
        users = [s.info.id for s in self.sandboxes.values() if s.info.template == name]
        if users:
            raise Conflict(f"template {name!r} is needed by {users[0]}", sandboxes=users)
        del self.built[name]

    async def doctor(self) -> dict[str, object]:
        check = {"name": "accel", "status": "ok", "found": "tcg", "why": "no KVM", "fix": ""}
        return {"ok": True, "checks": [check]}

    @override
    def _found(self, sandbox_id: SandboxId) -> FakeSandbox:
        if not is_id(sandbox_id, "sbx") or sandbox_id not in self.sandboxes:
            raise no_sandbox(sandbox_id)
        return self.sandboxes[sandbox_id]

    @override
    def _need(self, sandbox_id: SandboxId, *states: SandboxState) -> None:
        now = self._found(sandbox_id).info.state
        if now not in states:
            raise WrongState(
                f"sandbox {sandbox_id} is {now}; it must be {' or '.join(states)}",
                hint="resume it" if now == SandboxState.PAUSED else None,
                state=now,
            )

    def _set(self, sandbox_id: SandboxId, state: SandboxState) -> SandboxInfo:
        sandbox = self._found(sandbox_id)
        sandbox.info = replace(sandbox.info, state=state)
        self.log.sandbox(sandbox.info)
        return sandbox.info

    def events(self, *, after: str | None = None) -> AsyncIterator[StateEvent]:
        return self.log.follow(after)


def open_engine(home: Home, **_: object) -> FakeEngine:
    """Stand in for `torpor.sandboxes.engine.open_engine`."""
    home.prepare()
    Database.open(home.database).close()
    return FakeEngine(home, folder=home.tmp)

"""One task a sandbox: the only writer of its state.

Requests ask it and wait; they never act themselves, so two of them cannot cross, and a caller that goes
away undoes nothing. Every move is a row written before the act and a row written after it; a daemon that
dies in between leaves the row that says what was meant (see `recover`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from torpor.base.aio import Supervisor, finish
from torpor.base.faults import reach
from torpor.base.units import GIB
from torpor.db.sandboxes import SandboxRow
from torpor.errors import GuestFailed, GuestUnreachable, TorporError, VmmFailed, WrongState
from torpor.guest.port import Guest
from torpor.model import OnTimeout, SandboxInfo, SandboxState
from torpor.sandboxes import folder as files
from torpor.sandboxes.lifecycle import TIME_RUNS, WITH_MACHINE, check_move, require_running
from torpor.sandboxes.parts import Parts
from torpor.templates.store import Template
from torpor.vmm.base import Disk, MachineSpec, Vmm

T = TypeVar("T")
S = SandboxState

SANDBOX_FILE = "/etc/torpor/sandbox.json"
"""Where the guest agent finds what this sandbox lays over its image: the environment."""

_DELETE = "delete"
_CONNECT_S = 30.0
_EXPIRY_RETRY = timedelta(seconds=30)
_POWERED_DOWN = "reboot: Power down"
"""The kernel's last words when a machine powers itself off."""


@dataclass(frozen=True, slots=True)
class _Request:
    work: Callable[[], Coroutine[Any, Any, None]]
    name: str
    answer: asyncio.Future[SandboxInfo]


class SandboxTask:
    """Owns one sandbox's life."""

    def __init__(self, parts: Parts, row: SandboxRow, *, vmm: Vmm | None = None) -> None:
        self._parts = parts
        self._row = row
        self._vmm = vmm
        self._folder = files.folder_of(parts.home, row.info.id)
        self._guest: Guest | None = None
        self._connecting = asyncio.Lock()
        self._queue: asyncio.Queue[_Request | Vmm] = asyncio.Queue()
        self._tasks = Supervisor(parts.report)
        self._current: asyncio.Task[Exception | None] | None = None
        self._doomed = False
        self.users = 0
        """Callers that hold the guest now."""

    @property
    def info(self) -> SandboxInfo:
        """What is so about the sandbox now."""
        return self._row.info

    def start(self) -> None:
        """Begin to serve requests."""
        self._tasks.launch(self._run(), name=f"sandbox {self.info.id}")
        if self._vmm is not None:
            self._watch(self._vmm)

    async def aclose(self) -> None:
        """Stop serving; the machine goes on. What was under way is finished or undone by the next daemon."""
        await self._tasks.aclose()
        await self._drop_guest()
        if self._vmm is not None:
            await self._vmm.aclose()

    # ---- what callers ask ----

    async def create(self, template: Template, env: Mapping[str, str]) -> SandboxInfo:
        """Boot the machine of a row that is `creating`."""
        return await self._ask("create", lambda: self._create(template, env))

    async def pause(self) -> SandboxInfo:
        """Stop the vCPUs."""
        return await self._ask("pause", self._pause)

    async def resume(self) -> SandboxInfo:
        """Let the vCPUs run on."""
        return await self._ask("resume", self._resume)

    async def set_ttl(self, ttl_seconds: int | None, on_timeout: OnTimeout | None) -> SandboxInfo:
        """Set the time to live, counted from now."""
        return await self._ask("set ttl", lambda: self._set_ttl(ttl_seconds, on_timeout))

    async def delete(self) -> SandboxInfo:
        """End and remove the sandbox, whatever it does now; what it does is broken off."""
        self._doomed = True
        if self._current is not None:
            self._current.cancel()
        return await self._ask(_DELETE, self._delete)

    @contextlib.asynccontextmanager
    async def guest(self) -> AsyncIterator[Guest]:
        """Enter with the connected guest of a running sandbox."""
        require_running(self.info.id, self.info.state)
        guest = await self._connected()
        self.users += 1
        try:
            yield guest
        finally:
            self.users -= 1

    # ---- the task ----

    async def _ask(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> SandboxInfo:
        answer: asyncio.Future[SandboxInfo] = asyncio.get_running_loop().create_future()
        if self.info.state is S.DELETED:
            return self.info
        self._queue.put_nowait(_Request(work, name, answer))
        return await asyncio.shield(answer)

    async def _run(self) -> None:
        while self.info.state is not S.DELETED:
            try:
                async with asyncio.timeout(self._seconds_to_expiry()):
                    item = await self._queue.get()
            except TimeoutError:
                await self._expire()
                continue
            if isinstance(item, _Request):
                await self._perform(item)
            elif item is self._vmm:
                await self._noted_end()
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, _Request):
                item.answer.set_result(self.info)

    async def _perform(self, request: _Request) -> None:
        if self._doomed and request.name != _DELETE:
            error: Exception | None = WrongState(
                f"sandbox {self.info.id} is being deleted", sandbox_id=self.info.id
            )
        else:
            task = self._tasks.spawn(
                _outcome(request.work()), name=f"{request.name} {self.info.id}"
            )
            self._current = None if request.name == _DELETE else task
            try:
                await asyncio.wait({task})
            finally:
                self._current = None
            if task.cancelled():  # only a delete breaks work off
                error = WrongState(
                    f"sandbox {self.info.id} was deleted during its {request.name}",
                    sandbox_id=self.info.id,
                )
            else:
                error = task.result()
        if error is None:
            request.answer.set_result(self.info)
        else:
            request.answer.set_exception(error)

    def _seconds_to_expiry(self) -> float | None:
        if self.info.expires_at is None or self._doomed:
            return None
        return max(0.0, (self.info.expires_at - self._parts.clock.now()).total_seconds())

    async def _expire(self) -> None:
        if self.info.expires_at is None or self.info.expires_at > self._parts.clock.now():
            return  # the clock was set back meanwhile
        try:
            await self._delete()
        except TorporError as exc:
            self._parts.report(f"delete of expired {self.info.id}", exc)
            await self._save(
                self._row.with_info(expires_at=self._parts.clock.now() + _EXPIRY_RETRY)
            )

    def _watch(self, vmm: Vmm) -> None:
        async def watch() -> None:
            await vmm.wait()
            self._queue.put_nowait(vmm)

        self._tasks.launch(watch(), name=f"watch {self.info.id}")

    async def _noted_end(self) -> None:
        """Write down that the machine ended by itself: `stopped` if it powered off, else `failed`."""
        assert self._vmm is not None
        await self._drop_guest()
        await self._vmm.aclose()
        self._vmm = None
        if self.info.state not in WITH_MACHINE:
            return
        state, error = await asyncio.to_thread(verdict, self._parts, self.info)
        await self._move(state, error=error)
        await asyncio.to_thread(files.release_machine, self._folder)

    # ---- the acts ----

    async def _create(self, template: Template, env: Mapping[str, str]) -> None:
        begun = self._parts.clock.monotonic_s()
        info = self.info
        disk = files.active_disk(self._folder)
        try:
            reach("create.intent")
            await asyncio.to_thread(files.make_folder, self._folder)
            reach("create.folder")
            await self._parts.driver.create_overlay(disk, info.disk_gib * GIB)
            reach("create.overlay")
            spec = MachineSpec(
                vcpus=info.vcpus,
                ram_mib=info.ram_mib,
                network=info.network,
                kernel=template.kernel,
                initrd=template.initrd,
                cmdline=template.cmdline,
                disk=Disk((template.disk,), disk),
            )
            self._vmm = await self._parts.driver.start(self._folder, spec)
            reach("create.started")
            guest = await self._connected(self._parts.boot_timeout_s)
            reach("create.connected")
            await self._until_end(
                self._personalise(guest, env, grow=info.disk_gib > template.info.disk_gib)
            )
            reach("create.ready")
            boot_ms = round((self._parts.clock.monotonic_s() - begun) * 1000)
            await self._move(S.RUNNING, boot_mode="cold", boot_ms=boot_ms)
            reach("create.outcome")
        except BaseException as exc:
            await finish(self._undo_create(exc), within_s=60.0)
            raise
        self._watch(self._vmm)

    async def _undo_create(self, exc: BaseException) -> None:
        await self._end_machine()
        await asyncio.to_thread(files.release_machine, self._folder)
        if isinstance(exc, Exception):
            tail = await asyncio.to_thread(
                files.console_tail, self._parts.driver.console(self._folder)
            )
            text = exc.message if isinstance(exc, TorporError) else repr(exc)
            await self._move(
                S.FAILED, error=f"create failed: {text}" + (f"\nconsole:\n{tail}" if tail else "")
            )

    async def _personalise(self, guest: Guest, env: Mapping[str, str], *, grow: bool) -> None:
        await guest.set_clock(self._parts.clock.now())
        if env:
            await guest.write(
                SANDBOX_FILE,
                _once(json.dumps({"env": dict(env)}).encode()),
                mode=0o600,
                user="root",
            )
        if grow:
            await guest.grow_disk()

    async def _pause(self) -> None:
        if self.info.state is S.PAUSED:
            return
        vmm = self._machine(S.PAUSING)
        await self._move(S.PAUSING)
        reach("pause.intent")
        try:
            await vmm.pause()
        except BaseException:
            await finish(self._settle_state(vmm), within_s=15.0)
            raise
        reach("pause.acted")
        await self._move(S.PAUSED)

    async def _resume(self) -> None:
        if self.info.state is S.RUNNING:
            return
        vmm = self._machine(S.RESUMING)
        await self._move(S.RESUMING)
        reach("resume.intent")
        try:
            await vmm.resume()
            reach("resume.acted")
            with contextlib.suppress(GuestFailed):
                # before anyone runs a command: the guest's clock stood still
                guest = await self._connected()
                await guest.set_clock(self._parts.clock.now())
        except BaseException:
            await finish(self._settle_state(vmm), within_s=15.0)
            raise
        await self._move(S.RUNNING)

    async def _set_ttl(self, ttl_seconds: int | None, on_timeout: OnTimeout | None) -> None:
        if self.info.state in (S.DELETING, S.DELETED):
            raise WrongState(
                f"sandbox {self.info.id} is {self.info.state}; it has no lease",
                sandbox_id=self.info.id,
            )
        left = None if ttl_seconds is None else timedelta(seconds=ttl_seconds)
        row = replace(self._row, ttl_left=left).with_info(
            ttl_seconds=ttl_seconds, on_timeout=on_timeout or self.info.on_timeout, expires_at=None
        )
        await self._save(self._timed(row, row.info.state))

    async def _delete(self) -> None:
        self._doomed = True
        if self.info.state is not S.DELETING:
            await self._move(S.DELETING)
        reach("delete.intent")
        await self._end_machine()
        reach("delete.ended")
        await files.remove_folder(self._folder)
        reach("delete.removed")
        row = self._row.with_info(state=S.DELETED, expires_at=None)
        await asyncio.to_thread(self._parts.rows.mark_deleted, row, self._parts.clock.now())
        reach("delete.outcome")
        self._row = row

    # ---- smaller steps ----

    def _machine(self, want: SandboxState) -> Vmm:
        check_move(self.info.id, self.info.state, want)
        if self._vmm is None:
            raise VmmFailed(f"sandbox {self.info.id} has no machine", sandbox_id=self.info.id)
        return self._vmm

    async def _end_machine(self) -> None:
        await self._drop_guest()
        if self._vmm is not None:
            await self._vmm.aclose()
            self._vmm = None
        await self._parts.driver.sweep(self._folder)

    async def _settle_state(self, vmm: Vmm) -> None:
        """After a pause or resume that went wrong, write down what the machine really does."""
        status = await vmm.status()
        if status != "ended":  # its end is noted by the watcher
            await self._move(S.RUNNING if status == "running" else S.PAUSED)

    async def _connected(self, timeout_s: float = _CONNECT_S) -> Guest:
        async with self._connecting:
            if self._guest is not None and not self._guest.closed:
                return self._guest
            vmm = self._vmm
            if vmm is None:
                raise GuestUnreachable(
                    f"sandbox {self.info.id} has no machine", sandbox_id=self.info.id
                )
            await self._drop_guest()
            await self._save(replace(self._row, epoch=self._row.epoch + 1))
            self._guest = await self._until_end(
                self._parts.connect_guest(
                    vmm.agent_socket, epoch=self._row.epoch, timeout_s=timeout_s
                )
            )
            return self._guest

    async def _until_end(self, work: Awaitable[T]) -> T:
        """Await `work`, but no longer than the machine lives."""
        assert self._vmm is not None
        vmm = self._vmm

        doing = self._tasks.spawn(_quiet(work), name="guest work")
        ending = self._tasks.spawn(vmm.wait(), name="machine's end")
        try:
            await asyncio.wait({doing, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise VmmFailed(
                    f"the machine of sandbox {self.info.id} ended",
                    hint=f"see its console: torpor logs {self.info.id}",
                    sandbox_id=self.info.id,
                )
            outcome = doing.result()
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome
        finally:
            for task in (doing, ending):
                task.cancel()
            await asyncio.wait({doing, ending}, timeout=5.0)

    async def _drop_guest(self) -> None:
        guest, self._guest = self._guest, None
        if guest is not None:
            with contextlib.suppress(GuestFailed):
                await guest.aclose()

    async def _move(self, state: SandboxState, **changes: Any) -> None:
        if state is not self.info.state:
            check_move(self.info.id, self.info.state, state)
        await self._save(self._timed(self._row.with_info(state=state, **changes), state))

    def _timed(self, row: SandboxRow, state: SandboxState) -> SandboxRow:
        """Start or stop the lease's clock as `state` wants."""
        now = self._parts.clock.now()
        if state in TIME_RUNS and row.info.expires_at is None and row.ttl_left is not None:
            return replace(row, ttl_left=None).with_info(expires_at=now + row.ttl_left)
        if state not in TIME_RUNS and row.info.expires_at is not None:
            return replace(row, ttl_left=max(row.info.expires_at - now, timedelta(0))).with_info(
                expires_at=None
            )
        return row

    async def _save(self, row: SandboxRow) -> None:
        await asyncio.to_thread(self._parts.rows.save, row)
        self._row = row


def verdict(parts: Parts, info: SandboxInfo) -> tuple[SandboxState, str | None]:
    """Return the state of a sandbox whose machine ended by itself, and the reason. Blocks."""
    folder = files.folder_of(parts.home, info.id)
    console = files.console_tail(parts.driver.console(folder))
    if _POWERED_DOWN in console:
        return S.STOPPED, None
    log = parts.driver.last_words(folder)
    parts_of_text = ["the machine ended unexpectedly"]
    if log:
        parts_of_text.append(f"VMM log:\n{log}")
    if console:
        parts_of_text.append(f"console:\n{console}")
    return S.FAILED, "\n".join(parts_of_text)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _outcome(work: Coroutine[Any, Any, None]) -> Exception | None:
    """Return the failure of `work` instead of raising it: it belongs to the caller, not to the supervisor."""
    try:
        await work
    except Exception as exc:  # noqa: BLE001 - handed to the caller, who raises it
        return exc
    return None


async def _quiet(work: Awaitable[T]) -> T | Exception:
    """Return a failure instead of raising it, so that the supervisor does not report what the caller gets."""
    try:
        return await work
    except Exception as exc:  # noqa: BLE001 - handed to the caller, who raises it
        return exc

"""One task a sandbox: the only writer of its state.

Requests ask it and wait; they never act themselves, so two of them cannot cross, and a caller that goes
away undoes nothing. Every move is a row written before the act and a row written after it; a daemon that
dies in between leaves the row that says what was meant (see `recover`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from torpor.base.aio import Supervisor
from torpor.db.sandboxes import SandboxRow
from torpor.errors import GenerationChanged, GuestFailed, GuestUnreachable, VmmFailed
from torpor.guest.port import Guest
from torpor.layers.manifest import Manifest
from torpor.model import MemoryChoice, OnTimeout, SandboxInfo, SandboxState, Stillness
from torpor.model_contexts import context_of
from torpor.model_memory import Policy
from torpor.model_quiesce import QuiesceReport, QuiesceSpec
from torpor.model_volumes import VolumeMount, VolumesMode
from torpor.sandboxes import acts, birth, capture, comeback
from torpor.sandboxes import folder as files
from torpor.sandboxes.asked import Asked, deleted, outcome, stopping
from torpor.sandboxes.endings import verdict
from torpor.sandboxes.lifecycle import WITH_MACHINE, require_running
from torpor.sandboxes.machine import SandboxMachine
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.quiescing import rehearse
from torpor.sandboxes.volume_attach import mount_again
from torpor.templates import Template
from torpor.vmm.base import Vmm

T = TypeVar("T")
S = SandboxState

_DELETE = "delete"
_RETRY = timedelta(seconds=30)
"""An expiry or a sleep that failed is tried again after this."""
_BY_ITSELF_AWAKE = frozenset({S.HIBERNATED, S.HIBERNATING, S.WAKING})
"""States from which a request for the guest wakes the machine."""


class SandboxTask:
    """Owns one sandbox's life."""

    def __init__(self, parts: Parts, row: SandboxRow, *, vmm: Vmm | None = None) -> None:
        self._parts = parts
        self._tasks = Supervisor(parts.report)
        self.machine = SandboxMachine(parts, row, self._tasks, vmm)
        self._queue: asyncio.Queue[Asked | Vmm | None] = asyncio.Queue()
        self._current: asyncio.Task[Any] | None = None
        self._doomed = False
        self._watched: Vmm | None = None
        self._users = 0
        self._closed = False
        self._falls_asleep = False
        self._again_at: datetime | None = None
        self._worked_at = parts.clock.now()

    @property
    def info(self) -> SandboxInfo:
        """What is so about the sandbox now."""
        return self.machine.info

    def start(self) -> None:
        """Begin to serve requests."""
        self._tasks.launch(self._run(), name=f"sandbox {self.info.id}")
        self._watch()

    def connect(self) -> None:
        """Connect to the guest of an adopted machine, so that its programs reach their memory again."""

        async def work() -> None:
            with contextlib.suppress(
                GuestFailed, VmmFailed
            ):  # the next who needs the guest tries again
                await self.machine.guest()

        self._tasks.launch(work(), name=f"connect {self.info.id}")

    async def aclose(self) -> None:
        """Stop serving; the machine goes on. What was under way is finished or undone by the next daemon."""
        self._closed = True
        await self._tasks.aclose()
        self._refuse_rest()
        await self.machine.drop_guest()
        if self.machine.vmm is not None:
            await self.machine.vmm.aclose()

    # ---- what callers ask ----

    async def create_cold(
        self,
        template: Template,
        env: Mapping[str, str],
        mounts: Sequence[VolumeMount] = (),
        still: Stillness | None = None,
    ) -> SandboxInfo:
        """Boot the machine of a row that is `creating`."""
        return await self._changed(
            "create", lambda: birth.create_cold(self.machine, template, env, mounts, still)
        )

    async def create_from(
        self,
        manifest: Manifest,
        env: Mapping[str, str],
        reason: birth.RenewalReason,
        mounts: Sequence[VolumeMount] = (),
        volumes: VolumesMode | None = None,
        still: Stillness | None = None,
    ) -> SandboxInfo:
        """Begin the machine of a row that is `creating` from a snapshot."""
        return await self._changed(
            "create",
            lambda: birth.create_from(self.machine, manifest, env, reason, mounts, volumes, still),
        )

    async def pause(self) -> SandboxInfo:
        """Stop the vCPUs."""
        return await self._changed("pause", lambda: acts.pause(self.machine))

    async def resume(self) -> SandboxInfo:
        """Let the vCPUs run on."""
        return await self._changed("resume", lambda: acts.resume(self.machine))

    async def snapshot(self, wish: capture.Wish) -> Manifest:
        """Take a snapshot; the sandbox goes on as it was, or sleeps on."""
        return await self._ask("snapshot", lambda: acts.snapshot(self.machine, wish))

    async def hibernate(self, wish: capture.Wish = comeback.SLEEP) -> SandboxInfo:
        """Snapshot the sandbox and give its CPU and RAM back."""
        return await self._changed("hibernate", lambda: comeback.hibernate(self.machine, wish))

    async def test_quiesce(self, spec: QuiesceSpec) -> QuiesceReport:
        """Bring the machine's programs to rest and let them go on, without a snapshot."""
        return await self._ask("test of quiescing", lambda: self._test_quiesce(spec))

    async def wake(self) -> SandboxInfo:
        """Let a hibernated sandbox go on."""
        return await self._changed("wake", self._wake)

    async def rollback(
        self,
        manifest: Manifest,
        memory: MemoryChoice = "ram",
        volumes: VolumesMode | None = None,
        *,
        agent_memory: Policy | None = None,
        since_generation: int | None = None,
    ) -> SandboxInfo:
        """Put the sandbox back to a snapshot; without `agent_memory`, as the rollback that is made again said."""
        return await self._changed(
            "rollback",
            lambda: comeback.rollback(
                self.machine,
                manifest,
                memory,
                volumes,
                agent_memory=agent_memory,
                since_generation=since_generation,
            ),
        )

    async def rollback_again(
        self, manifest: Manifest, memory: MemoryChoice, volumes: VolumesMode | None
    ) -> None:
        """Make the rollback again during which a daemon died; if it cannot be, the sandbox is `failed`."""
        await self._changed(
            "rollback",
            lambda: comeback.rollback_again(self.machine, manifest, memory, volumes),
        )

    async def with_machine(
        self, name: str, work: Callable[[SandboxMachine], Coroutine[Any, Any, T]]
    ) -> T:
        """Do `work` on the machine when it is its turn."""
        return await self._ask(name, lambda: work(self.machine))

    async def set_ttl(self, ttl_seconds: int | None, on_timeout: OnTimeout | None) -> SandboxInfo:
        """Set the time to live, counted from now."""
        return await self._changed(
            "set ttl", lambda: acts.set_ttl(self.machine, ttl_seconds, on_timeout)
        )

    async def set_idle(self, idle_seconds: int | None) -> SandboxInfo:
        """Set after how long without work the sandbox hibernates by itself."""
        return await self._changed(
            "set idle",
            lambda: self.machine.save(self.machine.row.with_info(idle_seconds=idle_seconds)),
        )

    @property
    def is_busy(self) -> bool:
        """Whether it does something now."""
        return self._current is not None or not self._queue.empty()

    async def go_on(self) -> None:
        """Let the machine run on if it stopped by itself because the disk was full, once there is room."""
        await self._ask("go on", lambda: acts.go_on(self.machine))

    async def delete(self) -> SandboxInfo:
        """End and remove the sandbox, whatever it does now; what it does is broken off."""
        self._doomed = True
        if self._current is not None:
            self._current.cancel()
        return await self._changed(_DELETE, self._delete)

    @contextlib.asynccontextmanager
    async def guest(self) -> AsyncIterator[Guest]:
        """Enter with the connected guest; a hibernated sandbox is woken for it."""
        self._users += 1
        try:
            if self.info.state in _BY_ITSELF_AWAKE or self._falls_asleep:
                await self._parts.look_at_host()
                await self.wake()
            acts.check_running(self.machine)
            generation = self.info.generation
            try:
                found = await self._connected(generation)
                if found.info.instance != self.machine.boot:
                    await self.with_machine("mount volumes", mount_again)
                yield found
            except GuestUnreachable as exc:
                if self.info.generation == generation and self.info.state not in _BY_ITSELF_AWAKE:
                    raise
                raise GenerationChanged(
                    f"sandbox {self.info.id} was put back or slept meanwhile; what was asked of it is void",
                    hint="ask again: it is another point of its life now",
                    sandbox_id=self.info.id,
                    generation=self.info.generation,
                ) from exc
        finally:
            self._users -= 1
            self._worked_at = self._parts.clock.now()
            self._queue_tick()

    async def _connected(self, generation: int) -> Guest:
        """Return the guest, if it is still that of this life: what begins another connects to it first."""
        guest = await self.machine.guest()
        acts.check_running(self.machine)
        if self.info.generation != generation:
            raise GuestUnreachable(f"sandbox {self.info.id} began another life")
        return guest

    # ---- the task ----

    async def _changed(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> SandboxInfo:
        if self.info.state is not S.DELETED:
            await self._ask(name, work)
        return self.info

    async def _ask(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._closed:
            raise stopping(self.info, name)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(Asked(work, name, answer))
        return await asyncio.shield(answer)

    def _queue_tick(self) -> None:
        """Let the task look at its deadlines again."""
        if self.info.idle_seconds is not None:
            self._queue.put_nowait(None)

    async def _run(self) -> None:
        while self.info.state is not S.DELETED:
            try:
                async with asyncio.timeout(self._seconds_to_deadline()):
                    item = await self._queue.get()
            except TimeoutError:
                await self._deadline()
                continue
            if isinstance(item, Asked):
                await self._perform(item)
            elif item is not None and item is self.machine.vmm:
                await self._noted_end(item)
        self._refuse_rest()

    def _refuse_rest(self) -> None:
        """Answer what is still in the queue, which nobody serves any more."""
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, Asked):
                self._refuse(item)

    def _refuse(self, request: Asked) -> None:
        """Answer what is served no more; a delete of what is deleted is what was wanted."""
        if self.info.state is not S.DELETED:
            request.answer.set_exception(stopping(self.info, request.name))
        elif request.name == _DELETE:
            request.answer.set_result(None)
        else:
            request.answer.set_exception(deleted(self.info, request.name))

    async def _perform(self, request: Asked) -> None:
        if self._doomed and request.name != _DELETE:
            request.answer.set_exception(deleted(self.info, request.name))
            return
        task = self._tasks.spawn(
            outcome(request.work()),
            name=f"{request.name} {self.info.id}",
            context=request.context,
        )
        self._current = None if request.name == _DELETE else task
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            self._refuse(request)
            raise
        finally:
            self._current = None
        if task.cancelled():  # only a delete breaks work off
            request.answer.set_exception(deleted(self.info, request.name))
            return
        value, error = task.result()
        if error is None:
            request.answer.set_result(value)
        else:
            request.answer.set_exception(error)
        self._watch()

    def _watch(self) -> None:
        """Watch over the machine's process, once each."""
        vmm = self.machine.vmm
        if vmm is None or vmm is self._watched:
            return
        self._watched = vmm

        async def watch() -> None:
            await vmm.wait()
            self._queue.put_nowait(vmm)

        self._tasks.launch(watch(), name=f"watch {self.info.id}")

    # ---- deadlines ----

    def _seconds_to_deadline(self) -> float | None:
        due = min(
            (at for at in (self._expires_at(), self._sleeps_at()) if at is not None), default=None
        )
        if due is not None and self._again_at is not None:
            due = max(due, self._again_at)
        return None if due is None else max(0.0, (due - self._parts.clock.now()).total_seconds())

    def _expires_at(self) -> datetime | None:
        if self.info.state is S.DELETING:  # a delete that failed half-way is taken up again
            return self._again_at
        return None if self._doomed else self.info.expires_at

    def _sleeps_at(self) -> datetime | None:
        idle = self.info.idle_seconds
        if idle is None or self._users or self._doomed or self.info.state is not S.RUNNING:
            return None
        return self._worked_at + timedelta(seconds=idle)

    async def _deadline(self) -> None:
        now = self._parts.clock.now()
        expires, sleeps = self._expires_at(), self._sleeps_at()
        self._again_at = None
        try:
            if expires is not None and expires <= now:
                if self.info.on_timeout == "hibernate" and self.info.state is not S.DELETING:
                    await self._by_itself("expiry", self._expire_asleep())
                else:
                    await self._delete()
            elif sleeps is not None and sleeps <= now:
                await self._by_itself("sleep", self._fall_asleep())
        except Exception as exc:  # noqa: BLE001 - whatever it is, this sandbox is still to be served
            self._parts.report(f"deadline of {self.info.id}", exc)
            self._again_at = now + _RETRY
        self._watch()

    async def _by_itself(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Do what nobody asked for, so that a delete can break it off."""
        task = self._current = self._tasks.spawn(outcome(work), name=f"{name} {self.info.id}")
        try:
            await asyncio.wait({task})
        finally:
            self._current = None
        if not task.cancelled():
            _, error = task.result()
            if error is not None:
                raise error

    async def _expire_asleep(self) -> None:
        """Hibernate, once nobody works on the sandbox who forbids it."""
        if self.info.state in (S.RUNNING, S.PAUSED):
            if self._parts.claims.forbids(self.info.id, "hibernate"):
                self._again_at = self._parts.clock.now() + _RETRY
                return
            await comeback.hibernate(self.machine)
        row = replace(self.machine.row, ttl_left=None)
        await self.machine.save(row.with_info(expires_at=None, ttl_seconds=None))

    async def _fall_asleep(self) -> None:
        """Hibernate, unless a command (no idle terminal) still runs in the machine or somebody works on the sandbox who forbids it."""
        guest = await self.machine.guest()
        if any(
            # a context waits for code to run, and an idle terminal for somebody
            one.state == "running" and context_of(one) is None and not one.is_idle
            for one in await guest.exec_list()
        ):
            self._worked_at = self._parts.clock.now()
            return
        if self._parts.claims.forbids(self.info.id, "hibernate"):
            self._worked_at = self._parts.clock.now()
            return
        if not self._users:
            self._falls_asleep = True  # who comes from now on wakes it, also before the row says so
            try:
                await comeback.hibernate(self.machine)
            finally:
                self._falls_asleep = False

    # ---- what else it does ----

    async def _noted_end(self, vmm: Vmm) -> None:
        """Write down that the machine ended by itself: `stopped` if it powered off, else `failed`."""
        m = self.machine
        try:
            await m.drop_guest()
            if self.info.state in WITH_MACHINE:
                state, error = await asyncio.to_thread(verdict, self._parts, self.info)
                await self._parts.driver.sweep(m.folder)  # what it had beside its process
                await asyncio.to_thread(files.release_machine, m.folder)
                await m.move(state, error=error)
            m.vmm = None
            await vmm.aclose()
        except Exception as exc:  # noqa: BLE001 - such as a full disk: this sandbox is still to be served
            self._parts.report(f"end of {self.info.id}", exc)
            self._tasks.launch(self._note_again(vmm), name=f"note the end of {self.info.id}")

    async def _note_again(self, vmm: Vmm) -> None:
        await asyncio.sleep(_RETRY.total_seconds())
        self._queue.put_nowait(vmm)

    async def _test_quiesce(self, spec: QuiesceSpec) -> QuiesceReport:
        require_running(self.info.id, self.info.state)
        return await rehearse(await self.machine.guest(), spec)

    async def _wake(self) -> None:
        await comeback.wake(self.machine)
        self._worked_at = self._parts.clock.now()

    async def _delete(self) -> None:
        m = self.machine
        self._doomed = True
        if self.info.state is not S.DELETING:
            try:
                await m.move(S.DELETING)
            except BaseException:
                self._doomed = False  # nothing was begun
                raise
        await acts.delete(m)

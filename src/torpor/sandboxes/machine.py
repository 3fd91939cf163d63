"""`SandboxMachine`: one sandbox's row, machine and guest, and the small steps that every act is made of.

Only the sandbox's own task calls what changes it (see `task`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from torpor.base.aio import Supervisor, finish
from torpor.base.units import GIB
from torpor.db.sandboxes import MachineLayers, SandboxRow
from torpor.errors import GuestFailed, GuestUnreachable, TorporError, VmmFailed
from torpor.guest.port import Guest
from torpor.layers.manifest import Manifest
from torpor.model import SandboxInfo, SandboxState
from torpor.sandboxes import folder as files
from torpor.sandboxes.lifecycle import TIME_RUNS, check_move
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.room import image_of
from torpor.templates import Template
from torpor.vmm.base import Disk, MachineSpec, SavedMachine, Vmm, VolumeDisk

T = TypeVar("T")

CONNECT_S = 30.0
_SAVE_S = 60.0


class SandboxMachine:
    """What a sandbox is made of now."""

    def __init__(
        self, parts: Parts, row: SandboxRow, tasks: Supervisor, vmm: Vmm | None = None
    ) -> None:
        self.parts = parts
        self.row = row
        self.vmm = vmm
        self.folder = files.folder_of(parts.home, row.info.id)
        self.volumes: tuple[VolumeDisk, ...] = ()
        """The volumes that its VMM is started with."""
        self.boot: str | None = None if vmm is None else ""
        """The agent (`GuestInfo.instance`) under which its volumes are known to be mounted; None: the first that is met."""
        self._tasks = tasks
        self._guest: Guest | None = None
        self._connecting = asyncio.Lock()
        self._saving = asyncio.Lock()

    @property
    def info(self) -> SandboxInfo:
        """What is so about the sandbox now."""
        return self.row.info

    # ---- the row ----

    async def save(self, row: SandboxRow) -> None:
        """Write the row, durably, then let it be what is so; a cancelled caller leaves no half of that.

        The epoch alone is also raised by those who connect (`guest`), and never goes back.
        """
        async with self._saving:
            await self._store(replace(row, epoch=max(row.epoch, self.row.epoch)))

    async def _store(self, row: SandboxRow) -> None:
        async def store() -> None:
            await asyncio.to_thread(self.parts.rows.save, row)
            self.row = row

        await finish(store(), within_s=_SAVE_S)

    async def _raise_epoch(self) -> None:
        """Raise the epoch, and nothing else: the sandbox's task may be about to write the rest."""
        async with self._saving:
            await self._store(replace(self.row, epoch=self.row.epoch + 1))

    async def move(
        self, state: SandboxState, *, layers: MachineLayers | None = None, **changes: Any
    ) -> None:
        """Move to `state` with `changes`, in one row. Raises `WrongState` for a move that is not in the table."""
        if state is not self.info.state:
            check_move(self.info.id, self.info.state, state)
        row = self.row if layers is None else replace(self.row, layers=layers)
        await self.save(self.timed(row.with_info(state=state, **changes), state))

    async def settle(
        self, state: SandboxState, *, layers: MachineLayers | None = None, **changes: Any
    ) -> None:
        """Move to the state that a failed act leaves, also when that cannot be written down (a full disk).

        Then it is so in memory alone; the next daemon finds it by looking (see `recover`).
        """
        try:
            await self.move(state, layers=layers, **changes)
        except TorporError as exc:
            self.parts.report(f"the row of {self.info.id}", exc)
            row = self.row if layers is None else replace(self.row, layers=layers)
            self.row = self.timed(row.with_info(state=state, **changes), state)

    def timed(self, row: SandboxRow, state: SandboxState) -> SandboxRow:
        """Start or stop the lease's clock as `state` wants."""
        return timed(row, state, self.parts.clock.now())

    # ---- the machine ----

    def running_vmm(self) -> Vmm:
        """Return the VMM. Raises `VmmFailed` when there is none."""
        if self.vmm is None:
            raise VmmFailed(f"sandbox {self.info.id} has no machine", sandbox_id=self.info.id)
        return self.vmm

    def spec(self, template: Template, layers: MachineLayers) -> MachineSpec:
        """Return what a VMM for `layers` is started with."""
        assert layers.active is not None
        store = self.parts.layers
        return MachineSpec(
            vcpus=self.info.vcpus,
            ram_mib=self.info.ram_mib,
            network=self.info.network,
            kernel=template.kernel,
            initrd=template.initrd,
            cmdline=template.cmdline,
            disk=Disk(
                (template.disk, *(store.disk_path(layer) for layer in layers.disk)),
                store.disk_path(layers.active),
            ),
            volumes=self.volumes,
        )

    async def make_active(self, layers: MachineLayers) -> None:
        """Make the file of the active overlay."""
        assert layers.active is not None
        await self.parts.driver.create_overlay(
            self.parts.layers.disk_path(layers.active), self.info.disk_gib * GIB
        )

    async def start_restored(self, manifest: Manifest) -> Vmm:
        """Start the VMM of a row whose layers are those of `manifest`, paused; see `Driver.restore`."""
        template = await asyncio.to_thread(
            self.parts.templates.by_digest, self.info.template_digest
        )
        image = await image_of(self.parts, manifest)
        saved = SavedMachine(image, self.parts.layers.devices(manifest.info.id))
        self.vmm = await self.parts.driver.restore(
            self.folder, self.spec(template, self.row.layers), saved
        )
        return self.vmm

    async def end_machine(self) -> None:
        """End the VMM, if there is one, and whatever else runs in the sandbox's folder."""
        await self.drop_guest()
        if self.vmm is not None:
            vmm, self.vmm = self.vmm, None
            await vmm.aclose()
        self.boot = None
        await self.parts.driver.sweep(self.folder)
        await asyncio.to_thread(files.release_machine, self.folder)

    # ---- the guest ----

    async def guest(self, timeout_s: float = CONNECT_S) -> Guest:
        """Return the connected guest; a channel that was cut is connected anew, with a new epoch.

        Raises:
            GuestUnreachable: the agent does not answer.
            VmmFailed: the machine ended meanwhile.
        """
        async with self._connecting:
            if self._guest is not None and not self._guest.closed:
                return self._guest
            vmm = self.vmm
            if vmm is None:
                raise GuestUnreachable(
                    f"sandbox {self.info.id} has no machine", sandbox_id=self.info.id
                )
            await self.drop_guest()
            await self._raise_epoch()
            self._guest = await self.until_end(
                self.parts.connect_guest(
                    vmm.agent_socket,
                    port=vmm.agent_port,
                    epoch=self.row.epoch,
                    timeout_s=timeout_s,
                )
            )
            if self.boot is None:
                self.boot = self._guest.info.instance
            if self.parts.attend is not None and not self.info.is_clone_of_drill:
                serving = self.parts.attend(self, self._guest)
                self._tasks.launch(serving, name=f"memory socket {self.info.id}")
            return self._guest

    @property
    def connected(self) -> Guest | None:
        """The guest that was connected to last; the channel may have been cut since."""
        return self._guest

    async def guest_after_snapshot(self, guest: Guest) -> Guest:
        """Return the guest of a machine that goes on after a snapshot: `guest`, or a new connection if that cuts it."""
        return await self.guest() if self.running_vmm().snapshots_cut else guest

    async def drop_guest(self) -> None:
        """Close the channel; who uses it gets `GuestUnreachable`."""
        guest, self._guest = self._guest, None
        if guest is not None:
            with contextlib.suppress(GuestFailed):
                await guest.aclose()

    def begin(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start `work`, which ends by itself, as a task of this machine; await it for its result."""
        return self._tasks.spawn(work, name=f"{name} {self.info.id}")

    async def until_end(self, work: Awaitable[T]) -> T:
        """Await `work`, but no longer than the machine lives. Raises `VmmFailed` when the machine ends first."""
        vmm = self.running_vmm()
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


def timed(row: SandboxRow, state: SandboxState, now: datetime) -> SandboxRow:
    """Return `row` with its lease's clock started or stopped as `state` wants."""
    if state in TIME_RUNS and row.info.expires_at is None and row.ttl_left is not None:
        return replace(row, ttl_left=None).with_info(expires_at=now + row.ttl_left)
    if state not in TIME_RUNS and row.info.expires_at is not None:
        left = max(row.info.expires_at - now, timedelta(0))
        return replace(row, ttl_left=left).with_info(expires_at=None)
    return row


async def _quiet(work: Awaitable[T]) -> T | Exception:
    """Return a failure instead of raising it, so that the supervisor does not report what the caller gets."""
    try:
        return await work
    except Exception as exc:  # noqa: BLE001 - handed to the caller, who raises it
        return exc

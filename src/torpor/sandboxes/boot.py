"""Booting a template's own disk once, for the template builder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from torpor.base.aio import finish
from torpor.errors import GuestUnreachable, VmmFailed
from torpor.guest.port import Guest
from torpor.model import Network
from torpor.sandboxes import folder as files
from torpor.sandboxes.parts import ConnectGuest
from torpor.templates.store import Template
from torpor.vmm.base import Disk, Driver, MachineSpec, Vmm

_BOOT_S = 300.0
_POWER_OFF_S = 90.0


class TemplateBooter:
    """Boots a template's image read-write and hands out its guest; the machine is gone afterwards."""

    def __init__(self, driver: Driver, connect_guest: ConnectGuest) -> None:
        self._driver = driver
        self._connect_guest = connect_guest
        self.memory_for_boot: Callable[[int], AbstractAsyncContextManager[None]] = lambda _: (
            contextlib.nullcontext()
        )
        """See `Parts.memory_for_boot`."""

    @contextlib.asynccontextmanager
    async def __call__(
        self, image: Template, work: Path, *, network: Network = "none"
    ) -> AsyncIterator[Guest]:
        """Boot `image.disk` (raw, written to) in folder `work`; the body asks the guest to power off.

        On leaving, the machine has ended: by itself, or, when the body failed, by force.

        Raises:
            InsufficientResources: the host has no memory for it.
            GuestUnreachable: the agent did not answer; the message has the end of the console.
            VmmFailed: QEMU did not start, or the machine did not power off in time.
        """
        async with (
            self.memory_for_boot(image.info.ram_mib),
            self._booted(image, work, network) as guest,
        ):
            yield guest

    @contextlib.asynccontextmanager
    async def _booted(
        self, image: Template, folder: Path, network: Network
    ) -> AsyncIterator[Guest]:
        await asyncio.to_thread(files.make_folder, folder)
        spec = MachineSpec(
            vcpus=image.info.vcpus,
            ram_mib=image.info.ram_mib,
            network=network,
            kernel=image.kernel,
            initrd=image.initrd,
            cmdline=image.cmdline,
            disk=Disk((), image.disk),
        )
        vmm = await self._driver.start(folder, spec)
        try:
            guest = await self._connected(vmm, folder)
            try:
                yield guest
            finally:
                await guest.aclose()
            await self._powered_off(vmm)
        finally:
            await vmm.aclose()
            await finish(self._driver.sweep(folder), within_s=30.0)

    async def sweep(self, work: Path) -> None:
        """End whatever machine still runs in `work`."""
        await self._driver.sweep(work)

    async def _connected(self, vmm: Vmm, folder: Path) -> Guest:
        try:
            return await self._connect_guest(
                vmm.agent_socket, port=vmm.agent_port, epoch=1, timeout_s=_BOOT_S
            )
        except GuestUnreachable as exc:
            tail = await asyncio.to_thread(files.console_tail, self._driver.console(folder))
            raise GuestUnreachable(
                f"{exc.message}; its console ends with:\n{tail}", hint=exc.hint
            ) from exc

    @staticmethod
    async def _powered_off(vmm: Vmm) -> None:
        try:
            async with asyncio.timeout(_POWER_OFF_S):
                await vmm.wait()
        except TimeoutError as exc:
            raise VmmFailed(f"the template did not power off within {_POWER_OFF_S:g} s") from exc

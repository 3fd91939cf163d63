"""A template's own booted snapshot, so that a create is a restore and no boot.

It is taken once for each template, size and kind of host: the template is booted from its clean disk, settles,
and is captured. It is a snapshot like any other, with the reason `template`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from typing_extensions import override

from torpor.base.aio import Supervisor, finish
from torpor.base.faults import reach
from torpor.base.ids import new_id
from torpor.base.units import format_bytes
from torpor.db.sandboxes import MachineLayers, SandboxRow, SandboxRows
from torpor.errors import NotFound, VmmFailed
from torpor.guest.port import Guest
from torpor.layers.manifest import Manifest
from torpor.model import ExecId, ExecSpec, SandboxId, SandboxInfo, SandboxState
from torpor.sandboxes import folder as files
from torpor.sandboxes.admission import Sizes
from torpor.sandboxes.birth import renewal
from torpor.sandboxes.capture import Wish, take
from torpor.sandboxes.fit import misfit
from torpor.sandboxes.machine import SandboxMachine
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.room import image_of
from torpor.templates import Template

_log = logging.getLogger(__name__)

_SETTLE_S = 600.0
_HOSTNAME = "template"


class _NoRows(SandboxRows):
    """Rows of a machine that no user sees: nothing is written."""

    def __init__(self) -> None:
        pass

    @override
    def save(self, row: SandboxRow) -> None:
        """Write nothing."""


class WarmTemplates:
    """Finds and takes the templates' snapshots; one at a time for each template."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks = Supervisor(parts.report)

    def find(self, template: Template, sizes: Sizes) -> Manifest | None:
        """Return the snapshot that a sandbox of these sizes can begin from here, if there is one."""
        for manifest in self._parts.layers.of_template(template.info.digest):
            info = manifest.info
            if (
                (info.vcpus, info.ram_mib) == (sizes.vcpus, sizes.ram_mib)
                and info.disk_gib <= sizes.disk_gib
                and misfit(info, self._parts.host) is None
            ):
                return manifest
        return None

    async def take(self, template: Template) -> Manifest:
        """Return the snapshot for the template's own sizes, taken now if there is none.

        Raises:
            TorporError: the template does not boot or cannot be captured; no process or file is left.
        """
        info = template.info
        sizes = Sizes(info.vcpus, info.ram_mib, info.disk_gib)
        async with self._locks.setdefault(info.digest, asyncio.Lock()):
            found = self.find(template, sizes)
            if found is None:
                found = await self._take(template)
                await image_of(self._parts, found)
            return found

    async def drop_stale(self) -> None:
        """Remove the snapshots of templates that are gone; layers that others need stay."""
        for manifest in self._parts.layers.snapshots():
            if manifest.info.reason != "template":
                continue
            try:
                await asyncio.to_thread(
                    self._parts.templates.by_digest, manifest.info.template_digest
                )
            except NotFound:
                await asyncio.to_thread(self._parts.layers.remove, manifest.info.id)

    async def aclose(self) -> None:
        """End what is under way."""
        await self._tasks.aclose()

    async def _take(self, template: Template) -> Manifest:
        layers = MachineLayers(active=new_id("lyr"))
        assert layers.active is not None
        row = SandboxRow(_info(template, self._parts), layers=layers)
        m = SandboxMachine(replace(self._parts, rows=_NoRows()), row, self._tasks)
        with self._parts.pins.held(layers.active):
            async with self._parts.memory_for_boot(template.info.ram_mib):
                try:
                    return await self._captured(template, m)
                finally:
                    await finish(_clear(m), within_s=60.0)

    async def _captured(self, template: Template, m: SandboxMachine) -> Manifest:
        layers = m.row.layers
        await asyncio.to_thread(files.make_folder, m.folder)
        await m.make_active(layers)
        m.vmm = await self._parts.driver.start(m.folder, m.spec(template, layers))
        guest = await m.guest(self._parts.boot_timeout_s)
        await m.until_end(guest.settle(timeout_s=_SETTLE_S))
        reach("warm.settled")
        await self._made_small(template, m)
        await m.until_end(_rehearse(m, guest))
        return await take(m, Wish(reason="template", go_on=False), paused_before=False)

    async def _made_small(self, template: Template, m: SandboxMachine) -> None:
        """Have the guest give back what it does not use; the snapshot is larger where it does not."""
        vmm, name = m.running_vmm(), template.info.name
        before = await asyncio.to_thread(vmm.process.usage)
        try:
            await m.until_end(vmm.give_back_memory())
        except VmmFailed as exc:
            if not vmm.process.alive():
                raise
            self._parts.report(f"the snapshot of template {name} is larger than it need be", exc)
        after = await asyncio.to_thread(vmm.process.usage)
        if before is not None and after is not None and after.private_bytes < before.private_bytes:
            given = format_bytes(before.private_bytes - after.private_bytes)
            _log.info("before its snapshot the machine of template %s gave back %s", name, given)


async def _rehearse(m: SandboxMachine, guest: Guest) -> None:
    """Do once what every machine of this snapshot does first, so that it finds in memory what it needs for it.

    Settling emptied the page cache. A create from a snapshot without this took twice the time: each read the
    same programs from its disk again. What the renewal made is made anew in each.
    """
    await guest.renew(renewal(m, "create", hostname=_HOSTNAME))
    spec = ExecSpec(command="true")
    async with guest.exec_run(ExecId(new_id("exec")), spec) as events:
        async for _ in events:
            pass
    await guest.exec_forget()  # what a template's builder ran is nobody's


async def _clear(m: SandboxMachine) -> None:
    await m.end_machine()
    await files.remove_folder(m.folder)


def _info(template: Template, parts: Parts) -> SandboxInfo:
    info = template.info
    return SandboxInfo(
        id=SandboxId(new_id("sbx")),
        state=SandboxState.RUNNING,
        template=info.name,
        template_digest=info.digest,
        vcpus=info.vcpus,
        ram_mib=info.ram_mib,
        disk_gib=info.disk_gib,
        network="user" if "user" in parts.host.networks else "none",
        env_names=(),
        metadata={},
        ttl_seconds=None,
        on_timeout="delete",
        created_at=parts.clock.now(),
        expires_at=None,
    )

"""After a daemon's death: compare rows with processes and files, and finish or undo.

Nothing that a user was told is lost: a machine that runs is adopted, one that ended is written down as
ended. What was never acknowledged is undone or finished: a create that was under way becomes `failed` and leaves
nothing but its row, a snapshot is whole or absent, a delete goes on, a wake that was not confirmed sleeps again,
a rollback is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace

from torpor.db.sandboxes import MachineLayers, SandboxRow
from torpor.errors import GuestFailed, NotFound, TorporError
from torpor.layers.manifest import Manifest
from torpor.model import MemoryChoice, SandboxState, SnapshotId
from torpor.model_volumes import VolumesMode
from torpor.sandboxes import folder as files
from torpor.sandboxes.capture import switched
from torpor.sandboxes.endings import verdict
from torpor.sandboxes.lifecycle import WITH_MACHINE
from torpor.sandboxes.machine import timed
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.task import SandboxTask
from torpor.sandboxes.volume_attach import release_all
from torpor.sandboxes.volume_attach import settle as settle_volumes
from torpor.sandboxes.volume_capture import check_mode
from torpor.vmm.base import Vmm

S = SandboxState


@dataclass(frozen=True, slots=True)
class Recovered:
    """A sandbox's task, not started yet, and what it has still to do."""

    task: SandboxTask
    rollback_to: Manifest | None = None
    memory: MemoryChoice = "ram"
    volumes: VolumesMode | None = None
    """What that rollback does with the volumes."""


async def recover(parts: Parts) -> list[Recovered]:
    """Bring rows, processes and files into agreement; return every sandbox that there is."""
    rows = await asyncio.to_thread(parts.rows.living)
    known: set[str] = {row.info.id for row in rows}
    await _remove_strangers(parts, known)
    for volume in parts.volumes.shelf.all():
        for owner in {*(h.sandbox_id for h in volume.holders), volume.bound_to}:
            if owner is None or owner in known:
                continue
            if await parts.machine_is_gone(owner):  # else it holds on, whoever it is
                await release_all(parts, owner)
    return [found for row in rows if (found := await _recovered(parts, row)) is not None]


async def _recovered(parts: Parts, row: SandboxRow) -> Recovered | None:
    try:
        return await _by_state(parts, row)
    except Exception as exc:  # noqa: BLE001 - also what a VMM answered that nobody thought of
        # one sandbox that cannot be recovered must not keep the others from it
        parts.report(f"recovery of {row.info.id}", exc)
        if row.info.state is S.DELETING:
            return Recovered(SandboxTask(parts, row))
        try:
            await _end(parts, row)  # a machine that nobody serves does not run on
        except Exception as again:  # noqa: BLE001 - as above
            parts.report(f"end of {row.info.id}", again)
        why = exc.message if isinstance(exc, TorporError) else repr(exc)
        return Recovered(
            SandboxTask(parts, await _saved(parts, row, S.FAILED, f"not recovered: {why}"))
        )


async def _by_state(parts: Parts, row: SandboxRow) -> Recovered | None:
    folder = files.folder_of(parts.home, row.info.id)
    match row.info.state:
        case S.CREATING:
            await _end(parts, row)
            await release_all(parts, row.info.id)
            await files.remove_folder(folder)
            row = replace(row, layers=MachineLayers())
            return Recovered(
                SandboxTask(
                    parts, await _saved(parts, row, S.FAILED, "the daemon ended during the create")
                )
            )
        case S.DELETING:
            await _end(parts, row)
            await release_all(parts, row.info.id)
            await files.remove_folder(folder)
            row = row.with_info(state=S.DELETED, expires_at=None)
            await asyncio.to_thread(parts.rows.mark_deleted, row, parts.clock.now())
            return None
        case S.WAKING:
            await _end(parts, row)
            return Recovered(SandboxTask(parts, await _saved(parts, row, S.HIBERNATED, None)))
        case S.RESTORING:
            await _end(parts, row)
            target = parts.layers.get(SnapshotId(row.info.parent_snapshot or ""))
            memory: MemoryChoice = "ram" if row.layers.image is not None else "cold"
            mode = check_mode(row.layers.volumes_mode)
            return Recovered(
                SandboxTask(parts, row), rollback_to=target, memory=memory, volumes=mode
            )
        case state if state in WITH_MACHINE:
            return Recovered(await _adopted(parts, row))
        case _:
            await _end(parts, row)
            return Recovered(SandboxTask(parts, row))


async def _adopted(parts: Parts, row: SandboxRow) -> SandboxTask:
    taken = _taken(parts, row)
    if taken is not None and row.info.state is S.HIBERNATING:
        await _end(parts, row)  # it slept already, all but in name
        row = row.with_info(parent_snapshot=taken.info.id)
        return SandboxTask(parts, await _saved(parts, row, S.HIBERNATED, None))
    folder = files.folder_of(parts.home, row.info.id)
    vmm = await parts.driver.adopt(folder)
    status = "ended" if vmm is None else await vmm.status()
    if vmm is None or status == "ended":
        state, error = await asyncio.to_thread(verdict, parts, row.info)
        await _end(parts, row)
        return SandboxTask(parts, await _saved(parts, row, state, error))
    row = await _noted(row, vmm, taken)
    stood_still = False
    if status == "paused" and row.info.state not in (S.PAUSED, S.PAUSING):
        await vmm.resume()  # it was being captured, or resumed
        status, stood_still = "running", True
    task = SandboxTask(
        parts,
        await _saved(parts, row, S.PAUSED if status == "paused" else S.RUNNING, None),
        vmm=vmm,
    )
    if stood_still or (status == "running" and row.layers.taking is not None):
        with contextlib.suppress(GuestFailed):  # then the dead man in the guest thaws
            guest = await task.machine.guest()
            await guest.thaw()
            await guest.quiesce_release(None, "failed")
            await guest.set_clock(parts.clock.now())
    if row.layers.taking is not None:
        await task.machine.save(
            replace(task.machine.row, layers=replace(task.machine.row.layers, taking=None))
        )
    if status == "running":
        try:
            await settle_volumes(task.machine)
        except TorporError as exc:  # the machine runs on all the same
            parts.report(f"volumes of {row.info.id}", exc)
    return task


def _taken(parts: Parts, row: SandboxRow) -> Manifest | None:
    """Return the snapshot that was being taken, if it came to be."""
    if row.layers.taking is None:
        return None
    try:
        return parts.layers.get(row.layers.taking)
    except NotFound:
        return None


async def _noted(row: SandboxRow, vmm: Vmm, taken: Manifest | None) -> SandboxRow:
    """Write into the row which overlay is written to, and the snapshot that was taken."""
    row = replace(row, layers=await switched(vmm, row.layers))
    if taken is not None and taken.info.id != row.info.parent_snapshot:
        ram = tuple(ref.id for ref in taken.ram)
        layers = replace(row.layers, ram=ram, session=(*row.layers.session, ram[-1]))
        row = replace(row, layers=layers).with_info(parent_snapshot=taken.info.id)
    return row


async def _end(parts: Parts, row: SandboxRow) -> None:
    folder = files.folder_of(parts.home, row.info.id)
    await parts.driver.sweep(folder)
    await asyncio.to_thread(files.release_machine, folder)


async def _saved(
    parts: Parts, row: SandboxRow, state: SandboxState, error: str | None
) -> SandboxRow:
    new = row.with_info(state=state, error=error if state is not row.info.state else row.info.error)
    new = timed(new, state, parts.clock.now())
    await asyncio.to_thread(parts.rows.save, new)
    return new


async def _remove_strangers(parts: Parts, known: set[str]) -> None:
    """Remove the folders, and end the machines, that no row knows."""
    for folder in await asyncio.to_thread(lambda: sorted(parts.home.sandboxes.iterdir())):
        if folder.name in known:
            continue
        try:
            await parts.driver.sweep(folder)
            await files.remove_folder(folder)
        except (TorporError, OSError) as exc:
            parts.report(f"removal of {folder}", exc)

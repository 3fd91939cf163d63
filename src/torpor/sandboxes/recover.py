"""After a daemon's death: compare rows with processes and folders, and finish or undo.

Nothing that a user was told is lost: a machine that runs is adopted, one that ended is written down as
ended. What was never acknowledged is undone: a create that was under way becomes `failed` and leaves
nothing but its row. A delete that had begun is finished.
"""

from __future__ import annotations

import asyncio

from torpor.db.sandboxes import SandboxRow
from torpor.errors import TorporError
from torpor.model import SandboxState
from torpor.sandboxes import folder as files
from torpor.sandboxes.lifecycle import WITH_MACHINE
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.task import SandboxTask, verdict
from torpor.vmm.base import Vmm

S = SandboxState


async def recover(parts: Parts) -> list[SandboxTask]:
    """Bring rows, processes and folders into agreement; return a task, not started, for each sandbox."""
    rows = await asyncio.to_thread(parts.rows.living)
    await _remove_strangers(parts, {row.info.id for row in rows})
    return [task for row in rows if (task := await _recovered(parts, row)) is not None]


async def _recovered(parts: Parts, row: SandboxRow) -> SandboxTask | None:
    folder = files.folder_of(parts.home, row.info.id)
    try:
        match row.info.state:
            case S.CREATING:
                await parts.driver.sweep(folder)
                await files.remove_folder(folder)
                return SandboxTask(
                    parts, await _saved(parts, row, S.FAILED, "the daemon ended during the create")
                )
            case S.DELETING:
                await parts.driver.sweep(folder)
                await files.remove_folder(folder)
                await asyncio.to_thread(
                    parts.rows.mark_deleted,
                    row.with_info(state=S.DELETED, expires_at=None),
                    parts.clock.now(),
                )
                return None
            case state if state in WITH_MACHINE:
                return await _adopted(parts, row)
            case _:
                await parts.driver.sweep(folder)
                return SandboxTask(parts, row)
    except TorporError as exc:
        # one sandbox that cannot be recovered must not keep the others from it
        parts.report(f"recovery of {row.info.id}", exc)
        if row.info.state is S.DELETING:
            return SandboxTask(parts, row)
        return SandboxTask(
            parts, await _saved(parts, row, S.FAILED, f"not recovered: {exc.message}")
        )


async def _adopted(parts: Parts, row: SandboxRow) -> SandboxTask:
    folder = files.folder_of(parts.home, row.info.id)
    vmm = await parts.driver.adopt(folder)
    status = "ended" if vmm is None else await vmm.status()
    if vmm is None or status == "ended":
        await parts.driver.sweep(folder)
        state, error = await asyncio.to_thread(verdict, parts, row.info)
        await asyncio.to_thread(files.release_machine, folder)
        return SandboxTask(parts, await _saved(parts, row, state, error))
    return SandboxTask(parts, await _seen(parts, row, vmm, paused=status == "paused"), vmm=vmm)


async def _seen(parts: Parts, row: SandboxRow, vmm: Vmm, *, paused: bool) -> SandboxRow:
    """Write down what the machine does, and finish a resume that was under way."""
    if paused and row.info.state is S.RESUMING:
        await vmm.resume()
        paused = False
    return await _saved(parts, row, S.PAUSED if paused else S.RUNNING, None)


async def _saved(
    parts: Parts, row: SandboxRow, state: SandboxState, error: str | None
) -> SandboxRow:
    new = row.with_info(state=state, error=error)
    if new != row:
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
        except TorporError as exc:
            parts.report(f"removal of {folder}", exc)

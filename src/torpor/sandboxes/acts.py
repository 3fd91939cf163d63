"""The smaller acts of a sandbox's task: pause and resume, snapshots of one that lives, its lease, its delete.

The larger ones are in `birth`, `capture` and `comeback`. All of them are called by the sandbox's own task alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import timedelta

from torpor.base.aio import finish
from torpor.base.faults import reach
from torpor.errors import Conflict, GuestFailed, VmmFailed, WrongState
from torpor.layers.manifest import Manifest
from torpor.model import OnTimeout, SandboxState
from torpor.sandboxes import capture, comeback
from torpor.sandboxes import folder as files
from torpor.sandboxes.lifecycle import check_move, require_running
from torpor.sandboxes.machine import SandboxMachine
from torpor.sandboxes.room import check_start
from torpor.sandboxes.volume_attach import release_all
from torpor.sandboxes.volume_capture import still_volumes
from torpor.vmm.base import Vmm

S = SandboxState

_LAST_WORDS_S = 10.0
"""For a machine that is deleted to write to its volumes what it has not written yet."""


async def pause(m: SandboxMachine) -> None:
    """Stop the vCPUs."""
    if m.info.state is S.PAUSED:
        return
    check_move(m.info.id, m.info.state, S.PAUSING)
    vmm = m.running_vmm()
    await m.move(S.PAUSING)
    await m.drop_guest()  # a paused guest is silent
    reach("pause.intent")
    try:
        await vmm.pause()
    except BaseException:
        await finish(_settle_state(m, vmm, S.RUNNING), within_s=15.0)
        raise
    reach("pause.acted")
    await m.move(S.PAUSED)


async def resume(m: SandboxMachine) -> None:
    """Let the vCPUs run on."""
    if m.info.state is S.RUNNING:
        return
    check_move(m.info.id, m.info.state, S.RESUMING)
    vmm = m.running_vmm()
    await m.move(S.RESUMING)
    reach("resume.intent")
    try:
        await vmm.resume()
        reach("resume.acted")
        with contextlib.suppress(GuestFailed):
            # before anyone runs a command: the guest's clock stood still
            guest = await m.guest()
            await guest.set_clock(m.parts.clock.now())
    except BaseException:
        await finish(_settle_state(m, vmm, S.PAUSED), within_s=15.0)
        raise
    await m.move(S.RUNNING)


async def _settle_state(m: SandboxMachine, vmm: Vmm, before: SandboxState) -> None:
    """After a pause or resume that went wrong, write down what the machine really does; `before` if it says nothing."""
    try:
        status = await vmm.status()
    except VmmFailed:
        await m.move(before)
        return
    if status != "ended":  # its end is noted by the watcher
        await m.move(S.RUNNING if status == "running" else S.PAUSED)


async def go_on(m: SandboxMachine) -> None:
    """Let the machine run on if it stopped by itself because the disk was full, once there is room."""
    vmm = m.vmm
    if m.info.state is S.RUNNING and vmm is not None and await vmm.status() == "paused":
        await check_start(m.parts)
        await vmm.resume()


async def snapshot(m: SandboxMachine, wish: capture.Wish) -> Manifest:
    """Take a snapshot; the sandbox goes on as it was, or sleeps on."""
    parts, state = m.parts, m.info.state
    if (known := _taken_before(m, wish)) is not None:
        return known
    _check_label(m, wish.label)
    parts.quota.check(parts.layers, m.info.id)
    if state is S.HIBERNATED:
        manifest = comeback.sleeping_at(m)
        if manifest.volumes and wish.volumes != "include":
            raise WrongState(
                f"sandbox {m.info.id} is hibernated; it cannot unmount its volumes",
                hint="wake it first, or take the snapshot with volumes=include",
                sandbox_id=m.info.id,
            )
        await parts.memory_moves.follow_quietly(m.info.id)
        mark = await parts.memory_moves.mark(m.info)
        copy = capture.relabelled(m, manifest, wish, mark)
        return await asyncio.to_thread(parts.layers.duplicate, manifest, copy)
    if state not in (S.RUNNING, S.PAUSED):
        check_running(m)
    return await capture.take(m, wish, paused_before=state is S.PAUSED)


def check_running(m: SandboxMachine) -> None:
    """Raise `WrongState` unless the sandbox is running."""
    has_snapshots = bool(m.parts.layers.snapshots(m.info.id))
    require_running(m.info.id, m.info.state, has_snapshots=has_snapshots)


def _taken_before(m: SandboxMachine, wish: capture.Wish) -> Manifest | None:
    """Return the snapshot with the id that is wished for: a repeat of a request finds it carried out."""
    store, wanted = m.parts.layers, wish.snapshot_id
    if wanted is None or not store.has(wanted):
        return None
    found = store.get(wanted)
    if found.info.sandbox_id != m.info.id or found.info.label != wish.label:
        raise Conflict(
            f"there is another snapshot {wanted} already",
            hint="choose another id, or leave it out",
            snapshot_id=wanted,
        )
    return found


def _check_label(m: SandboxMachine, label: str | None) -> None:
    if label is not None and any(
        taken.info.label == label and taken.info.sandbox_id == m.info.id
        for taken in m.parts.layers.snapshots()
    ):
        raise Conflict(
            f"sandbox {m.info.id} has a snapshot with the label {label!r} already",
            hint="choose another label or delete that snapshot",
        )


async def set_ttl(m: SandboxMachine, ttl_seconds: int | None, on_timeout: OnTimeout | None) -> None:
    """Set the time to live, counted from now."""
    if m.info.state in (S.DELETING, S.DELETED):
        raise WrongState(
            f"sandbox {m.info.id} is {m.info.state}; it has no lease",
            sandbox_id=m.info.id,
        )
    left = None if ttl_seconds is None else timedelta(seconds=ttl_seconds)
    row = replace(m.row, ttl_left=left).with_info(
        ttl_seconds=ttl_seconds, on_timeout=on_timeout or m.info.on_timeout, expires_at=None
    )
    await m.save(m.timed(row, row.info.state))


async def delete(m: SandboxMachine) -> None:
    """End the machine of a sandbox that is `deleting`, and remove all that it has."""
    reach("delete.intent")
    clean = await still_volumes(m, within_s=_LAST_WORDS_S)
    await m.end_machine()
    reach("delete.ended")
    await release_all(m.parts, m.info.id, clean=clean)
    reach("delete.released")
    await files.remove_folder(m.folder)
    reach("delete.removed")
    row = m.row.with_info(state=S.DELETED, expires_at=None)
    await asyncio.to_thread(m.parts.rows.mark_deleted, row, m.parts.clock.now())
    reach("delete.outcome")
    m.row = row

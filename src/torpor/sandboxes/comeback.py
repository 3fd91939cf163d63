"""How a sandbox is put down and comes back: hibernate, wake, rollback.

Each is a row that says what is meant, the act, and a row that says what is so. A daemon that dies in between
leaves the first; `recover` finishes or undoes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

from torpor.base.aio import finish
from torpor.base.faults import reach
from torpor.base.ids import new_id
from torpor.db.sandboxes import MachineLayers
from torpor.errors import TorporError, VmmFailed, WrongState
from torpor.guest.port import Guest
from torpor.layers.manifest import Manifest
from torpor.model import BootMode, MemoryChoice, SandboxState, SnapshotId
from torpor.model_memory import Policy
from torpor.model_volumes import VolumesMode
from torpor.sandboxes import capture
from torpor.sandboxes import folder as files
from torpor.sandboxes.birth import RenewalReason, hostname_of, renewal
from torpor.sandboxes.fit import check_fits, check_network, check_vcpus
from torpor.sandboxes.lifecycle import check_move
from torpor.sandboxes.machine import SandboxMachine
from torpor.sandboxes.presence import check_files
from torpor.sandboxes.room import check_capture, check_start, image_of
from torpor.sandboxes.volume_capture import asleep, sync_volumes
from torpor.sandboxes.volume_restore import Plan, plan_return, plan_wake

S = SandboxState


SLEEP = capture.Wish(reason="hibernate", go_on=False)
"""How a sandbox falls asleep unless more is wanted."""


async def hibernate(m: SandboxMachine, wish: capture.Wish = SLEEP) -> None:
    """Snapshot the sandbox and give its CPU and RAM back. Idempotent. After a failure it is as it was."""
    if m.info.state is S.HIBERNATED:
        return
    before = m.info.state
    check_move(m.info.id, before, S.HIBERNATING)
    await check_capture(m.parts, m.running_vmm(), m.info.ram_mib)  # or nothing is touched
    await m.move(S.HIBERNATING)
    reach("hibernate.intent")
    try:
        manifest = await capture.take(m, wish, paused_before=before is S.PAUSED)
        await m.move(S.HIBERNATED)
    except BaseException:
        if m.vmm is not None:
            await finish(_awake_again(m, before), within_s=150.0)
        raise
    reach("hibernate.outcome")
    await m.end_machine()
    await asleep(m, manifest)
    try:  # while it sleeps: what wake would have to wait for
        await image_of(m.parts, manifest)
    except (TorporError, OSError) as exc:  # it sleeps all the same; wake tries again
        m.parts.report(f"RAM image of {m.info.id}", exc)


async def wake(m: SandboxMachine) -> None:
    """Let a hibernated sandbox go on at the exact instruction. Idempotent. After a failure it sleeps on."""
    if m.info.state is S.RUNNING:
        return
    whole = sleeping_at(m)
    manifest = m.parts.layers.shortened(whole)
    check_fits(manifest.info, m.parts.host, m.info.id)
    plan = plan_wake(m, manifest)
    before = m.row.layers
    layers = replace(layers_at(manifest), active=new_id("lyr"))
    # until the row says so
    with m.parts.pins.held(whole.info.id, *whole.layer_ids, *manifest.layer_ids, *layers.ids):
        await check_start(m.parts, disks_of(m, manifest))
        async with m.parts.memory_for(m.info):
            await m.move(S.WAKING, layers=layers, generation=m.info.generation + 1)
    reach("wake.intent")
    try:
        await _run(m, manifest, plan, "wake", "resume")
    except BaseException:
        await finish(_asleep_again(m, before), within_s=60.0)
        raise
    reach("wake.outcome")


async def rollback(
    m: SandboxMachine,
    manifest: Manifest,
    memory: MemoryChoice = "ram",
    volumes: VolumesMode | None = None,
    *,
    agent_memory: Policy | None = None,
    since_generation: int | None = None,
) -> None:
    """Put the sandbox back to a snapshot: same id, same identity; what came after is gone.

    With `cold` its disk is put back and boots; the snapshot's RAM is neither needed nor looked at. All that can be
    checked and made beforehand is, so that the machine is ended only when the old one can start; that its agent's
    memory has to follow, as `agent_memory` says, is written down before that. After a failure behind that point the
    sandbox is `failed` and can be rolled back again. With `since_generation` nothing is done when it was put back
    there after that generation: a repeat of a request finds it carried out.
    """
    if since_generation is not None and _is_back(m, manifest, since_generation):
        return
    if m.info.state is not S.RESTORING:  # else it is made again
        check_move(m.info.id, m.info.state, S.RESTORING)
    if manifest.info.template_digest != m.info.template_digest:
        raise WrongState(
            f"snapshot {manifest.info.id} is of another template than sandbox {m.info.id}",
            hint=f"make a new sandbox from it: torpor restore {manifest.info.id}",
        )
    if memory == "ram":
        check_fits(manifest.info, m.parts.host, m.info.id)
    else:  # it may have been another driver's
        check_network(m.info.network, m.parts.host)
        check_vcpus(manifest.info.vcpus, m.parts.host)
    m.parts.origin(manifest.info.id)  # it may have been deleted while we waited for our turn
    short = m.parts.layers.shortened(manifest)
    with m.parts.pins.held(manifest.info.id, *manifest.layer_ids, *short.layer_ids):
        plan = await plan_return(m, short, volumes, is_rollback=True)
        is_ram = memory == "ram"
        await check_files(m.parts, short, plan.points(in_ram=is_ram), devices=is_ram)
        if is_ram:
            await image_of(m.parts, manifest)
        else:
            plan.check_places()
        await check_start(m.parts, disks_of(m, short))
        manifest = short
        layers = replace(layers_at(manifest), active=new_id("lyr"), volumes_mode=volumes)
        if memory == "cold":  # which is how the row tells the next daemon, too
            layers = replace(layers, image=None, ram=())
        await sync_volumes(m)
        await m.save(replace(m.row, epoch=max(m.row.epoch, manifest.epoch)))
        async with (
            m.parts.memory_for(replace(m.info, ram_mib=manifest.info.ram_mib)),
            m.parts.memory_moves.rollback_intended(m.info, manifest.info.watermark, agent_memory),
        ):
            await m.move(
                S.RESTORING,
                layers=layers,
                parent_snapshot=manifest.info.id,
                generation=m.info.generation + 1,
                vcpus=manifest.info.vcpus,
                ram_mib=manifest.info.ram_mib,
                disk_gib=manifest.info.disk_gib,
                env_names=_env_names_at(m, manifest),
                error=None,
            )
    reach("rollback.intent")
    try:
        await m.end_machine()
        reach("rollback.ended")
        if memory == "ram":
            await _run(m, manifest, plan, "rollback", "restore")
        else:
            await _boot(m, manifest, plan)
    except BaseException as exc:
        await finish(m.end_machine(), within_s=60.0)
        if isinstance(exc, Exception):
            await m.settle(S.FAILED, error=f"rollback to {manifest.info.id} failed: {exc}")
        raise
    reach("rollback.outcome")


def disks_of(m: SandboxMachine, manifest: Manifest) -> list[Path]:
    """Return the files of a snapshot's disk, the oldest first."""
    return [m.parts.layers.disk_path(ref.id) for ref in manifest.disk]


async def rollback_again(
    m: SandboxMachine, manifest: Manifest, memory: MemoryChoice, volumes: VolumesMode | None
) -> None:
    """Make a rollback again that a daemon's death broke off; its row still says so, should this one die too.

    After a failure the sandbox is `failed`, and there is nothing that could go on as it was.
    """
    try:
        await rollback(m, manifest, memory, volumes)
    except Exception as exc:
        if m.info.state is S.RESTORING:
            await m.settle(S.FAILED, error=f"rollback to {manifest.info.id} failed: {exc}")
        raise


def _is_back(m: SandboxMachine, manifest: Manifest, since_generation: int) -> bool:
    return (
        m.info.state is S.RUNNING
        and m.info.generation > since_generation
        and m.info.parent_snapshot == manifest.info.id
    )


def sleeping_at(m: SandboxMachine) -> Manifest:
    """Return the snapshot at which a hibernated sandbox sleeps. Raises `WrongState` unless it is hibernated."""
    check_move(m.info.id, m.info.state, S.WAKING)
    assert m.info.parent_snapshot is not None
    return m.parts.layers.get(m.info.parent_snapshot)


def layers_at(manifest: Manifest) -> MachineLayers:
    """Return the layers of a machine that starts at a snapshot; its active overlay is still to be named."""
    return MachineLayers(
        disk=tuple(ref.id for ref in manifest.disk),
        image=SnapshotId(manifest.info.id),
        ram=tuple(ref.id for ref in manifest.ram),
    )


def _env_names_at(m: SandboxMachine, manifest: Manifest) -> tuple[str, ...]:
    """Return the names of the environment that the sandbox has once it is put back to `manifest`."""
    is_own = manifest.info.sandbox_id == m.info.id  # then also an old manifest, which names none
    return m.info.env_names if is_own else manifest.info.env_names


async def _run(
    m: SandboxMachine, manifest: Manifest, plan: Plan, reason: RenewalReason, boot_mode: BootMode
) -> None:
    begun = m.parts.clock.monotonic_s()
    await asyncio.to_thread(files.make_folder, m.folder)
    await m.make_active(m.row.layers)
    reach(f"{reason}.overlay")
    vmm = await plan.start(manifest)
    reach(f"{reason}.started")
    await vmm.resume()
    await _renew(m, manifest, await m.guest(), reason)
    await plan.settle()
    boot_ms = round((m.parts.clock.monotonic_s() - begun) * 1000)
    await m.move(S.RUNNING, boot_mode=boot_mode, boot_ms=boot_ms)


async def _boot(m: SandboxMachine, manifest: Manifest, plan: Plan) -> None:
    """Boot a sandbox that was put back, from the disk that its row names."""
    begun = m.parts.clock.monotonic_s()
    template = await asyncio.to_thread(m.parts.templates.by_digest, m.info.template_digest)
    await asyncio.to_thread(files.make_folder, m.folder)
    await m.make_active(m.row.layers)
    reach("rollback.overlay")
    m.volumes = await plan.ready_to_boot()
    m.vmm = await m.parts.driver.start(m.folder, m.spec(template, m.row.layers))
    reach("rollback.started")
    await _renew(m, manifest, await m.guest(m.parts.boot_timeout_s), "rollback")
    await plan.settle()
    boot_ms = round((m.parts.clock.monotonic_s() - begun) * 1000)
    await m.move(S.RUNNING, boot_mode="cold", boot_ms=boot_ms)


async def _renew(
    m: SandboxMachine, manifest: Manifest, guest: Guest, reason: RenewalReason
) -> None:
    # a snapshot of another sandbox, such as the one this was forked from, holds that one's identity
    hostname = None if manifest.info.sandbox_id == m.info.id else hostname_of(m.info.id)
    await m.until_end(guest.renew(renewal(m, reason, hostname=hostname)))
    reach(f"{reason}.renewed")


async def _awake_again(m: SandboxMachine, state: SandboxState) -> None:
    if m.info.state is S.HIBERNATED:
        return
    if state is S.RUNNING:
        with contextlib.suppress(VmmFailed):  # if it ended, the watcher notes that
            await capture.let_run(m, paused_before=False)
    await m.settle(state)


async def _asleep_again(m: SandboxMachine, layers: MachineLayers) -> None:
    await m.end_machine()
    await m.settle(S.HIBERNATED, layers=layers)

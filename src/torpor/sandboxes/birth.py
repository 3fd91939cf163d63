"""How a sandbox begins: by a cold boot of its template's disk, or from a snapshot's RAM.

The row is `creating` and names the layers before anything of them exists.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from torpor.base.aio import finish
from torpor.base.faults import reach
from torpor.db.sandboxes import MachineLayers
from torpor.errors import NotFound, TorporError
from torpor.guest.port import Guest
from torpor.layers.manifest import Manifest
from torpor.model import BootMode, Renewal, SandboxId, SandboxState, Stillness
from torpor.model_volumes import VolumeMount, VolumesMode
from torpor.sandboxes import folder as files
from torpor.sandboxes.machine import SandboxMachine
from torpor.sandboxes.volume_attach import attach_all, release_all
from torpor.sandboxes.volume_restore import plan_return
from torpor.templates import Template

SANDBOX_FILE = "/etc/torpor/sandbox.json"
"""Where the guest agent finds what this sandbox lays over its image: the environment."""

_ENV_MOST = 4 << 20
_CMDLINE_MOST = 2000
"""The kernel takes 2048 bytes; what does not fit is held when the agent answers."""
_UNIT = re.compile(r"[A-Za-z0-9:_.@\\-]{1,255}")

RenewalReason = Literal["create", "wake", "rollback", "restore", "fork"]


async def create_cold(
    m: SandboxMachine,
    template: Template,
    env: Mapping[str, str],
    mounts: Sequence[VolumeMount] = (),
    still: Stillness | None = None,
) -> None:
    """Boot a sandbox from its disk layers. On failure no process is left and the sandbox is `failed`.

    With `still`, what must not act in it is not started, or held as soon as its agent answers.
    """
    begun = m.parts.clock.monotonic_s()
    try:
        await _prepare(m)
        spec = m.spec(template, m.row.layers)
        if still is not None:
            spec = replace(spec, cmdline=_masking(spec.cmdline, still.masks))
        m.vmm = await m.parts.driver.start(m.folder, spec)
        reach("create.started")
        guest = await m.guest(m.parts.boot_timeout_s)
        reach("create.connected")
        await m.until_end(_renew(m, guest, "create", still))
        await _finish(m, guest, env, grow=True)
        await attach_all(m, mounts)
        await _outcome(m, begun, "cold")
    except BaseException as exc:
        await finish(_undo(m, exc), within_s=60.0)
        raise


async def create_from(
    m: SandboxMachine,
    manifest: Manifest,
    env: Mapping[str, str],
    reason: RenewalReason,
    mounts: Sequence[VolumeMount] = (),
    volumes: VolumesMode | None = None,
    still: Stillness | None = None,
) -> None:
    """Begin a sandbox from a snapshot, with an identity of its own. On failure as `create_cold`."""
    begun = m.parts.clock.monotonic_s()
    try:
        await _prepare(m)
        plan = await plan_return(m, manifest, volumes, is_rollback=False)
        vmm = await plan.start(manifest)
        reach("create.started")
        await vmm.resume()
        guest = await m.guest()
        reach("create.connected")
        await m.until_end(_renew(m, guest, reason, still))
        await _finish(m, guest, env, grow=m.info.disk_gib > manifest.info.disk_gib)
        await plan.settle()
        await attach_all(m, mounts)
        await _outcome(m, begun, "restore")
    except BaseException as exc:
        await finish(_undo(m, exc), within_s=60.0)
        raise


def renewal(
    m: SandboxMachine,
    reason: RenewalReason,
    *,
    hostname: str | None,
    still: Stillness | None = None,
) -> Renewal:
    """Return what a machine that goes on is told."""
    return Renewal(
        reason=reason,
        generation=m.info.generation,
        now=m.parts.clock.now(),
        entropy=secrets.token_bytes(64),
        hostname=hostname,
        still=still,
    )


def hostname_of(sandbox_id: SandboxId) -> str:
    """Return the host name of a sandbox: its id, in what a host name may hold."""
    return sandbox_id.replace("_", "-")


async def _prepare(m: SandboxMachine) -> None:
    reach("create.intent")
    await asyncio.to_thread(files.make_folder, m.folder)
    reach("create.folder")
    await m.make_active(m.row.layers)
    reach("create.overlay")


async def _renew(
    m: SandboxMachine, guest: Guest, reason: RenewalReason, still: Stillness | None
) -> None:
    await guest.renew(renewal(m, reason, hostname=hostname_of(m.info.id), still=still))


def _masking(cmdline: str, units: Sequence[str]) -> str:
    """Return a kernel's command line with which systemd does not start these; as many as the kernel takes."""
    found = cmdline
    for unit in units:
        longer = f"{found} systemd.mask={unit}"
        if _UNIT.fullmatch(unit) and len(longer) <= _CMDLINE_MOST:
            found = longer
    return found


async def _finish(m: SandboxMachine, guest: Guest, env: Mapping[str, str], *, grow: bool) -> None:
    if env:
        whole = await m.until_end(_inherited(guest)) | dict(env)
        data = json.dumps({"env": whole}).encode()
        await m.until_end(guest.write(SANDBOX_FILE, _once(data), mode=0o600, user="root"))
        await m.save(m.row.with_info(env_names=tuple(sorted(whole))))
    if grow:
        await m.until_end(guest.grow_disk())
    reach("create.ready")


async def _inherited(guest: Guest) -> dict[str, str]:
    """Return the environment that the snapshot's sandbox had; what is no such thing counts as none."""
    try:
        data = b"".join([chunk async for chunk in guest.read(SANDBOX_FILE, limit_bytes=_ENV_MOST)])
        found = json.loads(data)["env"]
        return {str(key): str(value) for key, value in found.items()}
    except (NotFound, ValueError, KeyError, TypeError, AttributeError):
        return {}


async def _outcome(m: SandboxMachine, begun: float, boot_mode: BootMode) -> None:
    boot_ms = round((m.parts.clock.monotonic_s() - begun) * 1000)
    await m.move(SandboxState.RUNNING, boot_mode=boot_mode, boot_ms=boot_ms)
    reach("create.outcome")


async def _undo(m: SandboxMachine, exc: BaseException) -> None:
    tail = await asyncio.to_thread(files.console_tail, m.parts.driver.console(m.folder))
    await m.end_machine()
    await release_all(m.parts, m.info.id)
    if isinstance(exc, Exception):  # a cancelled create is being deleted, or the daemon ends
        text = exc.message if isinstance(exc, TorporError) else repr(exc)
        await m.settle(
            SandboxState.FAILED,
            layers=MachineLayers(),
            error=f"create failed: {text}" + (f"\nconsole:\n{tail}" if tail else ""),
        )


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data

"""Boot a fresh image once, so that every sandbox made from it starts from a machine that has settled."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Protocol

from torpor.base import proc
from torpor.base.ids import new_id
from torpor.errors import BuildFailed, GuestFailed, GuestUnreachable, OperationTimeout, VmmFailed
from torpor.guest.port import Guest
from torpor.model import ExecEnded, ExecId, ExecInfo, ExecOutput, ExecSpec, Network
from torpor.templates.debian import find_tool
from torpor.templates.manifest import Template
from torpor.templates.plan import Step

_SETTLE_S = 900.0
_SCRIPT_S = 120.0

_FINISH = """
# an identity that all sandboxes would share is taken out; systemd makes a new one at the next boot
: >/etc/machine-id
rm -f /var/lib/dbus/machine-id /var/lib/systemd/random-seed /etc/ssh/ssh_host_*
rm -rf /var/log/journal/*
systemctl list-units --failed --plain --no-legend | while read -r unit rest; do echo "$unit"; done
"""
"""Run in the booted guest; prints the units that failed to start."""


class Booter(Protocol):
    """Boots templates that are being built."""

    def __call__(
        self, image: Template, work: Path, *, network: Network = "none"
    ) -> AbstractAsyncContextManager[Guest]:
        """Enter with the connected guest of a machine that writes to `image.disk` itself, no overlay.

        `work` is the machine's own folder, not there yet, in a place that other users may pass through.
        Leaving waits until a guest that was told to shut down has powered off, at most some minutes; after
        it no process of the machine is left, whatever happened inside.
        """
        ...

    async def sweep(self, work: Path) -> None:
        """End whatever machine still runs in `work`, left there by a builder that was killed."""
        ...


async def settle(
    boot: Booter,
    image: Template,
    work: Path,
    steps: Callable[[Guest], AsyncGenerator[Step, None]] | None = None,
) -> AsyncGenerator[Step, None]:
    """Boot `image`, let it settle, take out its identity, trim it and shut it down; then check its disk.

    With `steps` the machine has a network, and they are carried out in it once it has settled.

    Raises:
        HostNotReady, InsufficientResources: the machine cannot be started here.
        BuildFailed: it does not boot or settle, or its file system is not clean afterwards.
    """
    yield Step("boot", "booting for the first time", 0.0)
    try:
        async with boot(image, work, network="none" if steps is None else "user") as guest:
            yield Step("settle", "waiting until start-up has finished", 0.0)
            await guest.settle(timeout_s=_SETTLE_S)
            if steps is not None:
                async with aclosing(steps(guest)) as said:
                    async for step in said:
                        yield step
            failed = await run_script(guest, _FINISH)
            await guest.exec_forget()
            note = (
                f"units that failed to start: {', '.join(failed.split())}" if failed else "trimming"
            )
            yield Step("settle", note, 0.6)
            await guest.settle(timeout_s=_SETTLE_S)
            yield Step("settle", "shutting down", 0.8)
            # who powers off may end the agent before it has answered; on leaving, the machine must be off
            with contextlib.suppress(GuestUnreachable):
                await guest.shutdown()
    except (VmmFailed, GuestFailed, OperationTimeout) as exc:
        raise BuildFailed(
            f"the new image did not boot and settle: {exc.message}",
            hint=exc.hint,
            step="boot",
            log=str(exc.facts.get("log", "")),
        ) from exc
    yield Step("settle", "checking the file system", 0.9)
    await check_disk(image.disk)
    yield Step("settle", "the image is clean", 1.0)


async def check_disk(disk: Path) -> None:
    """Check the ext4 file system in `disk` without changing it.

    Raises:
        BuildFailed: it is not clean.
    """
    tool = find_tool("e2fsck") or "e2fsck"
    done = await proc.run([tool, "-fn", str(disk)], timeout_s=600, check=False)
    if done.status != 0:
        log = (done.stdout + done.stderr)[-2000:].decode("utf-8", "replace")
        raise BuildFailed(
            f"the image's file system is not clean after its first boot (e2fsck says {done.status})",
            step="settle",
            log=log,
        )


async def run_script(guest: Guest, script: str) -> str:
    """Run `script` in the guest as root and return what it printed.

    Raises:
        BuildFailed: it failed.
    """
    exec_id = ExecId(new_id("exec"))
    spec = ExecSpec(command=script, user="root", cwd="/", timeout_seconds=_SCRIPT_S)
    await guest.exec_start(exec_id, spec)
    output = bytearray()
    ended: ExecInfo | None = None
    async with guest.exec_attach(exec_id) as events:
        async for event in events:
            if isinstance(event, ExecOutput):
                output += event.data[: max(0, 65536 - len(output))]
            elif isinstance(event, ExecEnded):
                ended = event.info
    text = output.decode("utf-8", "replace")
    if ended is None or ended.exit_code != 0:
        status = "unknown" if ended is None else ended.exit_code
        raise BuildFailed(
            f"tidying up in the booted image failed with status {status}", step="settle", log=text
        )
    return text.strip()

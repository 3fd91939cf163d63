"""Volumes of a running QEMU: plugged in, taken out, switched and made larger over QMP.

A volume is a SCSI disk on a controller that every machine has. Its newest block node is named and ours; what lies
below was added with it and goes with it, but for nodes that a switch left below, which are named too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from torpor.errors import InsufficientResources, VmmFailed
from torpor.vmm.base import VOLUME_SLOTS, VolumeDisk
from torpor.vmm.qemu import command

_SAYS_FULL = "No space left"
_DELETED_S = 30.0
"""Seconds for a device to go; 50 ms were seen."""


class Monitor(Protocol):
    """What a QEMU is asked through."""

    async def execute(self, name: str, *, timeout_s: float, **arguments: Any) -> object:
        """Run one QMP command. Raises `VmmFailed`."""
        ...

    def events(self, *names: str) -> AbstractContextManager[Any]:
        """Enter with the events of these names from now on, an asynchronous iterator."""
        ...


class QemuVolumes:
    """The places for volumes of one machine."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    async def attach(self, disk: VolumeDisk) -> None:
        """Plug a volume in. On `VmmFailed` nothing of it is left."""
        await self._run("blockdev-add", 30.0, **command.volume_chain(disk))
        try:
            await self._run("device_add", 10.0, **command.volume_disk(disk))
        except VmmFailed:
            with contextlib.suppress(VmmFailed):
                await self._drop_nodes(disk.slot)
            raise

    async def detach(self, slot: int) -> None:
        """Take a volume out and close its files; nothing happens if the place is empty."""
        device = command.volume_device(slot)
        if slot in await self.newest():
            try:
                async with asyncio.timeout(_DELETED_S):
                    with self._monitor.events("DEVICE_DELETED") as events:
                        await self._run("device_del", 10.0, id=device)
                        async for event in events:
                            if event.get("data", {}).get("device") == device:
                                break
            except TimeoutError as exc:
                raise VmmFailed(
                    f"QEMU did not let go of volume device {device} within {_DELETED_S:g} s"
                ) from exc
        await self._drop_nodes(slot)

    async def switch(self, slot: int, overlay: Path) -> None:
        """Send all further writes to `overlay`."""
        newest = (await self.newest()).get(slot)
        if newest is None:
            raise VmmFailed(f"the machine has no volume in place {slot}")
        node = command.volume_overlay(slot, overlay)
        await self._run("blockdev-add", 10.0, **node)
        name = str(node["node-name"])
        try:
            await self._run("blockdev-snapshot", 30.0, node=f"v{slot}-{newest}", overlay=name)
        except VmmFailed:
            with contextlib.suppress(VmmFailed):
                await self._run("blockdev-del", 10.0, **{"node-name": name})
            raise

    async def resize(self, slot: int, size_bytes: int) -> None:
        """Make a volume's disk larger. Raises `InsufficientResources` when the host's disk is full."""
        newest = (await self.newest()).get(slot)
        if newest is None:
            raise VmmFailed(f"the machine has no volume in place {slot}")
        node = f"v{slot}-{newest}"
        try:
            await self._run("block_resize", 60.0, **{"node-name": node, "size": size_bytes})
        except VmmFailed as exc:
            if _SAYS_FULL not in exc.message:
                raise
            raise InsufficientResources(
                f"the host's disk is full: the volume in place {slot} could not be made larger",
                hint="free disk space, then ask for the same size again",
            ) from exc

    async def newest(self) -> Mapping[int, str]:
        """Return the places that are taken, and the name of the newest file of each volume."""
        devices = await self._run("query-block", 10.0)
        found: dict[int, str] = {}
        for device in devices if isinstance(devices, list) else []:
            match device:
                case {"qdev": str(path), "inserted": {"node-name": str(name)}}:
                    for slot in VOLUME_SLOTS:
                        if command.volume_device(slot) in path.split("/"):
                            found[slot] = name.removeprefix(f"v{slot}-")
        return found

    async def _drop_nodes(self, slot: int) -> None:
        """Close the files of a place that no device uses, the newest first: one that another stands on stays."""
        while names := await self._nodes(slot):
            dropped = 0
            for name in names:
                with contextlib.suppress(VmmFailed):
                    await self._run("blockdev-del", 10.0, **{"node-name": name})
                    dropped += 1
            if not dropped:
                raise VmmFailed(
                    f"QEMU keeps files of the volume in place {slot} open: {', '.join(names)}"
                )

    async def _nodes(self, slot: int) -> list[str]:
        nodes = await self._run("query-named-block-nodes", 10.0, flat=True)
        names = [str(n.get("node-name")) for n in nodes] if isinstance(nodes, list) else []
        return [name for name in names if name.startswith(f"v{slot}-")]

    async def _run(self, name: str, timeout_s: float, **arguments: Any) -> object:
        return await self._monitor.execute(name, timeout_s=timeout_s, **arguments)

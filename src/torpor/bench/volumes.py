"""Volumes: attach, snapshot, clone and detach on a running machine, beside the same done by hand over QMP and the agent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from torpor.base.ids import new_id
from torpor.base.units import GIB
from torpor.bench.channel import took
from torpor.bench.figures import Figure, Series
from torpor.bench.floor import run
from torpor.bench.floor_qemu import QemuFloor, QemuFloorMachine
from torpor.bench.qmp import Qmp
from torpor.bench.rig import Rig, root
from torpor.errors import NotFound
from torpor.guest.client import GuestClient
from torpor.sdk.loop import loop_thread
from torpor.sdk.sync_sandbox import Sandbox
from torpor.sdk.sync_snapshots import Snapshot
from torpor.sdk.sync_volumes import Volume
from torpor.vmm.base import VolumeDisk
from torpor.vmm.qemu import QemuDriver, command

_Acts = Iterator[tuple[str, float]]
"""What was done, and how many milliseconds it took."""
_PATH: Final = "/mnt/bench"
_SLOT: Final = 1
_FROZEN_S: Final = 30.0
_WRITE: Final = f"head -c 1M /dev/urandom >{_PATH}/file && sync"
"""Before each snapshot and clone: what it keeps."""
_ACTS: Final = {
    "attach": (
        "attach a volume to a running sandbox, mounted",
        "QEMU plugs the same disk in, and the agent mounts it, asked by hand",
    ),
    "snapshot": (
        "snapshot of a volume that a sandbox writes to",
        "an overlay is made, the agent freezes, QEMU switches, the agent thaws, all by hand",
    ),
    "clone": (
        "clone of a volume that a sandbox writes to",
        "the same, and one more overlay for the clone",
    ),
    "idle": (
        "clone of a volume that nobody has",
        "one overlay is made",
    ),
    "detach": (
        "detach a volume from a running sandbox",
        "the agent unmounts it and QEMU takes it out, by hand",
    ),
}
"""What is measured, in the order of one round, and what it is set beside."""


def attach_to_detach(rig: Rig) -> Iterator[Figure]:
    """Each act in turns with the same by hand; the first round of both is not counted."""
    ours: dict[str, list[float]] = {name: [] for name in _ACTS}
    bare: dict[str, list[float]] = {name: [] for name in _ACTS}
    with rig.sandbox() as sandbox:
        snapshot = sandbox.snapshot()
        rig.drop(rig.restore(snapshot))  # makes the RAM image
        with _volume(rig, sandbox) as volume, _hands(rig, snapshot) as by_hand:
            for round_ in range(1 + rig.times(10, 2)):
                found = [(_by_torpor(sandbox, volume), ours)]
                if by_hand is not None:
                    found.append((by_hand(rig.folder / f"volume{round_}"), bare))
                for acts, values in found:
                    for name, ms in acts:
                        if round_:
                            values[name].append(ms)
    for name, (what, beside) in _ACTS.items():
        yield Figure(
            name=f"volume.{name}",
            what=what,
            unit="ms",
            ours=Series.of(ours[name]),
            beside=Series.of(bare[name]) if bare[name] else None,
            beside_what=beside if bare[name] else "",
        )


@contextlib.contextmanager
def _hands(rig: Rig, snapshot: Snapshot) -> Iterator[Callable[[Path], _Acts] | None]:
    """Enter with what does a round by hand; None where that is done with QEMU only."""
    floor = rig.floor
    if not isinstance(floor, QemuFloor):
        yield None
        return
    with floor.restored(snapshot.id) as machine, machine.renewed() as agent:
        assert isinstance(machine, QemuFloorMachine)
        qmp = machine.qmp
        yield lambda folder: _by_hand(_Hand(floor, qmp, agent, folder))


@contextlib.contextmanager
def _volume(rig: Rig, sandbox: Sandbox) -> Iterator[Volume]:
    """Enter with a volume; it is gone afterwards, and its clones with it."""
    volume = Volume.create(f"bench-{new_id('vol')[4:12]}", client=rig.client)
    try:
        yield volume
    finally:
        with contextlib.suppress(NotFound):
            sandbox.detach_volume(volume.name)
        for found in Volume.list(client=rig.client):
            if found.info.parent == volume.info.id:
                found.delete(snapshots=True)
        volume.delete(snapshots=True)


def _by_torpor(sandbox: Sandbox, volume: Volume) -> _Acts:
    """One round; yields what was done and how many milliseconds it took."""
    yield "attach", took(lambda: sandbox.attach_volume(volume.name, _PATH))
    root(sandbox, _WRITE)
    yield "snapshot", took(lambda: volume.snapshot(label="bench"))
    volume.delete_snapshot("bench")
    root(sandbox, _WRITE)
    yield "clone", took(lambda: volume.clone(f"{volume.name}-clone"))
    Volume.get(f"{volume.name}-clone", client=volume.client).delete()
    yield "detach", took(lambda: sandbox.detach_volume(_PATH))
    yield "idle", took(lambda: volume.clone(f"{volume.name}-idle"))
    Volume.get(f"{volume.name}-idle", client=volume.client).delete()


def _by_hand(hand: _Hand) -> _Acts:
    """The same round without Torpor: files, QMP commands and calls of the agent alone."""
    yield "attach", took(hand.attach)
    run(hand.agent, _WRITE)
    yield "snapshot", took(hand.switch)
    run(hand.agent, _WRITE)
    yield "clone", took(hand.clone)
    yield "detach", took(hand.detach)
    yield "idle", took(hand.overlay)


class _Hand:
    """A volume of a machine that was started by hand; each attach finds a new one, made beforehand."""

    def __init__(self, floor: QemuFloor, qmp: Qmp, agent: GuestClient, folder: Path) -> None:
        self.agent = agent
        self._floor = floor
        self._qmp = qmp
        self._folder = folder
        self._active = folder / f"{new_id('lyr')}.qcow2"
        self._nodes = [command.volume_node(_SLOT, self._active)]
        self._disk = VolumeDisk(
            slot=_SLOT,
            serial=new_id("vol").partition("_")[2],
            layers=(folder / f"{new_id('lyr')}.qcow2",),
            active=self._active,
        )
        folder.mkdir()
        loop_thread.run(QemuDriver().format_volume(self._disk.layers[0], GIB))
        floor.make_overlay(self._active, 1)

    def attach(self) -> None:
        """Plug it in and have it mounted."""
        self._qmp.execute("blockdev-add", **command.volume_chain(self._disk))
        self._qmp.execute("device_add", **command.volume_disk(self._disk))
        mount = self.agent.mount_volume(
            _PATH, slot=_SLOT, serial=self._disk.serial, read_only=False
        )
        loop_thread.run(mount)

    def switch(self) -> None:
        """Send what is written from now on to a new overlay, while the guest holds its file systems still."""
        node = command.volume_overlay(_SLOT, self.overlay())
        loop_thread.run(self.agent.freeze(dead_man_seconds=_FROZEN_S))
        self._qmp.execute("blockdev-add", **node)
        name = str(node["node-name"])
        self._qmp.execute("blockdev-snapshot", node=self._nodes[-1], overlay=name)
        self._nodes.append(name)
        loop_thread.run(self.agent.thaw())

    def clone(self) -> None:
        """Switch, and make a clone of what was written until then."""
        self.switch()
        self.overlay()

    def overlay(self) -> Path:
        """Make an empty overlay."""
        path = self._folder / f"{new_id('lyr')}.qcow2"
        self._floor.make_overlay(path, 1)
        return path

    def detach(self) -> None:
        """Have it unmounted, and take it out."""
        device = command.volume_device(_SLOT)
        loop_thread.run(self.agent.unmount_volume(_PATH, slot=_SLOT))
        self._qmp.execute("device_del", id=device)
        self._qmp.wait_event("DEVICE_DELETED", device=device)
        for name in reversed(self._nodes):
            self._qmp.execute("blockdev-del", **{"node-name": name})

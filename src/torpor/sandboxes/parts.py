"""What every sandbox's task is given: the parts below the engine, made once a daemon."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torpor.base.clock import Clock
from torpor.base.home import Home
from torpor.db.memory_moves import MemoryMoves
from torpor.db.sandboxes import SandboxRows
from torpor.errors import HostNotReady, NotFound
from torpor.guest.port import Guest
from torpor.layers.manifest import Manifest
from torpor.layers.pins import Pins
from torpor.layers.store import LayerStore
from torpor.memory.service import MemoryService
from torpor.model import SandboxId, SandboxInfo, SandboxState, SnapshotId, SnapshotInfo
from torpor.model_inventory import Inventory
from torpor.sandboxes.claims import Claims
from torpor.sandboxes.events import EventLog
from torpor.sandboxes.goodness import GoodSnapshots
from torpor.sandboxes.memory_moves import FollowingMemory
from torpor.sandboxes.protect import Protections
from torpor.sandboxes.quota import Quota
from torpor.templates import TemplateStore
from torpor.vmm.base import Driver, HostSupport
from torpor.volumes.desk import VolumeDesk

TakeInventory = Callable[[Guest], Awaitable[Inventory]]
"""Returns what a running machine holds, within seconds."""


class ConnectGuest(Protocol):
    """Connects to the agent behind a socket."""

    def __call__(
        self, socket_path: Path, *, port: int | None, epoch: int, timeout_s: float
    ) -> Awaitable[Guest]:
        """Return the connected guest; raises `GuestUnreachable` when it does not answer in time.

        `port` is None, or that of the agent behind a socket that leads to the guest's vsock.
        """
        ...


async def _nobody_wakes(_sandbox_id: SandboxId) -> None:
    return


async def _nobody_knows(_sandbox_id: str) -> bool:
    return False


@dataclass(slots=True, kw_only=True)
class Parts:
    """The rooms below, as the engine uses them."""

    home: Home
    rows: SandboxRows
    layers: LayerStore
    driver: Driver
    templates: TemplateStore
    memory: MemoryService
    move_rows: MemoryMoves
    connect_guest: ConnectGuest
    clock: Clock
    protections: Protections
    good: GoodSnapshots
    """Which snapshots are known to be good."""
    claims: Claims = field(default_factory=Claims)
    """Who works on which sandbox."""
    report: Callable[[str, BaseException], None]
    """Takes failures that no caller waits for."""
    host: HostSupport = field(
        default_factory=lambda: HostSupport("", False, None, None, None, "nobody looked yet")
    )
    """What the driver found on this host; looked up anew before each start of a machine."""
    images_in_use: Callable[[], tuple[Collection[SnapshotId], Collection[SnapshotId]]] = field(
        default=lambda: ((), ())
    )
    """Returns the snapshots whose RAM images machines map, and those at which sandboxes sleep; set by the engine."""
    memory_for: Callable[[SandboxInfo], AbstractAsyncContextManager[None]] = field(
        default=lambda _: contextlib.nullcontext()
    )
    """Enters when the host has memory for that sandbox's machine; its row must say so before leaving. Raises
    `InsufficientResources`. Set by the engine."""
    volumes: VolumeDesk
    state_of: Callable[[str], SandboxState | None] = field(default=lambda _: None)
    """Returns the state of a sandbox; None when there is none. Set by the engine, as the next two."""
    wake: Callable[[SandboxId], Awaitable[object]] = field(default=_nobody_wakes)
    machine_is_gone: Callable[[str], Awaitable[bool]] = field(default=_nobody_knows)
    """Returns whether a sandbox's VMM is proven to have ended, by its process id and start time."""
    memory_for_boot: Callable[[int], AbstractAsyncContextManager[None]] = field(
        default=lambda _: contextlib.nullcontext()
    )
    """Enters when the host has so many MiB for a machine that is no sandbox's, and holds them until it is left. Raises
    `InsufficientResources`. Set by the engine."""
    attend: Callable[[Any, Guest], Coroutine[Any, Any, None]] | None = field(
        init=False, default=None
    )
    """Serves a connected machine's memory socket; a template's machine has none. Set by the engine."""
    memory_moves: FollowingMemory = field(init=False)
    """What the agents' memory has to do when machines move. Set by the engine."""
    take_inventory: TakeInventory | None = None
    """Takes a machine's inventory before a snapshot, within seconds; set by the daemon."""
    health: dict[SandboxId, str] = field(default_factory=dict)
    """What watches found wrong, in a sentence each; whoever watches says it again in the next daemon."""
    quota: Quota = field(default_factory=Quota)
    events: EventLog = field(default_factory=EventLog)
    """Takes every change of state."""
    going: set[SnapshotId] = field(default_factory=set)
    """Snapshots that are being deleted: nothing begins from them any more."""
    boot_timeout_s: float = 300.0
    """How long a cold boot may take until the agent answers; emulated hosts with busy cores are slow."""

    @property
    def pins(self) -> Pins:
        """The layers that are being made or taken into use."""
        return self.layers.pins

    async def look_at_host(self) -> None:
        """Look anew what the driver finds here: it may have been replaced. Raises `HostNotReady` unless machines can be started."""
        self.host = await self.driver.probe()
        if not self.host.usable:
            raise HostNotReady(self.host.reason, hint=self.host.fix)

    def origin(self, snapshot_id: SnapshotId) -> Manifest:
        """Return the snapshot that something is to begin from; pin it before the next await. Raises `NotFound`."""
        found = self.layers.get(snapshot_id)
        if snapshot_id in self.going:
            raise NotFound(f"snapshot {snapshot_id} is being deleted", snapshot_id=snapshot_id)
        return found

    def seen(self, manifest: Manifest) -> SnapshotInfo:
        """Return what is shown of a snapshot, with who protects it and whether it is known to be good."""
        return self.good.seen(self.protections.seen(manifest.info))

"""The `Driver` protocol: how a machine is started, stopped and found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from torpor.base.proc import ProcessId
from torpor.layers.ram import RamLayer
from torpor.model_usage import DeviceFigures

VmmStatus = Literal["running", "paused", "ended"]


@dataclass(frozen=True, slots=True)
class Disk:
    """The machine's root disk: immutable layers from the oldest on, and one that is written."""

    layers: tuple[Path, ...]
    """Read-only files, the oldest first. `.raw` is raw and a whole disk, whatever is below it; `.qcow2` is a delta."""
    active: Path
    """The overlay that takes all writes, in the driver's own format."""


VOLUME_SLOTS = range(1, 17)
"""The numbers that a machine's places for volumes can have; its driver says which there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeDisk:
    """A volume, as a disk of a machine."""

    slot: int
    """One of `VOLUME_SLOTS`; a machine that is restored has it where it was."""
    serial: str
    """What the guest knows it by; at most 20 characters."""
    layers: tuple[Path, ...]
    """Read-only files, the oldest first; see `Disk.layers`."""
    active: Path | None
    """The overlay that takes all writes; None: the disk is read-only, whatever the guest does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """What a VMM is started with."""

    vcpus: int
    ram_mib: int
    network: Literal["user", "none"]
    kernel: Path
    initrd: Path
    cmdline: str
    disk: Disk
    volumes: tuple[VolumeDisk, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedMachine:
    """A stopped machine on disk, for the same driver, version and CPU to go on from."""

    ram_image: Path
    """Its whole memory, flat; mapped private, so never written."""
    device_state: Path
    """All else: CPUs and devices."""


@dataclass(frozen=True, slots=True)
class Wall:
    """Something that holds a VMM whose guest broke out into it."""

    name: str
    stands: bool
    found: str
    why: str
    fix: str | None = None
    """What makes it stand."""


@dataclass(frozen=True, slots=True)
class HostSupport:
    """What a driver found on this host."""

    driver: str
    usable: bool
    version: str | None
    accel: Literal["kvm", "tcg"] | None
    cpu: str | None
    """What the guest's CPU is; RAM can only be restored on the same."""
    reason: str
    """Why this accelerator, or why the driver is not usable, in words."""
    fix: str | None = None
    """The command that mends it."""
    machine: int = 1
    """Which machine the driver builds; RAM can only be restored into the same. Raised when a device is added."""
    networks: frozenset[str] = frozenset({"user", "none"})
    """The networks that its machines can have here."""
    vcpus_most: int | None = None
    """The most that a machine of this driver can have; None: it takes what is allowed at all."""
    walls: tuple[Wall, ...] = ()
    """What holds its machines here, and what does not."""


class Vmm(Protocol):
    """One running machine monitor. It outlives the daemon; closing this object ends nothing."""

    @property
    def process(self) -> ProcessId:
        """The VMM's process."""
        ...

    @property
    def agent_socket(self) -> Path:
        """The Unix socket that is the host end of the guest channel."""
        ...

    @property
    def agent_port(self) -> int | None:
        """The port to ask for behind that socket, which leads to the guest's vsock; None: it is the channel itself."""
        ...

    @property
    def snapshots_cut(self) -> bool:
        """Whether a snapshot cuts the guest channel of the machine that it is taken of, too."""
        ...

    async def version(self) -> str:
        """Return the version of the program that runs: its snapshots go on with that alone.

        The host may have another by now. `unknown` fits none. Raises `VmmFailed` when it has to be asked and does not answer.
        """
        ...

    async def status(self) -> VmmStatus:
        """Return what the machine does now; `ended` when the process is gone. Raises `VmmFailed`."""
        ...

    async def pause(self, *, timeout_s: float = 5.0) -> None:
        """Stop the vCPUs. Idempotent. Raises `VmmFailed`; then the machine runs on or has ended."""
        ...

    async def resume(self, *, timeout_s: float = 5.0) -> None:
        """Let the vCPUs run. Idempotent. Raises `VmmFailed`."""
        ...

    async def save_devices(self) -> Path:
        """Write the state of CPUs and devices of a paused machine; return the file, which the caller takes away.

        Raises:
            VmmFailed: it was not written; the machine is as it was.
            InsufficientResources: because the disk is full.
        """
        ...

    async def save_ram(self, path: Path, previous: Sequence[Path] = ()) -> RamLayer:
        """Write the changed pages of a paused machine as a RAM layer to `path` (new).

        Changed means: since the machine's start, or, with the layers `previous` that were written since (the
        oldest first), what is not in them as it is now. Not fsynced. On failure `path` is gone and the machine is as it was.

        Raises:
            VmmFailed: the memory cannot be read.
            InsufficientResources: the disk is full.
        """
        ...

    async def capture_bytes(self, changed: int | None = None) -> int:
        """Return at most how many bytes a snapshot of the machine, without its volumes, would write now.

        `changed` is how much of its RAM did at most. None: that is counted, which takes longer; all of it when it cannot be.
        """
        ...

    async def switch_disk(self, overlay: Path) -> None:
        """Let all further writes of a paused machine go to `overlay` (empty); the layer before is then immutable.

        Raises:
            VmmFailed: nothing was switched.
        """
        ...

    async def active_disk(self) -> str:
        """Return which overlay takes the machine's writes now: its file's name without suffix. Raises `VmmFailed`."""
        ...

    async def attach_volume(self, disk: VolumeDisk) -> None:
        """Give the machine a volume. The guest sees it a moment later.

        Raises:
            VmmFailed: it cannot be had, for example because another process has the file; nothing was changed.
        """
        ...

    async def detach_volume(self, slot: int) -> None:
        """Take a volume away; when this returns no file of it is open. Idempotent.

        The guest must not use it any more: what it still writes fails. Raises `VmmFailed`.
        """
        ...

    async def switch_volume(self, slot: int, overlay: Path) -> None:
        """Let all further writes to a volume go to `overlay` (empty), as `switch_disk`. Raises `VmmFailed`."""
        ...

    async def resize_volume(self, slot: int, size_bytes: int) -> None:
        """Make a volume's disk larger while it is in use. Raises `VmmFailed`; then its size is as it was."""
        ...

    async def volumes(self) -> Mapping[int, str]:
        """Return each volume's slot and which file is its newest: its name without suffix. Raises `VmmFailed`."""
        ...

    async def give_back_memory(self) -> None:
        """Let the guest of a machine that was booted give back what it does not use: it is zeros in the next snapshot.

        The guest may be short of memory meanwhile, and what it reads from disk again is slower at first; nothing in it
        fails. Nothing happens where guests give it back by themselves, or the machine goes on from a snapshot.

        Raises:
            VmmFailed: the guest does not take part; it has all its memory, or soon will.
        """
        ...

    async def figures(self) -> DeviceFigures:
        """Return what went through its devices since its process was started. Raises `VmmFailed`."""
        ...

    async def kill(self) -> None:
        """End the process at once and wait until it is gone. Idempotent; never raises for a dead VMM."""
        ...

    async def wait(self) -> None:
        """Return when the process has ended."""
        ...

    async def aclose(self) -> None:
        """Let go of the control socket; the machine runs on."""
        ...


class Driver(Protocol):
    """Starts machines of one kind."""

    name: str
    disk_suffix: str
    """Of the disk layers that it makes: `.qcow2` or `.raw`; see `Disk`."""

    volume_slots: Sequence[int]
    """The places that its machines have for volumes which they write."""
    read_only_slots: Sequence[int]
    """Those for volumes which they only read; they may be the same."""

    async def probe(self) -> HostSupport:
        """Say whether and how this driver works here. Never raises for a host that lacks something."""
        ...

    async def create_overlay(self, path: Path, size_bytes: int) -> None:
        """Make an empty writable layer at `path`. Raises `InsufficientResources` on a full disk."""
        ...

    async def format_volume(self, path: Path, size_bytes: int) -> None:
        """Make a layer at `path` (new) that holds an empty ext4 file system of that size. Not fsynced.

        Raises:
            HostNotReady: the tool for it is missing.
            InsufficientResources: the disk is full; `path` is not there.
        """
        ...

    async def resize_overlay(self, path: Path, size_bytes: int) -> None:
        """Make an overlay larger that no machine has. Raises `VmmFailed` or `InsufficientResources`."""
        ...

    async def merge_disk(self, below: Sequence[Path], layers: Sequence[Path], out: Path) -> None:
        """Write to `out` (new) one layer that over `below` is the same disk as `layers`, the oldest first each.

        It was read again and found to be the same. Runs at the lowest priority; cancellation ends it. Not fsynced.
        On any failure `out` is gone.

        Raises:
            DataDamaged: a layer cannot be right.
            InsufficientResources: the disk is full.
            VmmFailed: it cannot be done, or the disk would not be the same.
        """
        ...

    async def start_bytes(self, layers: Sequence[Path]) -> int:
        """Return at most how many bytes are copied when a machine starts on a new overlay over `layers` (one or more), the oldest first."""
        ...

    async def start(self, folder: Path, spec: MachineSpec) -> Vmm:
        """Start a machine whose sockets, logs and RAM live in `folder`, vCPUs running.

        On failure no process is left and the error has the end of the VMM's log. `folder/vmm.json` is
        written, durably, with the process's identity before this returns.

        Raises:
            HostNotReady: QEMU is missing or too old.
            InsufficientResources: the disk is full.
            VmmFailed: it did not start.
        """
        ...

    async def restore(self, folder: Path, spec: MachineSpec, saved: SavedMachine) -> Vmm:
        """Start a machine as `start` does, but from `saved` and paused; `resume` lets it run on.

        Its generation id is new, so that the guest's kernel seeds its randomness again.

        Raises:
            HostNotReady: QEMU is missing or too old.
            VmmFailed: it did not start, or the state does not fit this QEMU or CPU.
        """
        ...

    async def adopt(self, folder: Path) -> Vmm | None:
        """Return the machine that an earlier daemon started in `folder`, or None if it is gone.

        One that does not answer because it still does what that daemon asked of it is waited for.

        Raises:
            VmmFailed: the process lives but its control socket does not answer.
        """
        ...

    async def sweep(self, folder: Path) -> None:
        """End whatever process still belongs to `folder`, recorded in it or found running in it."""
        ...

    def console(self, folder: Path) -> Path:
        """Return the file with the machine's console output, behind that of earlier ones; see `vmm.console`."""
        ...

    def last_words(self, folder: Path) -> str:
        """Return the last lines that the VMM itself printed; empty when there are none. Blocks."""
        ...

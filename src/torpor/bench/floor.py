"""The bare floor: the same VMM with the same files, started by hand.

No daemon, no engine, no user of its own, no seccomp filter, nothing written to a database. What it does is what
any program that restores such a machine must do: start the process, load the state, let it run. `floor_qemu` and
`floor_firecracker` do it with one VMM each.
"""

from __future__ import annotations

import abc
import contextlib
import secrets
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from torpor.base import proc
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.errors import GuestUnreachable, NotFound
from torpor.guest.client import GuestClient, connect
from torpor.layers.manifest import Manifest, read_manifest
from torpor.model import ExecEnded, ExecId, ExecSpec, Renewal, TemplateInfo
from torpor.sdk.loop import loop_thread
from torpor.templates.manifest import Template, read_template
from torpor.vmm.base import Disk, MachineSpec, SavedMachine

ANSWER_LIMIT_S = 60.0
_EPOCH_STEP = 1000
"""The agent takes no epoch twice; the source of a snapshot may have gone on by some."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long the steps of a restore by hand took, in seconds."""

    start_s: float
    """Until the VMM could be asked."""
    running_s: float
    """Until the vCPUs ran, the start included."""


class FloorMachine(abc.ABC):
    """A VMM that was started by hand; `Floor` makes it and ends it."""

    agent_port: int | None = None
    """The port to ask for behind `agent_socket`; None: it is the channel itself."""

    def __init__(self, folder: Path, epoch: int, process: proc.ProcessId, times: Times) -> None:
        self.folder = folder
        self.process = process
        self.times = times
        self._epoch = epoch

    @property
    def agent_socket(self) -> Path:
        """The host end of the guest channel."""
        return self.folder / "agent"

    def agent(self, *, timeout_s: float = ANSWER_LIMIT_S) -> GuestClient:
        """Connect to the agent, straight over the channel; close it with `aclose` on the SDK's loop."""
        self._epoch += 1
        return loop_thread.run(
            connect(self.agent_socket, port=self.agent_port, epoch=self._epoch, timeout_s=timeout_s)
        )

    @contextlib.contextmanager
    def renewed(self) -> Iterator[GuestClient]:
        """Connect to the agent and have it do what makes a restored machine safe; enter with it.

        It is what Torpor has done before it hands a machine out: reseeded, clock set, thawed, a new identity.
        """
        agent = self.agent()
        try:
            loop_thread.run(agent.renew(_renewal()))
            yield agent
        finally:
            loop_thread.run(agent.aclose())

    @abc.abstractmethod
    def bare_port(self) -> BarePort:
        """Start the bare echo in the guest, whose agent may end by that, and return the port that leads to it."""

    def close(self) -> None:
        """End the VMM and remove its files. Idempotent."""
        loop_thread.run(self.process.kill(within_s=15.0))
        shutil.rmtree(self.folder, ignore_errors=True)


class BarePort:
    """The host end of the port with `torpor_guest.floor` at the other."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(1.0)
        for _ in range(int(ANSWER_LIMIT_S)):
            self._socket.sendall(b"are you there?\n")
            try:
                while not self._socket.recv(65536).endswith(b"are you there?\n"):
                    pass
                break
            except TimeoutError:
                continue
        else:
            raise GuestUnreachable("the bare echo did not begin in the guest")
        self._socket.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            while self._socket.recv(65536):  # echoes of what was asked more than once
                pass
        self._socket.settimeout(ANSWER_LIMIT_S)

    def echo(self) -> None:
        """Send one short line and wait until it is back."""
        self._socket.sendall(b"true\n")
        self._line()

    def sink(self, size_bytes: int) -> None:
        """Send so many bytes and wait until the guest has read them all."""
        self._socket.sendall(b"SINK %d\n" % size_bytes)
        self._socket.sendall(bytes(size_bytes))
        self._line()

    def source(self, size_bytes: int) -> None:
        """Receive so many bytes."""
        self._socket.sendall(b"SOURCE %d\n" % size_bytes)
        buffer = bytearray(256 << 10)
        left = size_bytes
        while left > 0:
            left -= self._socket.recv_into(buffer, min(left, len(buffer)))

    def close(self) -> None:
        """Close the host end."""
        self._socket.close()

    def _line(self) -> None:
        data = b""
        while not data.endswith(b"\n"):
            data += self._socket.recv(65536)


class Floor(abc.ABC):
    """Starts machines by hand below `folder`, and ends all that are left when it is closed."""

    vmm: ClassVar[str]
    """What its machines run in, as people call it."""

    def __init__(self, home: Home, folder: Path) -> None:
        self._home = home
        self._folder = folder
        self._machines: set[FloorMachine] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def booted(self, template: TemplateInfo, *, ram_mib: int) -> Iterator[FloorMachine]:
        """Boot a template's disk cold; the machine is gone afterwards."""
        found = read_template(self._home.templates / template.digest)
        spec = self._spec(found, (), replace(template, ram_mib=ram_mib))
        yield from self._run(spec, None, template.disk_gib, epoch=0)

    @contextlib.contextmanager
    def restored(self, snapshot_id: str) -> Iterator[FloorMachine]:
        """Restore a snapshot, whose RAM image is made already, and let it run; the machine is gone afterwards.

        Raises:
            NotFound: its RAM image was not made yet; restore it once with Torpor.
        """
        manifest = read_manifest(self._home.snapshots / snapshot_id)
        template = read_template(self._home.templates / manifest.info.template_digest)
        image = self._home.images / f"{snapshot_id}.img"
        if not image.exists():
            raise NotFound(f"the RAM image of snapshot {snapshot_id} is not made")
        spec = self._spec(
            template, tuple(ref.id for ref in manifest.disk), _sizes(template, manifest)
        )
        saved = SavedMachine(image, self._home.snapshots / snapshot_id / "devices")
        yield from self._run(
            spec, saved, manifest.info.disk_gib, epoch=manifest.epoch + _EPOCH_STEP
        )

    def close(self) -> None:
        """End all machines that are left."""
        for machine in list(self._machines):
            self._end(machine)

    # ---- inside ----

    @abc.abstractmethod
    def _started(
        self,
        folder: Path,
        spec: MachineSpec,
        saved: SavedMachine | None,
        disk_gib: int,
        epoch: int,
    ) -> FloorMachine:
        """Start a machine in `folder` (empty) and let it run; on failure no process is left.

        What any program could have made beforehand is done before the clock of its `times` runs.
        """

    def _spec(
        self, template: Template, layers: tuple[str, ...], sizes: TemplateInfo
    ) -> MachineSpec:
        """Return the machine, but for the disk that it writes."""
        return MachineSpec(
            vcpus=sizes.vcpus,
            ram_mib=sizes.ram_mib,
            network="user",
            kernel=template.kernel,
            initrd=template.initrd,
            cmdline=template.cmdline,
            disk=Disk((template.disk, *map(self._layer, layers)), Path()),
        )

    def _layer(self, name: str) -> Path:
        raw = self._home.layers / f"{name}.raw"
        return raw if raw.exists() else raw.with_suffix(".qcow2")

    def _run(
        self, spec: MachineSpec, saved: SavedMachine | None, disk_gib: int, *, epoch: int
    ) -> Iterator[FloorMachine]:
        folder = self._folder / new_id("flr")
        folder.mkdir(mode=0o700)
        machine = self._started(folder, spec, saved, disk_gib, epoch)
        with self._lock:
            self._machines.add(machine)
        try:
            yield machine
        finally:
            self._end(machine)

    def _end(self, machine: FloorMachine) -> None:
        with self._lock:
            self._machines.discard(machine)
        machine.close()


def run(agent: GuestClient, text: str) -> int:
    """Run a shell command line as root, straight over the channel; return its exit code."""

    async def wait() -> int:
        spec = ExecSpec(command=text, user="root", cwd="/")
        async with agent.exec_run(ExecId(new_id("exec")), spec) as events:
            async for event in events:
                if isinstance(event, ExecEnded):
                    return event.info.exit_code or 0
        raise GuestUnreachable("the command sent no end")

    return loop_thread.run(wait())


def _renewal() -> Renewal:
    return Renewal(
        reason="restore",
        generation=1,
        now=datetime.now(UTC),
        entropy=secrets.token_bytes(64),
        hostname="floor",
    )


def _sizes(template: Template, manifest: Manifest) -> TemplateInfo:
    info = manifest.info
    return replace(template.info, vcpus=info.vcpus, ram_mib=info.ram_mib, disk_gib=info.disk_gib)

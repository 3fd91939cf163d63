"""The bare floor: the same QEMU with the same files, started by hand.

No daemon, no engine, no user of its own, no seccomp filter, nothing written to a database. What it does is what
any program that restores such a machine must do: start the process, load the state, let it run.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from torpor.base import proc
from torpor.base.fsio import socket_name
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.base.units import GIB
from torpor.bench.qmp import Qmp
from torpor.errors import GuestUnreachable, NotFound
from torpor.guest.client import GuestClient, connect
from torpor.layers.manifest import Manifest, read_manifest
from torpor.model import ExecEnded, ExecId, ExecSpec, Renewal, TemplateInfo
from torpor.sdk.loop import loop_thread
from torpor.templates.manifest import Template, read_template
from torpor.vmm.base import Disk, MachineSpec
from torpor.vmm.qemu import command
from torpor.vmm.qemu.host import QemuHost, find_qemu

_ANSWER_LIMIT_S = 60.0
_EPOCH_STEP = 1000
"""The agent takes no epoch twice; the source of a snapshot may have gone on by some."""

_MAKE_WAY = (
    "systemd-run --quiet --collect --unit=torpor-floor --setenv=PYTHONPATH=/opt/torpor "
    "--property=DefaultDependencies=no "
    "sh -c 'systemctl stop torpor-agent.service; exec python3 -s -m torpor_guest.floor'"
)
"""The port is opened once, so the agent ends before the bare echo begins."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long the steps of a restore by hand took, in seconds."""

    start_s: float
    """Until QEMU greeted."""
    running_s: float
    """Until the vCPUs ran, the start included."""


class FloorMachine:
    """A QEMU that was started by hand; `Floor` makes it and ends it."""

    def __init__(self, folder: Path, epoch: int, process: proc.ProcessId, qmp: Qmp) -> None:
        self.process = process
        self.qmp = qmp
        self.times = Times(0.0, 0.0)
        self._folder = folder
        self._epoch = epoch

    def agent(self, *, timeout_s: float = _ANSWER_LIMIT_S) -> GuestClient:
        """Connect to the agent, straight over the channel; close it with `aclose` on the SDK's loop."""
        self._epoch += 1
        return loop_thread.run(
            connect(self._folder / "agent", epoch=self._epoch, timeout_s=timeout_s)
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

    def bare_port(self) -> BarePort:
        """End the agent, start the bare echo in its place, and return the port."""
        with self.renewed() as agent:
            run(agent, _MAKE_WAY)
        return BarePort(_connected(self._folder / "agent"))

    def close(self) -> None:
        """End QEMU and remove its files. Idempotent."""
        with contextlib.suppress(OSError):
            self.qmp.close()
        loop_thread.run(self.process.kill(within_s=15.0))
        shutil.rmtree(self._folder, ignore_errors=True)


class BarePort:
    """The host end of the port with `torpor_guest.floor` at the other."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(1.0)
        for _ in range(int(_ANSWER_LIMIT_S)):
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
        self._socket.settimeout(_ANSWER_LIMIT_S)

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


class Floor:
    """Starts machines by hand below `folder`, and ends all that are left when it is closed."""

    def __init__(self, home: Home, folder: Path) -> None:
        self._home = home
        self._folder = folder
        self._qemu: QemuHost = loop_thread.run(find_qemu())
        self._machines: set[FloorMachine] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def booted(self, template: TemplateInfo, *, ram_mib: int) -> Iterator[FloorMachine]:
        """Boot a template's disk cold; the machine is gone afterwards."""
        found = read_template(self._home.templates / template.digest)
        folder = self._new_folder()
        with (folder / "ram").open("wb"):
            pass
        spec = self._spec(found, (), folder, replace(template, ram_mib=ram_mib))
        yield from self._run(folder, spec, folder / "ram", None, epoch=0)

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
        folder = self._new_folder()
        spec = self._spec(
            template, tuple(ref.id for ref in manifest.disk), folder, _sizes(template, manifest)
        )
        yield from self._run(
            folder,
            spec,
            image,
            self._home.snapshots / snapshot_id / "devices",
            epoch=manifest.epoch + _EPOCH_STEP,
        )

    def close(self) -> None:
        """End all machines that are left."""
        for machine in list(self._machines):
            self._end(machine)

    def make_overlay(self, path: Path, size_gib: int) -> None:
        """Make an empty overlay, as every new machine needs."""
        argv = [str(self._qemu.qemu_img), "create", "-q", "-f", "qcow2", str(path)]
        loop_thread.run(proc.run([*argv, str(size_gib * GIB)], timeout_s=30))

    # ---- inside ----

    def _new_folder(self) -> Path:
        folder = self._folder / new_id("flr")
        folder.mkdir(mode=0o700)
        return folder

    def _spec(
        self, template: Template, layers: tuple[str, ...], folder: Path, sizes: TemplateInfo
    ) -> MachineSpec:
        self.make_overlay(folder / "active.qcow2", sizes.disk_gib)
        return MachineSpec(
            vcpus=sizes.vcpus,
            ram_mib=sizes.ram_mib,
            network="user",
            kernel=template.kernel,
            initrd=template.initrd,
            cmdline=template.cmdline,
            disk=Disk(
                (template.disk, *(self._home.layers / f"{layer}.qcow2" for layer in layers)),
                folder / "active.qcow2",
            ),
        )

    def _run(
        self, folder: Path, spec: MachineSpec, ram: Path, state: Path | None, *, epoch: int
    ) -> Iterator[FloorMachine]:
        begun = time.perf_counter()
        machine = self._started(folder, spec, ram, state, epoch)
        try:
            greeted = time.perf_counter()
            if state is not None:
                machine.qmp.wait_loaded()
                machine.qmp.execute("cont")
            machine.times = Times(greeted - begun, time.perf_counter() - begun)
            yield machine
        finally:
            self._end(machine)

    def _started(
        self, folder: Path, spec: MachineSpec, ram: Path, state: Path | None, epoch: int
    ) -> FloorMachine:
        with contextlib.ExitStack() as stack:
            qmp = stack.enter_context(_listening(folder / "qmp"))
            agent = stack.enter_context(_listening(folder / "agent"))
            log = stack.enter_context((folder / "log").open("ab"))
            wiring = command.Wiring(
                qmp.fileno(), agent.fileno(), "console.log", str(ram), restored=state is not None
            )
            process = proc.start_detached(
                _bare(
                    command.build(self._qemu.binary, self._qemu.accel, "floor", spec, wiring), state
                ),
                log=log,
                cwd=folder,
                pass_fds=(qmp.fileno(), agent.fileno()),
            )
            try:
                machine = FloorMachine(folder, epoch, process, Qmp(_connected(folder / "qmp")))
            except BaseException:
                loop_thread.run(process.kill(within_s=15.0))
                raise
        with self._lock:
            self._machines.add(machine)
        return machine

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


def _bare(argv: list[str], state: Path | None) -> list[str]:
    """Return the command line without the filter of system calls, and loading the state by itself."""
    at = argv.index("-sandbox")
    found = argv[:at] + argv[at + 2 :]
    return [f"file:{state}" if word == "defer" else word for word in found]


def _sizes(template: Template, manifest: Manifest) -> TemplateInfo:
    info = manifest.info
    return replace(template.info, vcpus=info.vcpus, ram_mib=info.ram_mib, disk_gib=info.disk_gib)


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        with socket_name(path) as name:
            listener.bind(name)
        path.chmod(0o600)
        listener.listen(4)
        yield listener


def _connected(path: Path) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_name(path) as name:
            connected.connect(name)
    except OSError:
        connected.close()
        raise
    return connected

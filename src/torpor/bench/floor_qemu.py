"""The floor with QEMU: its command line is the driver's, but for the filter of system calls; it loads the state by itself."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from typing_extensions import override

from torpor.base import proc
from torpor.base.fsio import socket_name
from torpor.base.home import Home
from torpor.base.units import GIB
from torpor.bench.floor import BarePort, Floor, FloorMachine, Times, run
from torpor.bench.qmp import Qmp
from torpor.sdk.loop import loop_thread
from torpor.vmm.base import MachineSpec, SavedMachine
from torpor.vmm.qemu import command
from torpor.vmm.qemu.host import QemuHost, find_qemu

_MAKE_WAY = (
    "systemd-run --quiet --collect --unit=torpor-floor --setenv=PYTHONPATH=/opt/torpor "
    "--property=DefaultDependencies=no "
    "sh -c 'systemctl stop torpor-agent.service; exec python3 -s -m torpor_guest.floor'"
)
"""The port is opened once, so the agent ends before the bare echo begins."""


class QemuFloorMachine(FloorMachine):
    """A QEMU that was started by hand."""

    def __init__(
        self, folder: Path, epoch: int, process: proc.ProcessId, times: Times, qmp: Qmp
    ) -> None:
        super().__init__(folder, epoch, process, times)
        self.qmp = qmp

    @override
    def bare_port(self) -> BarePort:
        """End the agent, start the bare echo in its place, and return the port."""
        with self.renewed() as agent:
            run(agent, _MAKE_WAY)
        return BarePort(_connected(self.agent_socket))

    @override
    def close(self) -> None:
        """End QEMU and remove its files. Idempotent."""
        with contextlib.suppress(OSError):
            self.qmp.close()
        super().close()


class QemuFloor(Floor):
    """Starts QEMUs by hand."""

    vmm = "QEMU"

    def __init__(self, home: Home, folder: Path) -> None:
        super().__init__(home, folder)
        self._qemu: QemuHost = loop_thread.run(find_qemu())

    def make_overlay(self, path: Path, size_gib: int) -> None:
        """Make an empty overlay, as every new machine needs."""
        argv = [str(self._qemu.qemu_img), "create", "-q", "-f", "qcow2", str(path)]
        loop_thread.run(proc.run([*argv, str(size_gib * GIB)], timeout_s=30))

    @override
    def _started(
        self,
        folder: Path,
        spec: MachineSpec,
        saved: SavedMachine | None,
        disk_gib: int,
        epoch: int,
    ) -> QemuFloorMachine:
        active = folder / "active.qcow2"
        self.make_overlay(active, disk_gib)
        spec = dataclasses.replace(spec, disk=dataclasses.replace(spec.disk, active=active))
        ram = folder / "ram" if saved is None else saved.ram_image
        if saved is None:
            ram.touch()
        begun = time.perf_counter()
        process = self._process(folder, spec, ram, saved)
        with contextlib.ExitStack() as undone:
            undone.callback(lambda: loop_thread.run(process.kill(within_s=15.0)))
            qmp = undone.enter_context(contextlib.closing(Qmp(_connected(folder / "qmp"))))
            greeted = time.perf_counter()
            if saved is not None:
                qmp.wait_loaded()
                qmp.execute("cont")
            undone.pop_all()
        times = Times(greeted - begun, time.perf_counter() - begun)
        return QemuFloorMachine(folder, epoch, process, times, qmp)

    def _process(
        self, folder: Path, spec: MachineSpec, ram: Path, saved: SavedMachine | None
    ) -> proc.ProcessId:
        with contextlib.ExitStack() as stack:
            qmp = stack.enter_context(_listening(folder / "qmp"))
            agent = stack.enter_context(_listening(folder / "agent"))
            log = stack.enter_context((folder / "log").open("ab"))
            wiring = command.Wiring(
                qmp.fileno(), agent.fileno(), "console.log", str(ram), restored=saved is not None
            )
            argv = command.build(self._qemu.binary, self._qemu.accel, "floor", spec, wiring)
            return proc.start_detached(
                _bare(argv, saved),
                log=log,
                cwd=folder,
                pass_fds=(qmp.fileno(), agent.fileno()),
            )


def _bare(argv: list[str], saved: SavedMachine | None) -> list[str]:
    """Return the command line without the filter of system calls, and loading the state by itself."""
    at = argv.index("-sandbox")
    found = argv[:at] + argv[at + 2 :]
    if saved is None:
        return found
    return [f"file:{saved.device_state}" if word == "defer" else word for word in found]


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

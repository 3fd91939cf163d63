"""The floor with Firecracker: what it is told is what the driver tells it, without the driver, its users and its filters.

The network namespace with the tap is there before the clock runs, as any program could have some in store. The copy of
the disk counts: a machine needs one of its own, and of the snapshot that it goes on from.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from typing_extensions import override

from torpor.base import proc
from torpor.base.fsio import clone_file
from torpor.base.home import Home
from torpor.base.units import GIB
from torpor.bench import firecracker_api as api
from torpor.bench.floor import ANSWER_LIMIT_S, BarePort, Floor, FloorMachine, Times, run
from torpor.errors import InvalidRequest, VmmFailed
from torpor.guest import vsock
from torpor.sdk.loop import loop_thread
from torpor.vmm.base import MachineSpec, SavedMachine
from torpor.vmm.firecracker import config, host, kernel, network
from torpor.vmm.limits import RateLimits

_ECHO_PORT: Final = 1025
_ECHO: Final = (
    "systemd-run --quiet --collect --unit=torpor-floor --setenv=PYTHONPATH=/opt/torpor "
    "--property=DefaultDependencies=no python3 -s -c '"
    "import socket; from torpor_guest.floor import Floor; "
    "listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM); "
    f"listener.bind((socket.VMADDR_CID_ANY, {_ECHO_PORT})); listener.listen(1); "
    "Floor(listener.accept()[0].detach()).serve()'"
)
"""At a port of its own: the agent can stay."""

_WAITING: Final = (
    'ip tuntap add dev "$1" mode tap && ip link set "$1" up && echo >"$2" && read -r go <"$3" '
    '&& shift 3 && exec "$@"'
)
"""Makes the tap, says so, and becomes Firecracker when it is told to; if nobody is left to tell it, it ends."""


class FirecrackerFloorMachine(FloorMachine):
    """A Firecracker that was started by hand."""

    agent_port = config.AGENT_PORT

    @property
    @override
    def agent_socket(self) -> Path:
        """The socket that leads to the guest's vsock."""
        return self.folder / config.AGENT_SOCKET

    @override
    def bare_port(self) -> BarePort:
        """Start the bare echo beside the agent, and return the port that leads to it."""
        with self.renewed() as agent:
            run(agent, _ECHO)
        return BarePort(loop_thread.run(_connected(self.agent_socket)))


class FirecrackerFloor(Floor):
    """Starts Firecrackers by hand."""

    vmm = "Firecracker"

    def __init__(self, home: Home, folder: Path) -> None:
        super().__init__(home, folder)
        self._host = loop_thread.run(host.find_firecracker())

    @override
    def _started(
        self,
        folder: Path,
        spec: MachineSpec,
        saved: SavedMachine | None,
        disk_gib: int,
        epoch: int,
    ) -> FirecrackerFloorMachine:
        source = spec.disk.layers[-1]
        if source.suffix != ".raw":
            raise InvalidRequest(f"{source} is not a disk that Firecracker can read")
        image = loop_thread.run(kernel.elf_of(spec.kernel))
        boot = list(config.boot(spec, image, RateLimits()))
        _make_places(folder, boot)
        with self._waiting(folder) as waiting:
            begun = time.perf_counter()
            clone_file(source, folder / config.DISK)
            os.truncate(folder / config.DISK, disk_gib * GIB)
            waiting.go()
            control = folder / config.API_SOCKET
            api.wait_listening(control, waiting.process)
            listened = time.perf_counter()
            for what, body in boot if saved is None else ():
                api.put(control, what, body)
            if saved is not None:
                api.put(control, "/snapshot/load", config.load(saved) | {"resume_vm": True})
            times = Times(listened - begun, time.perf_counter() - begun)
        return FirecrackerFloorMachine(folder, epoch, waiting.process, times)

    @contextlib.contextmanager
    def _waiting(self, folder: Path) -> Iterator[_Waiting]:
        """Enter with a process that has a network and waits to become Firecracker; if the body fails it is ended."""
        with contextlib.ExitStack() as stack:
            said, their_said = map(stack.enter_context, _pipe())
            their_tell, tell = map(stack.enter_context, _pipe())
            log = stack.enter_context((folder / "log").open("ab"))
            out = stack.enter_context((folder / config.CONSOLE).open("ab"))
            theirs = (their_said.fileno(), their_tell.fileno())
            ends = [f"/proc/self/fd/{fd}" for fd in theirs]
            argv = [*_alone(), "/bin/sh", "-c", _WAITING, "sh", network.TAP, *ends]
            argv += [str(self._host.binary), "--id", "floor", "--no-seccomp"]
            argv += ["--api-sock", config.API_SOCKET]
            process = proc.start_detached(
                argv, log=log, out=out, cwd=folder, env=_ENV, pass_fds=theirs
            )
            try:
                their_said.close()
                their_tell.close()
                _await_network(said, folder / "log")
                yield _Waiting(process, tell)
            except BaseException:
                loop_thread.run(process.kill(within_s=15.0))
                raise


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A process that waits to become Firecracker."""

    process: proc.ProcessId
    tell: IO[bytes]

    def go(self) -> None:
        """Let it."""
        self.tell.write(b"go\n")


async def _connected(path: Path) -> socket.socket:
    async with asyncio.timeout(ANSWER_LIMIT_S):
        return await vsock.connect(path, _ECHO_PORT)


def _make_places(folder: Path, boot: list[tuple[str, dict[str, object]]]) -> None:
    """Make the files of the drives that nothing is in."""
    for what, body in boot:
        if what.startswith("/drives/") and body["path_on_host"] != config.DISK:
            with (folder / str(body["path_on_host"])).open("wb") as file:
                file.truncate(4096)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb", 0)


def _await_network(said: IO[bytes], log: Path) -> None:
    """Return when the process has said that it has its network."""
    if not select.select([said], [], [], ANSWER_LIMIT_S)[0] or not said.read(1):
        words = log.read_text(errors="replace")[-500:]
        raise VmmFailed(f"a network for Firecracker cannot be made by hand: {words}")


_ENV: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def _alone() -> list[str]:
    """Return what starts a program in a network namespace of its own."""
    return ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--net", "--"]

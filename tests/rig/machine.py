"""The emulated host while it runs: a QEMU process, its folder, and the port that commands go through."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rig import source
from tests.rig.image import host_image, work_folder
from tests.rig.template import template_disk

PORT_NAME = "torpor.rig"
MEMORY_MIB = 5120
SCRATCH_BYTES = 32 << 30

_BOOT_S = 240.0
_GRACE_S = 60.0
"""How long after a command's own limit its end is waited for."""
_CMDLINE = "console=ttyS0 root=/dev/vda rw loglevel=3 panic=-1 net.ifnames=0 mitigations=off audit=0 init=/opt/rig/boot.sh"


def to_stdout(data: bytes) -> None:
    """Print what a command says."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class RigFailed(Exception):
    """Raised when the emulated host does not do what it must; the message has the end of its console."""


@dataclass(frozen=True, slots=True)
class Rig:
    """A host that was started in `folder`."""

    folder: Path
    pid: int

    @staticmethod
    def at(folder: Path) -> Rig:
        """Return the host that runs in `folder`."""
        try:
            return Rig(folder, int((folder / "pid").read_text()))
        except FileNotFoundError as exc:
            raise RigFailed(f"no rig runs in {folder}") from exc

    def console_tail(self) -> str:
        """Return the last lines of the host's console."""
        console = self.folder / "console"
        lines = console.read_text(errors="replace").splitlines() if console.exists() else []
        return "\n".join(lines[-20:])

    @contextlib.contextmanager
    def port(self, within_s: float) -> Iterator[Port]:
        """Enter with the port; nobody else may have it at the same time."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(self.folder / "port"))
            yield Port(sock, time.monotonic() + within_s, self)

    def wait_ready(self) -> None:
        """Return when the agent runs."""
        with self.port(_BOOT_S) as port:
            while "ready" not in port.receive():
                pass

    def renew_source(self) -> None:
        """Bring the host's source tree to what this one is now."""
        marks = self.folder / "marks.json"
        now = source.look()
        changed, gone = source.changes(source.load(marks), now)
        if changed or gone:
            data = source.pack(source.files(changed))
            with self.port(300.0) as port:
                port.send({"tree": len(data), "gone": gone}, data)
                port.exit_code(lambda _: None)
            source.save(now, marks)

    def run(
        self,
        argv: Sequence[str],
        *,
        limit_s: float,
        env: Mapping[str, str],
        take: Callable[[bytes], None] = to_stdout,
    ) -> int:
        """Run a command, its output given to `take`; return its exit code, 124 when it took too long."""
        with self.port(limit_s + _GRACE_S) as port:
            port.send({"run": list(argv), "env": dict(env), "limit_s": limit_s})
            try:
                return port.exit_code(take)
            except KeyboardInterrupt:
                port.send({"stop": True})
                return port.exit_code(take)

    def end(self) -> None:
        """End the host at once; nothing in it is kept."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        (self.folder / "pid").unlink(missing_ok=True)


class Port:
    """Lines of JSON to and from the agent, until a moment that nothing waits beyond."""

    def __init__(self, sock: socket.socket, until: float, rig: Rig) -> None:
        self._sock, self._until, self._rig = sock, until, rig
        self._buffer = b""

    def send(self, message: Mapping[str, object], data: bytes = b"") -> None:
        """Send a request, and the bytes that belong to it."""
        self._sock.settimeout(max(0.1, self._until - time.monotonic()))
        self._sock.sendall(json.dumps(message).encode() + b"\n" + data)

    def receive(self) -> dict[str, object]:
        """Return the next answer."""
        while b"\n" not in self._buffer:
            self._sock.settimeout(max(0.1, self._until - time.monotonic()))
            try:
                data = self._sock.recv(1 << 16)
            except TimeoutError as exc:
                raise RigFailed(
                    f"no answer in time; its console:\n{self._rig.console_tail()}"
                ) from exc
            if not data:
                raise RigFailed(f"the host ended; its console:\n{self._rig.console_tail()}")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return dict(json.loads(line))

    def exit_code(self, take: Callable[[bytes], None]) -> int:
        """Return a request's end, each piece of output given to `take`."""
        while True:
            answer = self.receive()
            if "out" in answer:
                take(base64.b64decode(str(answer["out"])))
            elif "exit" in answer:
                return int(str(answer["exit"]))


@contextlib.contextmanager
def booted() -> Iterator[Rig]:
    """Enter with a fresh host that takes commands; the rest as `started`."""
    with started() as rig:
        rig.wait_ready()
        yield rig


@contextlib.contextmanager
def started() -> Iterator[Rig]:
    """Enter with a fresh host that boots and has this source tree; on leaving it is gone, and all that it wrote."""
    with work_folder() as folder:
        rig = start(folder, dies_with_us=True)
        try:
            yield rig
        finally:
            rig.end()


def start(folder: Path, *, dies_with_us: bool) -> Rig:
    """Boot a host in `folder` (empty); `wait_ready` tells when it takes commands."""
    image, template = host_image(), template_disk()
    marks = source.look()
    source.save(marks, folder / "marks.json")
    tree = folder / "source.tar"
    tree.write_bytes(source.pack(source.files(marks), mode="w"))
    scratch = folder / "scratch.raw"
    with scratch.open("wb") as file:
        file.truncate(SCRATCH_BYTES)
    log = (folder / "qemu.log").open("wb")
    tether = ["setpriv", "--pdeathsig", "KILL"] if dies_with_us else []
    child = subprocess.Popen(
        [*tether, *_command(image, template, scratch, tree)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=folder,
        start_new_session=True,
    )
    log.close()
    (folder / "pid").write_text(str(child.pid))
    until = time.monotonic() + 20
    while not (folder / "port").exists():
        if child.poll() is not None or time.monotonic() > until:
            raise RigFailed(f"QEMU did not start: {(folder / 'qemu.log').read_text()}")
        time.sleep(0.02)
    return Rig(folder, child.pid)


def _command(image: Path, template: Path, scratch: Path, tree: Path) -> list[str]:
    disks = ((image / "disk.raw", "on"), (scratch, "off"), (template, "on"), (tree, "on"))
    drives = [
        word
        for number, (path, keep) in enumerate(disks)
        for word in (
            "-drive",
            f"file={path},format=raw,if=virtio,id=d{number},cache=unsafe,snapshot={keep}",
        )
    ]
    return [
        "qemu-system-x86_64",
        *("-M", "q35,accel=tcg,usb=off,vmport=off", "-cpu", "max,+svm,+npt"),
        *("-smp", "1", "-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-display", "none"),
        *("-serial", "file:console", *drives),
        *("-device", "virtio-serial-pci"),
        *("-chardev", "socket,id=rig,path=port,server=on,wait=off"),
        *("-device", f"virtserialport,chardev=rig,name={PORT_NAME}"),
        *("-device", "virtio-rng-pci"),
        *("-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd")),
        *("-append", _CMDLINE, "-no-reboot"),
    ]

"""Runs in the emulated host as its first process: takes requests from the rig's port, one at a time.

A request is a line of JSON, and so is each answer:

    {"tree": BYTES, "gone": [...]}            and then as many bytes of a tar: files to add or replace, and to remove
    {"run": [...], "env": {}, "limit_s": S}   answered by any number of {"out": base64} and a last {"exit": N}
    {"stop": true}                            during a run: its processes are killed

Standard library only. Exit 124 means that the limit was reached.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import select
import signal
import subprocess
import tarfile
import time
from pathlib import Path

PORT_NAME = "torpor.rig"
SOURCE = Path("/rig/src")
SITE = "/opt/rig/site"
LATE = 124


def main() -> None:
    """Reap as a first process must, and serve in a child."""
    child = os.fork()
    if child == 0:
        try:
            serve(find_port())
        finally:
            power_off()
    while True:
        with contextlib.suppress(ChildProcessError, InterruptedError):
            pid, _ = os.wait()
            if pid == child:
                power_off()


def power_off() -> None:
    os.sync()
    subprocess.run(["poweroff", "-ff"], check=False)


def find_port() -> int:
    for name in Path("/sys/class/virtio-ports").glob("*/name"):
        if name.read_text().strip() == PORT_NAME:
            return os.open(f"/dev/{name.parent.name}", os.O_RDWR)
    raise SystemExit(f"there is no port {PORT_NAME}")


class Port:
    """The port's lines and bytes; a closed other end is waited out."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.buffer = b""

    def send(self, message: dict[str, object]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            try:
                data = data[os.write(self.fd, data) :]
            except OSError:  # nobody is there to read it
                time.sleep(0.05)

    def fill(self) -> None:
        data = os.read(self.fd, 1 << 20)
        if not data:
            time.sleep(0.05)  # a port whose other end is closed reads as empty and is always ready
        self.buffer += data

    def line(self) -> dict[str, object]:
        while b"\n" not in self.buffer:
            self.fill()
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self.fill()
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data


def serve(fd: int) -> None:
    port = Port(fd)
    port.send({"ready": True})
    while True:
        request = port.line()
        if "tree" in request:
            renew(port.exactly(request["tree"]), request["gone"])
            port.send({"exit": 0})
        elif "run" in request:
            port.send({"exit": run(port, request)})


def renew(changed: bytes, gone: list[str]) -> None:
    """Bring the tree to what it is outside."""
    for name in gone:
        (SOURCE / name).unlink(missing_ok=True)
    with tarfile.open(fileobj=io.BytesIO(changed), mode="r:gz") as tar:
        tar.extractall(SOURCE, filter="data")


def run(port: Port, request: dict[str, object]) -> int:
    """Run one command in a session of its own, its output sent as it comes."""
    environment = dict(os.environ) | {
        "PYTHONPATH": f"{SOURCE}/src:{SOURCE}:{SITE}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "TORPOR_FIRECRACKER": "/opt/rig/firecracker",
        "TORPOR_TEST_FIRECRACKER": "/opt/rig/firecracker",
        "TORPOR_TEST_HOME": "/rig/home",
        "HOME": "/root",
        "TMPDIR": "/rig/tmp",
        "TERM": "dumb",
    }
    environment |= request.get("env", {})
    Path(environment["TMPDIR"]).mkdir(mode=0o1777, exist_ok=True)
    Path(environment["TMPDIR"]).chmod(0o1777)
    ours, theirs = os.pipe()
    try:
        child = subprocess.Popen(
            request["run"],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            cwd=SOURCE,
            start_new_session=True,
        )
    except OSError as exc:
        port.send({"out": base64.b64encode(f"{exc}\n".encode()).decode()})
        return 127
    finally:
        os.close(theirs)
    try:
        return follow(port, child, ours, time.monotonic() + float(request["limit_s"]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        os.close(ours)


def follow(port: Port, child: subprocess.Popen[bytes], output: int, until: float) -> int:
    """Send output until the command has ended; what it started and left behind may keep the pipe open."""
    while True:
        ready, _, _ = select.select([output, port.fd], [], [], 0.1)
        if output in ready:
            if data := os.read(output, 1 << 16):
                port.send({"out": base64.b64encode(data).decode()})
                continue
            return ended(child, until)
        if port.fd in ready:
            port.fill()
            if b"\n" in port.buffer and "stop" in port.line():
                return 130
        if child.poll() is not None:
            return ended(child, until)
        if time.monotonic() > until:
            return LATE


def ended(child: subprocess.Popen[bytes], until: float) -> int:
    """Return the end of a command that says no more, as a shell would."""
    try:
        status = child.wait(timeout=max(1.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return LATE
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    main()

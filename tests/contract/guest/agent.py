"""The real agent as a process of the host, over a Unix socket in place of the virtio-serial port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torpor_guest
from torpor.guest.client import GuestClient, connect

PYTHON = os.environ.get("TORPOR_TEST_AGENT_PYTHON", sys.executable)
"""What runs the agent: a guest may have another Python than the host."""
SOURCES = Path(torpor_guest.__file__ or "").parent.parent
TESTS = Path(__file__).parent.parent.parent.parent


@dataclass
class Agent:
    """One agent with its state folder; can be killed and started again."""

    folder: Path
    cgroup: str = "none"
    process: subprocess.Popen[bytes] | None = None
    epoch: int = 0
    state: Path | None = None
    clients: list[GuestClient] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """What it takes for the machine's root, as far as the machine itself is concerned."""
        return self.folder / "root"

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "agent.sock"

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.socket.unlink(missing_ok=True)
        image = self.folder / "image.json"
        if not image.exists():
            image.write_text('{"env": {"FROM_IMAGE": "yes", "LAYER": "image"}}')
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(PYTHON, "-S", "-m", "tests.contract.guest.harmless"),
                    *("--socket", str(self.socket)),
                    *(
                        "--state-dir",
                        str(self.state or self.folder / "state"),
                        "--image",
                        str(image),
                    ),
                    *("--cgroup", self.cgroup, "--proc-sys", str(self.folder / "sys")),
                    *("--sandbox", str(self.folder / "sandbox.json")),
                ],
                # No other PATH: a `systemctl poweroff` of the agent must never reach this machine.
                env={
                    "PYTHONPATH": f"{SOURCES}:{TESTS}",
                    "PATH": str(self.folder / "bin"),
                    "TORPOR_TEST_ROOT": str(self.root),
                    **self.env,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 20
        while not self.socket.exists():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.005)

    async def connect(self, *, timeout_s: float = 10, silence_limit_s: float = 30) -> GuestClient:
        """Connect to it with the next epoch."""
        self.epoch += 1
        client = await connect(
            self.socket, epoch=self.epoch, timeout_s=timeout_s, silence_limit_s=silence_limit_s
        )
        self.clients.append(client)
        return client

    @property
    def pid(self) -> int:
        """Its process."""
        assert self.process
        return self.process.pid

    def kill(self) -> None:
        """Kill it with signal 9, as the kernel would."""
        assert self.process
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """Stop it as systemd would, and check that it leaves nothing running."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
            try:
                assert self.process.wait(10) == 0, self.log()
            finally:
                self.process.kill()

    def log(self) -> str:
        """What it logged."""
        return (self.folder / "agent.log").read_text()

    def rss_bytes(self, *, peak: bool = False) -> int:
        """How much memory it takes."""
        key = "VmHWM" if peak else "VmRSS"
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) << 10
        raise AssertionError(f"no {key}")


@contextlib.contextmanager
def running_agent(
    folder: Path,
    *,
    cgroup: str = "none",
    state: Path | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[Agent]:
    """Run an agent; after it nothing of it runs any more."""
    agent = Agent(folder, cgroup, state=state, env=env or {})
    (folder / "bin").mkdir(parents=True)
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()
        assert_nothing_left(folder)


def assert_nothing_left(folder: Path) -> None:
    """Fail if a process still has its spool or folder below `folder`."""
    deadline = time.monotonic() + 3
    while left := _processes_in(folder):
        if time.monotonic() > deadline:
            raise AssertionError(f"left running: {left}")
        time.sleep(0.02)


def _processes_in(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                where = (entry / "cwd").readlink()
                if str(folder).encode() in command or where.is_relative_to(folder):
                    found.append(f"{entry.name}: {command!r}")
    return found


def spawner_of(agent: Agent) -> int:
    """Return the process that starts the agent's commands."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if b"spawner.py" in words and int(parent) == agent.pid:
                return int(entry.name)
    raise AssertionError("the agent has no spawner")


def cgroup_root() -> Path | None:
    """A cgroup v2 folder in which tests may make groups; None if there is none."""
    for folder in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if (folder / "cgroup.controllers").exists() and os.access(folder, os.W_OK):
            return folder
    return None


@contextlib.contextmanager
def cgroup_choice(kind: str) -> Iterator[str | None]:
    """Make a group for an agent's commands; None where that cannot be. `kind` `sessions` needs none."""
    root = cgroup_root()
    if kind == "sessions" or root is None:
        yield "none" if kind == "sessions" else None
        return
    group = root / f"torpor-test-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    try:
        yield str(group)
    finally:
        remove_groups(group)


def remove_groups(group: Path) -> None:
    """Remove a group and those below it, as soon as nothing runs in them."""
    deadline = time.monotonic() + 5
    while group.exists():
        try:
            for folder in sorted(group.glob("**/"), key=lambda p: -len(p.parts)):
                folder.rmdir()
        except OSError:
            assert time.monotonic() < deadline, f"something runs in {group}"
            time.sleep(0.01)


async def eventually(check: Callable[[], object], *, within_s: float = 5.0) -> None:
    """Wait until `check()` is true; it must not block for long."""
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, f"{check} did not come true in {within_s} s"
        await asyncio.sleep(0.01)

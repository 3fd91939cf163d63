"""A template build without Debian and without a machine: the seams of `TemplateStore`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

from tests.fakes.records import T0
from torpor.base import proc
from torpor.errors import GuestUnreachable
from torpor.guest.port import Guest
from torpor.model import ExecEnded, ExecEvent, ExecId, ExecInfo, ExecOutput, ExecSpec, Network
from torpor.templates.debian import find_tool
from torpor.templates.manifest import Template
from torpor.templates.plan import BuildPlan, Step

DISK_BYTES = 2 << 20


class FakeGuest:
    """The little of a guest that a template's first boot asks for."""

    def __init__(self, output: bytes = b"", exit_code: int = 0) -> None:
        self.calls: list[str] = []
        self._output = output
        self._exit_code = exit_code

    async def settle(self, *, timeout_s: float) -> None:
        self.calls.append("settle")

    async def exec_start(self, exec_id: ExecId, spec: ExecSpec, **_: Any) -> None:
        self.calls.append(f"exec as {spec.user}")

    @contextlib.asynccontextmanager
    async def exec_attach(
        self, exec_id: ExecId, **_: Any
    ) -> AsyncIterator[AsyncIterator[ExecEvent]]:
        async def events() -> AsyncIterator[ExecEvent]:
            yield ExecOutput("stdout", 0, self._output)
            yield ExecEnded(
                ExecInfo(
                    exec_id=exec_id,
                    command="",
                    state="exited",
                    pid=1,
                    user="root",
                    cwd="/",
                    background=False,
                    started_at=T0,
                    exit_code=self._exit_code,
                )
            )

        yield events()

    async def exec_forget(self) -> int:
        self.calls.append("exec_forget")
        return 1

    async def shutdown(self) -> None:
        self.calls.append("shutdown")


class FakeBooter:
    """Boots nothing; remembers what it was given."""

    def __init__(self, guest: FakeGuest | None = None, *, fail: bool = False) -> None:
        self.guest = guest or FakeGuest()
        self.booted: list[Template] = []
        self.networks: list[Network] = []
        self.swept: list[Path] = []
        self._fail = fail

    @contextlib.asynccontextmanager
    async def __call__(
        self, image: Template, work: Path, *, network: Network = "none"
    ) -> AsyncIterator[Guest]:
        assert not work.exists()
        assert image.disk.stat().st_mode & 0o200
        assert not image.kernel.stat().st_mode & 0o222
        self.booted.append(image)
        self.networks.append(network)
        if self._fail:
            raise GuestUnreachable("the agent did not answer within 1 s")
        yield self.guest  # type: ignore[misc]

    async def sweep(self, work: Path) -> None:
        self.swept.append(work)


class FakeBootstrap:
    """Makes a tiny real ext4 disk; `gate`, when given, holds it up in the middle."""

    def __init__(self, gate: asyncio.Event | None = None, error: Exception | None = None) -> None:
        self.runs = 0
        self.begun = asyncio.Event()
        self.cancelled = False
        self._gate = gate
        self._error = error

    async def __call__(self, plan: BuildPlan, work: Path, out: Path) -> AsyncGenerator[Step, None]:
        self.runs += 1
        (work / "root").mkdir()
        (work / "root" / "big").write_bytes(b"x" * 1000)
        yield Step("packages", "fetching 2 packages", 0.5)
        self.begun.set()
        if self._gate is not None:
            try:
                await self._gate.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        if self._error is not None:
            raise self._error
        await make_files(out)
        yield Step("image", "the disk is written", 1.0)


async def make_files(out: Path) -> None:
    """Write a disk, kernel and initrd as a bootstrapper does."""
    disk = out / "disk.raw"
    with disk.open("wb") as file:
        file.truncate(DISK_BYTES)
    await proc.run(
        [find_tool("mke2fs") or "mke2fs", "-q", "-F", "-t", "ext4", str(disk)], timeout_s=20
    )
    (out / "vmlinuz").write_bytes(b"kernel")
    (out / "initrd").write_bytes(b"initrd")


def write_agent(folder: Path) -> Path:
    """Write what passes for the guest agent's sources."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__main__.py").write_text("print('agent')\n")
    (folder / "torpor-agent.service").write_text("[Service]\nExecStart=/bin/true\n")
    return folder

"""One QEMU process, driven over QMP."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from qemu.qmp import QMPClient, QMPError, Runstate

from torpor.base.aio import finish
from torpor.base.fsio import socket_name
from torpor.base.proc import ProcessId
from torpor.errors import VmmFailed
from torpor.vmm.base import VmmStatus


class QemuMachine:
    """A running QEMU. Closing this object ends nothing; the machine goes on without us."""

    def __init__(self, process: ProcessId, folder: Path, qmp: QMPClient) -> None:
        self._process = process
        self._folder = folder
        self._qmp = qmp
        self._turn = asyncio.Lock()

    @classmethod
    async def attach(cls, process: ProcessId, folder: Path, *, timeout_s: float) -> QemuMachine:
        """Connect to the control socket in `folder`.

        Raises:
            VmmFailed: it does not answer within `timeout_s` seconds, or the process has ended.
        """
        return cls(process, folder, await _connect(folder, timeout_s))

    @property
    def process(self) -> ProcessId:
        """QEMU's process."""
        return self._process

    @property
    def agent_socket(self) -> Path:
        """The host end of the guest channel."""
        return agent_socket(self._folder)

    async def status(self) -> VmmStatus:
        """Return `running`, `paused` or `ended`. Raises `VmmFailed` when QEMU lives but does not answer."""
        if not self._process.alive():
            return "ended"
        try:
            answer = await self._execute("query-status", timeout_s=5.0)
        except VmmFailed:
            if not self._process.alive():
                return "ended"
            raise
        return "running" if isinstance(answer, dict) and answer.get("running") else "paused"

    async def pause(self, *, timeout_s: float = 5.0) -> None:
        """Stop the vCPUs. Idempotent. On `VmmFailed` the machine runs on or has ended."""
        await self._execute("stop", timeout_s=timeout_s)

    async def resume(self, *, timeout_s: float = 5.0) -> None:
        """Let the vCPUs run. Idempotent."""
        await self._execute("cont", timeout_s=timeout_s)

    async def kill(self) -> None:
        """End QEMU at once; returns when it is gone."""
        await self._process.kill(within_s=15.0)
        await self.aclose()

    async def wait(self) -> None:
        """Return when QEMU has ended."""
        await self._process.wait()

    async def aclose(self) -> None:
        """Let go of the control socket."""
        if self._qmp.runstate is not Runstate.IDLE:
            with contextlib.suppress(QMPError, OSError, EOFError, TimeoutError):
                await finish(self._qmp.disconnect(), within_s=5.0)

    async def _execute(self, command: str, *, timeout_s: float, **arguments: Any) -> object:
        """Run one QMP command; a control connection that was cut is made anew once."""
        async with self._turn:
            try:
                async with asyncio.timeout(timeout_s):
                    if self._qmp.runstate is not Runstate.RUNNING:
                        await self.aclose()
                        self._qmp = await _connect(self._folder, timeout_s)
                    return await self._qmp.execute(command, arguments or None)
            except TimeoutError as exc:
                raise VmmFailed(
                    f"QEMU (process {self._process.pid}) did not answer {command!r} within {timeout_s:g} s",
                    hint="look at its log in the sandbox's folder, or delete the sandbox",
                    pid=self._process.pid,
                ) from exc
            except (QMPError, OSError, EOFError) as exc:
                raise VmmFailed(
                    f"QEMU (process {self._process.pid}) refused {command!r}: {exc}",
                    pid=self._process.pid,
                ) from exc


def agent_socket(folder: Path) -> Path:
    """Return the path of the guest channel's socket in a machine's folder."""
    return folder / "vm" / "agent.sock"


def qmp_socket(folder: Path) -> Path:
    """Return the path of the control socket in a machine's folder."""
    return folder / "vm" / "qmp.sock"


async def _connect(folder: Path, timeout_s: float) -> QMPClient:
    client = QMPClient(folder.name)
    # The VMM is not trusted either: what it may send in one message is bounded by the reader's limit.
    try:
        async with asyncio.timeout(timeout_s):
            with socket_name(qmp_socket(folder)) as name:
                await client.connect(name)
    except TimeoutError as exc:
        raise VmmFailed(
            f"QEMU in {folder} did not greet within {timeout_s:g} s", folder=folder
        ) from exc
    except (QMPError, OSError, EOFError) as exc:
        raise VmmFailed(f"QEMU in {folder} cannot be reached: {exc}", folder=folder) from exc
    return client

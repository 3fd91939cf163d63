"""A VMM that does not answer a pause: it is told at once to go on, whatever else waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from qemu.qmp import Runstate

from torpor.base.proc import ProcessId
from torpor.errors import VmmFailed
from torpor.vmm.firecracker.machine import FirecrackerMachine
from torpor.vmm.limits import RateLimits
from torpor.vmm.qemu.machine import QemuMachine

STOP = {"qemu": "stop", "firecracker": "Paused"}
CONT = {"qemu": "cont", "firecracker": "Resumed"}
FIGURES = {"qemu": "query-blockstats", "firecracker": "/actions"}


class Deaf:
    """It hears all and answers nothing."""

    runstate = Runstate.RUNNING

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._more = asyncio.Condition()

    async def execute(self, name: str, arguments: object) -> object:
        await self._hear(name)
        return await asyncio.get_running_loop().create_future()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"Length" in line), 0
        )
        body = json.loads(await reader.readexactly(length)) if length else {}
        await self._hear(str(body.get("state", head.split(b" ")[1].decode())))
        await reader.read()  # until nobody waits any more
        writer.close()

    async def until(self, word: str) -> None:
        async with asyncio.timeout(10), self._more:
            await self._more.wait_for(lambda: word in self.heard)

    async def _hear(self, word: str) -> None:
        async with self._more:
            self.heard.append(word)
            self._more.notify_all()


@contextlib.asynccontextmanager
async def _machine(name: str, folder: Path) -> AsyncIterator[tuple[Any, Deaf]]:
    process, deaf = ProcessId.of(os.getpid()), Deaf()
    assert process is not None
    if name == "qemu":
        qmp: Any = deaf
        yield QemuMachine(process, folder, folder / "ram", 1 << 20, RateLimits(), None, qmp), deaf
        return
    (folder / "vm").mkdir()
    async with await asyncio.start_unix_server(deaf.serve, folder / "vm/api.sock"):
        yield FirecrackerMachine(process, folder, None, 1 << 20, RateLimits()), deaf


@pytest.mark.parametrize("name", ["qemu", "firecracker"])
def test_a_pause_that_is_not_answered_is_undone_at_once(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with _machine(name, tmp_path) as (machine, deaf):
            pausing = asyncio.create_task(machine.pause(timeout_s=0.2))
            await deaf.until(STOP[name])
            behind = asyncio.create_task(machine.figures())  # it has the next turn
            await deaf.until(CONT[name])
            with pytest.raises(VmmFailed, match=r"within 0\.2 s"):
                await pausing
            behind.cancel()
            await asyncio.wait({behind})

    asyncio.run(main())


@pytest.mark.parametrize("name", ["qemu", "firecracker"])
def test_who_waits_for_a_turn_waits_no_longer_than_for_an_answer(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with _machine(name, tmp_path) as (machine, deaf):
            first = asyncio.create_task(machine.figures())
            await deaf.until(FIGURES[name])
            async with asyncio.timeout(5):
                with pytest.raises(VmmFailed, match=r"within 0\.1 s"):
                    await machine.resume(timeout_s=0.1)
            assert CONT[name] not in deaf.heard
            first.cancel()
            await asyncio.wait({first})

    asyncio.run(main())

"""A daemon whose machines are processes that do nothing, and whose guests are lines in the files of their disks.

All but the machines is real: server, engine, layers, workflows, databases. What a guest writes lands in its active
overlay, so that snapshots and rollbacks treat it as they treat a disk; and a guest lives on when the daemon dies.
Commands: `write PATH WORD`, `sleep SECONDS`, `fail`, joined by `;`. Each start of one is noted in `starts.log` of the
home, which no rollback touches. Of databases all but PostgreSQL is real.

Run as a module it is `torpord`, with the same options.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from tests.fakes.driver import FakeAgent, FakeDriver, FakeVmm
from tests.unit.databases.test_desk import Machine
from tests.unit.sandboxes.world import FakeTemplates
from torpor.base.home import Home
from torpor.databases import server
from torpor.errors import NotFound
from torpor.model import (
    ExecEnded,
    ExecEvent,
    ExecId,
    ExecInfo,
    ExecSpec,
    ExecStarted,
)
from torpor.sandboxes import engine as engines
from torpor.vmm.base import MachineSpec
from torpor.vmm.choose import Choice
from torpor.vmm.limits import RateLimits


class PaperDriver(FakeDriver):
    """Notes which files a machine's disk is made of."""

    @override
    async def create_overlay(self, path: Path, size_bytes: int) -> None:
        path.write_bytes(b"")

    @override
    def _started(self, folder: Path, spec: MachineSpec) -> FakeVmm:
        vmm = super()._started(folder, spec)
        self.note(folder, layers=[str(path) for path in spec.disk.layers[1:]])
        return PaperVmm(vmm.process, folder, self)


class PaperVmm(FakeVmm):
    """Turns the active overlay into a layer when it switches."""

    @override
    async def switch_disk(self, overlay: Path) -> None:
        noted = self._driver.noted(self._folder)
        await super().switch_disk(overlay)
        self._driver.note(self._folder, layers=[*noted["layers"], noted["active"]])


class PaperGuest(FakeAgent):
    """The guest in a machine's disk files."""

    def __init__(self, home: Home, folder: Path) -> None:
        super().__init__()
        self._home = home
        self._folder = folder
        pid = str(self._noted().get("pid"))  # another process is another boot
        self.info = replace(self.info, instance=pid)

    def _noted(self) -> dict[str, Any]:
        return FakeDriver.noted(self._folder)

    async def ping(self, *, timeout_s: float = 5.0) -> None:
        self.calls.append("ping")

    def lines(self) -> list[dict[str, Any]]:
        noted = self._noted()
        found = []
        for path in (*noted["layers"], noted["active"]):
            found += [json.loads(line) for line in Path(path).read_text().splitlines()]
        return found

    def _append(self, line: dict[str, Any]) -> None:
        with Path(self._noted()["active"]).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def contents(self) -> dict[str, str]:
        return {line["file"]: line["text"] for line in self.lines() if "file" in line}

    def _exec(self, exec_id: ExecId) -> ExecInfo:
        found = [line for line in self.lines() if line.get("exec") == exec_id]
        if not found:
            raise NotFound(f"there is no exec {exec_id}")
        killed = any(line.get("kill") == exec_id for line in self.lines())
        is_over = killed or time.time() >= found[-1]["ends"]
        return ExecInfo(
            exec_id=exec_id,
            command=found[-1]["command"],
            state="exited" if is_over else "running",
            pid=2,
            user="root",
            cwd="/",
            background=False,
            started_at=datetime.now(UTC),
            exit_code=(137 if killed else found[-1]["code"]) if is_over else None,
            duration_ms=1 if is_over else None,
        )

    async def exec_get(self, exec_id: ExecId) -> ExecInfo:
        return self._exec(exec_id)

    async def exec_signal(self, exec_id: ExecId, signal: int) -> None:
        self._append({"kill": exec_id})

    @override
    @contextlib.asynccontextmanager
    async def exec_run(
        self, exec_id: ExecId, spec: ExecSpec, **_: object
    ) -> AsyncIterator[AsyncIterator[ExecEvent]]:
        if not any(line.get("exec") == exec_id for line in self.lines()):
            self._begin(exec_id, str(spec.command))
        async with self.exec_attach(exec_id) as events:
            yield events

    def _begin(self, exec_id: ExecId, command: str) -> None:
        with (self._home.root / "starts.log").open("a") as log:
            log.write(f"{exec_id}\n")
        seconds, code = 0.0, 0
        for part in command.split(";"):
            match part.split():
                case ["write", path, word]:
                    self._append({"file": path, "text": word})
                case ["sleep", length]:
                    seconds += float(length)
                case ["fail"]:
                    code = 3
        self._append(
            {"exec": exec_id, "command": command, "ends": time.time() + seconds, "code": code}
        )

    @contextlib.asynccontextmanager
    async def exec_attach(
        self, exec_id: ExecId, *, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> AsyncIterator[AsyncIterator[ExecEvent]]:
        async def events() -> AsyncIterator[ExecEvent]:
            yield ExecStarted(exec_id, 2)
            while (info := self._exec(exec_id)).state == "running":
                await asyncio.sleep(0.02)
            yield ExecEnded(info)

        yield events()

    async def exec_start(self, exec_id: ExecId, spec: ExecSpec, **_: object) -> ExecInfo:
        if not any(line.get("exec") == exec_id for line in self.lines()):
            self._begin(exec_id, str(spec.command))
        return self._exec(exec_id)


async def connect(
    socket_path: Path, *, port: int | None, epoch: int, timeout_s: float
) -> PaperGuest:
    """Return the guest in the folder of a machine's socket."""
    folder = socket_path.parent.parent
    return PaperGuest(Home(folder.parent.parent), folder)


def use_paper() -> None:
    """Let the engine be made with paper machines; all else is as ever."""
    parts: dict[str, Any] = {
        "choose_driver": lambda _home: Choice(PaperDriver(), "it is of paper", RateLimits()),
        "connect": connect,
        "TemplateStore": lambda home, _booter: FakeTemplates(home.templates),
    }
    for name, part in parts.items():
        assert hasattr(engines, name)
        setattr(engines, name, part)
    patch = pytest.MonkeyPatch()  # for as long as the daemon lives
    patch.setattr(server, "TEMPLATE", "base")
    Machine().stand_in(patch)


if __name__ == "__main__":
    use_paper()
    from torpor.server.daemon import main

    main()

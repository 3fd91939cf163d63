"""A world for the engine: a home, a driver without machines, a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.driver import FakeConnect, FakeDriver, FakeVmm
from tests.fakes.records import FakeClock, make_template
from torpor.base.home import Home
from torpor.db.database import Database
from torpor.db.good_snapshots import GoodRows
from torpor.db.memory_moves import MemoryMoves
from torpor.db.protections import ProtectionRows
from torpor.db.sandboxes import SandboxRows
from torpor.db.volumes import VolumeRows
from torpor.errors import Conflict, NotFound
from torpor.layers.store import LayerStore
from torpor.memory.service import MemoryService
from torpor.model import SandboxFilter, SandboxId, SandboxInfo, SandboxSpec, SandboxState
from torpor.sandboxes import admission
from torpor.sandboxes.engine import Engine
from torpor.sandboxes.goodness import GoodSnapshots
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.protect import Protections
from torpor.templates import Template
from torpor.volumes.desk import VolumeDesk
from torpor.volumes.shelf import VolumeShelf


class FakeTemplates:
    """One template, called base."""

    def __init__(self, folder: Path) -> None:
        self._template = Template(
            info=make_template(disk_gib=1),
            disk=folder / "disk.raw",
            kernel=folder / "vmlinuz",
            initrd=folder / "initrd",
            cmdline="console=ttyS0",
            recipe_digest="0" * 64,
        )
        self.deleted: list[str] = []
        self.collected: list[frozenset[str]] = []
        self.gone: set[str] = set()

    async def clean(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    def collect(self, needed: Collection[str]) -> None:
        self.collected.append(frozenset(needed))

    def get(self, name: str) -> Template:
        if name != "base":
            raise NotFound(f"there is no template {name}", hint="torpor template build base")
        return self._template

    def by_digest(self, digest: str) -> Template:
        if digest in self.gone:
            raise NotFound(f"there is no template with digest {digest}")
        return self._template

    def delete(self, name: str, *, needed: Mapping[str, Sequence[str]]) -> None:
        if users := needed.get(self._template.info.digest):
            raise Conflict(f"template {name} is needed by {', '.join(users)}")
        self.deleted.append(name)


@dataclass
class World:
    """An engine and all that it stands on."""

    home: Home
    driver: FakeDriver = field(default_factory=FakeDriver)
    connect: FakeConnect = field(default_factory=FakeConnect)
    clock: FakeClock = field(default_factory=FakeClock)
    reports: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home.prepare()
        self.templates = FakeTemplates(self.home.templates)
        self.engine = self.new_engine()

    def new_engine(self) -> Engine:
        database, layers = Database.open(self.home.database), LayerStore(self.home)
        shelf = VolumeShelf(VolumeRows(database))
        parts = Parts(
            move_rows=MemoryMoves(database),
            memory=MemoryService(self.home.memory),
            home=self.home,
            rows=SandboxRows(database),
            protections=Protections(ProtectionRows(database)),
            good=GoodSnapshots(GoodRows(database)),
            layers=layers,
            volumes=VolumeDesk(shelf, layers, self.driver, self.clock),
            driver=self.driver,
            templates=self.templates,  # type: ignore[arg-type]
            connect_guest=self.connect,  # type: ignore[arg-type]
            clock=self.clock,
            report=lambda name, exc: self.reports.append(f"{name}: {exc!r}"),
        )
        return Engine(parts)

    async def restart(self) -> None:
        """End the engine and begin another, as after a daemon's end."""
        await self.engine.aclose()
        self.engine = self.new_engine()
        await self.engine.start()

    async def create(self, **spec: Any) -> SandboxInfo:
        return await self.engine.create(SandboxSpec(template="base", **spec))

    async def warm(self) -> None:
        """Have the template's snapshot taken, so that a create is nothing but a restore."""
        info = await self.create()
        await self.engine.delete(info.id)
        self.connect.agents.clear()
        self.connect.epochs.clear()
        self.connect.reached.clear()
        self.driver.reached.clear()

    def folder(self, sandbox_id: SandboxId) -> Path:
        return self.home.sandboxes / sandbox_id

    def vmm(self, sandbox_id: SandboxId) -> FakeVmm:
        vmm = self.engine._tasks[sandbox_id].machine.vmm
        assert isinstance(vmm, FakeVmm)
        return vmm

    async def until(self, sandbox_id: SandboxId, state: SandboxState) -> SandboxInfo:
        async with asyncio.timeout(10):
            while (info := await self.engine.get(sandbox_id)).state is not state:
                await asyncio.sleep(0.005)
        return info


Play = Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run a scene in a fresh world, then delete all that it left and look that nothing is left."""
    monkeypatch.setattr(admission, "free_bytes", lambda _: 1 << 50)

    def run(scene: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            world = World(Home(tmp_path / "home"))
            await world.engine.start()
            try:
                await scene(world)
            finally:
                world.driver.fail.clear()
                for gate in world.driver.block.values():
                    gate.set()
                for info in (await world.engine.list(SandboxFilter(limit=1000))).items:
                    await world.engine.delete(info.id)
                await world.engine.aclose()
            assert list(world.home.sandboxes.iterdir()) == []

        asyncio.run(main())

    return run

"""The desk over the real engine and volumes, with machines that are only processes: what becomes of each file and lease."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.fakes.driver import FakeAgent
from tests.unit.databases.test_desk import Machine, is_of
from tests.unit.sandboxes.world import Play, World, play
from torpor.base.units import GIB
from torpor.databases import server
from torpor.databases.branches import Branches, CloneSpec
from torpor.databases.desk import DatabaseDesk
from torpor.databases.making import Making
from torpor.databases.seeds import Seeds
from torpor.databases.shelf import DatabaseShelf
from torpor.db.databases import DatabaseRows
from torpor.errors import (
    Conflict,
    GuestFailed,
    GuestUnreachable,
    InsufficientResources,
    NotFound,
    OutsideArchive,
    TorporError,
    VolumeHeld,
)
from torpor.guest.port import Guest
from torpor.model import SandboxFilter, SandboxId, SandboxInfo, SandboxState
from torpor.model_databases import DatabaseInfo, DatabaseSpec, DatabaseState
from torpor.model_volumes import VolumeMount
from torpor.sandboxes import volume_engine

__all__ = ["play"]

D = DatabaseState


class Server(Machine):
    """Says what time it is, too."""

    def __init__(self, world: World | None = None) -> None:
        super().__init__()
        self.world = world

    async def run(self, guest: Guest, command: object, **options: Any) -> str:
        found = await super().run(guest, command, **options)
        text = command if isinstance(command, str) else " ".join(command)  # type: ignore[arg-type]
        if "extract(epoch" in text:
            assert self.world is not None
            return f"{self.world.clock.now().timestamp()}\n700\n0/15"
        return found


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server()

    monkeypatch.setattr(server, "TEMPLATE", "base")
    found.stand_in(monkeypatch)
    monkeypatch.setattr(volume_engine, "free_bytes", lambda _: 1 << 50)
    return found


@contextlib.asynccontextmanager
async def opened(world: World, machine: Server) -> AsyncIterator[DatabaseDesk]:
    machine.world = world
    rows = DatabaseRows.attach(world.home.database)
    desk = DatabaseDesk(
        world.home,
        world.engine,
        rows,
        lambda name, exc: world.reports.append(f"{name}: {exc!r}"),
        clock=world.clock,
    )
    await desk.start()
    try:
        yield desk
    finally:
        await desk.aclose()


Scene = Callable[[World, DatabaseDesk], Coroutine[Any, Any, None]]


@pytest.fixture
def scene(play: Play, machine: Server) -> Callable[[Scene], None]:
    """Play a scene with a desk; at its end all databases are deleted, and nothing of them is left."""

    def run(work: Scene) -> None:
        async def main(world: World) -> None:
            async with opened(world, machine) as desk:
                await work(world, desk)
                machine.fails_at = None
                for info in await desk.list():
                    await desk.delete(info.id)
                left = [v.name for v in await world.engine.volumes.list()]
                assert all(name.startswith("postgres-seed-") for name in left), left
                assert len(left) <= 1
                snapshots = await world.engine.snapshots()
                assert {s.reason for s in snapshots} <= {"template", "snapshot"}
                assert all(
                    "database_seed" in s.metadata for s in snapshots if s.reason != "template"
                )
                assert world.reports == []

        play(main)

    return run


def names(info: DatabaseInfo) -> tuple[str | None, str | None]:
    return info.sandbox_id, info.volume_id


def test_creates_begin_at_one_seed_and_share_nothing_that_is_written(
    scene: Callable[[Scene], None],
) -> None:
    async def work(world: World, desk: DatabaseDesk) -> None:
        one = await desk.create(DatabaseSpec(name="one"))
        two = await desk.create(DatabaseSpec(name="two", size_bytes=4 * GIB))
        assert one.state is two.state is D.RUNNING
        seeds = [s for s in await world.engine.snapshots() if "database_seed" in s.metadata]
        assert len(seeds) == 1
        with pytest.raises(Conflict, match="new databases"):
            await world.engine.delete_snapshot(seeds[0].id)
        volumes = {v.name: v for v in await world.engine.volumes.list()}
        assert {n for n in volumes if n.startswith("db-")} == {"db-one", "db-two"}
        assert volumes["db-two"].size_bytes == 4 * GIB
        for info, name in ((one, "db-one"), (two, "db-two")):
            assert info.volume_id == volumes[name].id
            assert volumes[name].bound_to is None, "it outlives the machine"
            assert [h.sandbox_id for h in volumes[name].holders] == [info.sandbox_id]
        assert one.port != two.port

    scene(work)


def test_a_clone_of_a_running_one_leaves_no_snapshot_that_holds_it(
    scene: Callable[[Scene], None], machine: Server
) -> None:
    async def work(world: World, desk: DatabaseDesk) -> None:
        source = await desk.create(DatabaseSpec(name="one"))
        asked = len(machine.asked)
        clone = await desk.clone("one", CloneSpec(name="copy", size_bytes=2 * GIB))
        assert not any("ALTER ROLE" in text for text in machine.asked[asked:]), (
            "the password was set through its port"
        )
        assert clone.parent == source.id
        assert clone.size_bytes == 2 * GIB
        assert not set(names(clone)) & set(names(source))
        assert [s for s in await world.engine.snapshots() if s.reason == "fork"] == []
        assert machine.emptied == 2, "another's log is not its own"
        await desk.delete("one")
        assert (await desk.get("copy")).state is D.RUNNING

    scene(work)


def test_a_clone_of_one_whose_password_was_changed_in_it(
    scene: Callable[[Scene], None], machine: Server
) -> None:
    async def work(_: World, desk: DatabaseDesk) -> None:
        await desk.create(DatabaseSpec(name="one"))
        machine.verifiers.clear()  # ALTER ROLE by a client: ours is none of the server's any more
        machine.queries.clear()
        await desk.clone("one", CloneSpec(name="copy"))
        assert not any("ALTER ROLE" in text for text in machine.queries)
        password = (await desk.url("copy")).partition("@")[0].rpartition(":")[2]
        assert is_of(password, machine.verifiers[-1]), "it was set from inside its machine"

    scene(work)


def test_a_clone_begins_at_a_snapshot_or_at_a_time(
    scene: Callable[[Scene], None], machine: Server
) -> None:
    async def work(world: World, desk: DatabaseDesk) -> None:
        await desk.create(DatabaseSpec(name="one"))
        world.clock.time += timedelta(minutes=5)
        await desk.snapshot("one", label="kept")
        then = world.clock.time + timedelta(minutes=1)
        world.clock.time += timedelta(minutes=5)
        machine.asked.clear()
        at = await desk.clone("one", CloneSpec(name="at", snapshot="kept"))
        assert any("systemctl start" in text for text in machine.asked)
        past = await desk.clone("one", CloneSpec(name="past", target_time=then))
        (told,) = [t for t in machine.asked if "recovery_target_time" in t]
        assert then.isoformat() in told
        held = {h.path for v in await world.engine.volumes.list() for h in v.holders}
        assert held == {server.PLACE}, "the log is taken off again"
        assert at.state is past.state is D.RUNNING

        machine.fails_at = "recovery_target_time"
        with pytest.raises(GuestFailed):
            await desk.clone("one", CloneSpec(name="broken", target_time=then))
        machine.fails_at = None
        later = world.clock.time + timedelta(minutes=1)
        with pytest.raises(OutsideArchive, match="future"):
            await desk.clone("one", CloneSpec(name="later", target_time=later))
        names = {v.name for v in await world.engine.volumes.list()}
        assert {n for n in names if n.startswith("db-")} == {"db-one", "db-at", "db-past"}

    scene(work)


def test_a_log_that_does_not_reach_the_time_is_told_as_that(
    scene: Callable[[Scene], None], machine: Server
) -> None:
    async def work(world: World, desk: DatabaseDesk) -> None:
        await desk.create(DatabaseSpec(name="one"))
        then = world.clock.time + timedelta(minutes=1)
        world.clock.time += timedelta(minutes=5)
        real = server.run

        async def short(guest: Guest, command: object, **options: Any) -> str:
            if "recovery_target_time" in str(command):
                raise GuestFailed(
                    "PostgreSQL's machine refused: FATAL: recovery ended before configured recovery "
                    "target was reached"
                )
            return await real(guest, command, **options)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "run", short)
            with pytest.raises(OutsideArchive, match="target was reached") as caught:
                await desk.clone("one", CloneSpec(name="past", target_time=then))
            (first,) = await desk.snapshots("one")
            kept = f"as it was at {first.at.isoformat()}: torpor db clone one NEW --snapshot {first.id}"
            assert caught.value.hint == kept, "no time behind it can be had"
            assert caught.value.facts["recoverable_from"] is None
            later = await desk.snapshot("one")
            with pytest.raises(OutsideArchive) as caught:
                await desk.clone("one", CloneSpec(name="past", target_time=then))
        assert (
            caught.value.hint == f"it can be had from {later.at.isoformat()} until now; or {kept}"
        )
        assert caught.value.facts["database"] == "one"
        assert [d.name for d in await desk.list()] == ["one"]

    scene(work)


def test_it_sleeps_wakes_and_is_deleted_in_its_sleep(scene: Callable[[Scene], None]) -> None:
    async def work(world: World, desk: DatabaseDesk) -> None:
        made = await desk.create(DatabaseSpec(name="one"))
        assert (await desk.hibernate("one")).state is D.HIBERNATED
        assert (await desk.set_idle("one", 60)).idle_seconds == 60
        woken = await desk.wake("one")
        assert (woken.state, *names(woken)) == (D.RUNNING, *names(made)), "the same machine"
        assert (await world.engine.get(SandboxId(str(made.sandbox_id)))).idle_seconds == 60
        await desk.hibernate("one")
        clone = await desk.clone("one", CloneSpec(name="of-a-sleeper"))
        assert clone.state is D.RUNNING
        assert (await desk.get("one")).state is D.HIBERNATED
        await desk.delete("one")

    scene(work)


def test_a_killed_machine_is_replaced_and_keeps_its_volume(
    scene: Callable[[Scene], None], machine: Server
) -> None:
    async def work(world: World, desk: DatabaseDesk) -> None:
        made = await desk.create(DatabaseSpec(name="one"))
        sandbox_id = SandboxId(str(made.sandbox_id))
        os.kill(world.vmm(sandbox_id).process.pid, signal.SIGKILL)
        await world.until(sandbox_id, SandboxState.FAILED)
        assert (await desk.get("one")).state is D.DOWN
        woken = await desk.wake("one")
        assert woken.volume_id == made.volume_id
        assert woken.sandbox_id != made.sandbox_id
        clone = await desk.clone("one", CloneSpec(name="copy"))
        assert clone.state is D.RUNNING
        upgraded = await desk.upgrade("one", build=False)
        assert upgraded.volume_id == made.volume_id
        assert upgraded.sandbox_id != woken.sandbox_id
        assert len(await desk.snapshots("one")) == 2
        volume = await world.engine.volumes.get(str(made.volume_id))
        assert [h.sandbox_id for h in volume.holders] == [upgraded.sandbox_id]

    scene(work)


def test_snapshots_of_its_machine_that_are_kept_keep_it(scene: Callable[[Scene], None]) -> None:
    async def work(world: World, desk: DatabaseDesk) -> None:
        made = await desk.create(DatabaseSpec(name="one"))
        kept = await world.engine.snapshot(SandboxId(str(made.sandbox_id)), label="mine")
        with pytest.raises(Conflict, match=kept.id):
            await desk.delete("one")
        assert (await desk.get("one")).state is D.RUNNING
        await world.engine.delete_snapshot(kept.id)

    scene(work)


def test_a_delete_that_cannot_be_is_refused_before_anything_goes(
    scene: Callable[[Scene], None],
) -> None:
    async def work(world: World, desk: DatabaseDesk) -> None:
        made = await desk.create(DatabaseSpec(name="one"))
        first = SandboxId(str(made.sandbox_id))
        kept = await world.engine.snapshot(first, label="mine")
        await world.engine.delete(first)
        other = await world.create()
        there = VolumeMount(volume=str(made.volume_id), path="/data")
        await world.engine.volumes.attach(other.id, there)
        with pytest.raises(VolumeHeld, match=other.id):
            await desk.delete("one")
        await world.engine.volumes.detach(other.id, "/data")
        woken = await desk.wake("one")
        with pytest.raises(Conflict, match=kept.id):  # of a machine that is gone
            await desk.delete("one")
        now = await desk.get("one")
        assert (now.state, *names(now)) == (D.RUNNING, *names(woken)), "it goes on"
        await world.engine.delete_snapshot(kept.id)

    scene(work)


@pytest.mark.parametrize("way", ["seed", "boot", "clone"])
def test_a_volume_of_somebody_that_has_its_name_is_left_alone(
    scene: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async def work(world: World, desk: DatabaseDesk) -> None:
        await desk.create(DatabaseSpec(name="one"))
        check_new = Making.check_new

        async def late(self: Making, name: str, size_bytes: int, workspace: str) -> None:
            await check_new(self, name, size_bytes, workspace)
            world.clock.time += timedelta(seconds=1)

        insert = DatabaseShelf.insert

        async def then_another(self: DatabaseShelf, row: Any) -> None:
            await insert(self, row)
            world.clock.time += timedelta(seconds=1)
            await world.engine.volumes.create("db-two", 1)

        monkeypatch.setattr(Making, "check_new", late)
        monkeypatch.setattr(DatabaseShelf, "insert", then_another)
        if way == "clone":
            await desk.hibernate("one")
        begun = (
            desk.clone("one", CloneSpec(name="two"))
            if way == "clone"
            else desk.create(DatabaseSpec(name="two", ram_mib=None if way == "seed" else 1024))
        )
        with pytest.raises(Conflict, match="volume db-two"):
            await begun
        found = {v.name for v in await world.engine.volumes.list()}
        assert {n for n in found if n.startswith("db-")} == {"db-one", "db-two"}
        await world.engine.volumes.delete("db-two")

    scene(work)


@pytest.mark.parametrize("way", ["create", "clone"])
def test_one_that_is_deleted_while_it_is_made_leaves_no_machine(
    scene: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async def work(world: World, desk: DatabaseDesk) -> None:
        await desk.create(DatabaseSpec(name="one"))
        gate, reached, get = asyncio.Event(), asyncio.Event(), Seeds.get

        async def late(*args: Any) -> Any:
            reached.set()
            await gate.wait()
            return await get(*args)

        monkeypatch.setattr(Seeds, "get", late)
        if way == "clone":
            reached = world.driver.reached["ram"] = asyncio.Event()
            world.driver.block["ram"] = gate
        there = {s.id for s in (await world.engine.list(SandboxFilter())).items}
        making = asyncio.ensure_future(
            desk.create(DatabaseSpec(name="two"))
            if way == "create"
            else desk.clone("one", CloneSpec(name="two"))
        )
        await reached.wait()
        deleting = asyncio.ensure_future(desk.delete("two"))
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.gather(making, deleting, return_exceptions=True)
        assert {s.id for s in (await world.engine.list(SandboxFilter())).items} == there
        assert [d.name for d in await desk.list()] == ["one"]

    scene(work)


def test_what_is_called_like_a_seed_is_none(play: Play, machine: Server) -> None:
    async def main(world: World) -> None:
        await world.engine.volumes.create("postgres-seed-fixtures", 1)
        mine = await world.create(
            volumes=(VolumeMount(volume="postgres-seed-fixtures", path="/data"),)
        )
        digest = (await world.engine.template("base")).digest
        planted = await world.engine.snapshot(mine.id, metadata={"database_seed": digest})
        async with opened(world, machine) as desk:
            one = await desk.create(DatabaseSpec(name="one"))
            begun = (await world.engine.get(SandboxId(str(one.sandbox_id)))).parent_snapshot
            assert begun != planted.id
            seeds = [s.id for s in await world.engine.snapshots() if "database_seed" in s.metadata]
            assert sorted(seeds) == sorted([planted.id, str(begun)])
            await desk.delete("one")
        await world.engine.delete_snapshot(planted.id)
        async with opened(world, machine):
            pass
        assert (await world.engine.get(mine.id)).state is SandboxState.RUNNING
        assert (await world.engine.volumes.get("postgres-seed-fixtures")).holders
        assert world.reports == []

    play(main)


@pytest.mark.parametrize("died", ["before its snapshot", "before it was protected"])
def test_a_seed_that_a_daemon_died_over_is_removed(
    play: Play, machine: Server, monkeypatch: pytest.MonkeyPatch, died: str
) -> None:
    async def main(world: World) -> None:
        async def nothing(*_: object, **__: object) -> None:
            """Do as a daemon does that has died."""

        async def dies(*_: object, **__: object) -> None:
            raise GuestFailed("it died")

        async with opened(world, machine) as desk:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Seeds, "_undo", nothing)
                if died == "before its snapshot":
                    machine.fails_at = "CHECKPOINT"
                else:
                    patch.setattr(world.engine, "protect", dies)
                with pytest.raises(GuestFailed):
                    await desk.create(DatabaseSpec(name="one"))
        machine.fails_at = None
        assert len(await world.engine.volumes.list()) == 1
        async with opened(world, machine):
            pass
        assert await world.engine.volumes.list() == ()
        assert {s.reason for s in await world.engine.snapshots()} <= {"template"}
        assert world.reports == []

    play(main)


@pytest.mark.parametrize(
    "text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "2026-01-31T12:00:00+05:30"]
)
def test_a_time_at_the_ends_of_time_is_outside(scene: Callable[[Scene], None], text: str) -> None:
    async def work(world: World, desk: DatabaseDesk) -> None:
        await desk.create(DatabaseSpec(name="one"))
        then = datetime.fromisoformat(text)
        with pytest.raises(OutsideArchive):
            await desk.clone("one", CloneSpec(name="then", target_time=then))

    scene(work)


@pytest.mark.parametrize("at", ["query", "recovery_target_time"])
def test_the_next_daemon_undoes_what_one_died_in(play: Play, machine: Server, at: str) -> None:
    async def main(world: World) -> None:
        async def nothing(*_: object, **__: object) -> None:
            """Do as a daemon does that has died."""

        async with opened(world, machine) as desk:
            await desk.create(DatabaseSpec(name="one"))
            then = world.clock.time + timedelta(minutes=1)
            world.clock.time += timedelta(minutes=5)
            machine.fails_at = at
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Making, "undo", nothing)
                patch.setattr(Branches, "_drop_log", nothing)
                begun = (
                    desk.create(DatabaseSpec(name="two"))
                    if at == "query"
                    else desk.clone("one", CloneSpec(name="two", target_time=then))
                )
                with pytest.raises(TorporError, match=r"does not answer|refused"):
                    await begun
            assert (await desk.get("two")).state is D.CREATING
        machine.fails_at = None
        async with opened(world, machine) as desk:
            assert [d.name for d in await desk.list()] == ["one"]
            found = {v.name for v in await world.engine.volumes.list()}
            assert {n for n in found if n.startswith("db-")} == {"db-one"}
            assert len(list(world.home.databases.glob("db_*"))) == 1
            await desk.delete("one")

    play(main)


def test_a_full_host_refuses_and_changes_nothing(
    scene: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(world: World, desk: DatabaseDesk) -> None:
        await desk.create(DatabaseSpec(name="one"))
        monkeypatch.setattr(volume_engine, "free_bytes", lambda _: 3 << 30)
        with pytest.raises(InsufficientResources) as caught:
            await desk.grow("one", 64 * GIB)
        assert caught.value.facts["free_bytes"] == 3 << 30
        assert (await desk.get("one")).size_bytes == GIB
        for refused in (
            desk.create(DatabaseSpec(name="two", size_bytes=64 * GIB)),
            desk.clone("one", CloneSpec(name="two", size_bytes=64 * GIB)),
        ):
            with pytest.raises(InsufficientResources):
                await refused
        assert [d.name for d in await desk.list()] == ["one"]

    scene(work)


def test_an_attached_sandbox_reaches_it_and_no_other_and_again_after_a_restart(
    play: Play, machine: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[int] = []

    async def serve(
        self: object, port: int, _serve: object, *, listens: Callable[[], None]
    ) -> None:
        served.append(port)
        listens()
        await asyncio.Event().wait()

    monkeypatch.setattr(FakeAgent, "serve_inlet", serve, raising=False)
    monkeypatch.setattr(FakeAgent, "closed", False, raising=False)

    async def main(world: World) -> None:
        async with opened(world, machine) as desk:
            await desk.create(DatabaseSpec(name="one"))
            agent = await world.create()
            url = await desk.attach("one", agent.id, 6000)
            assert url.endswith("@127.0.0.1:6000/postgres")
            assert url.partition("@")[0] == (await desk.url("one")).partition("@")[0]
            assert await desk.attach("one", agent.id, 6000) == url, "it can be asked again"
            await desk.create(DatabaseSpec(name="two"))
            with pytest.raises(Conflict, match="leads to database one"):
                await desk.attach("two", agent.id, 6000)
            elsewhere = await world.create(workspace="elsewhere")
            with pytest.raises(NotFound):
                await desk.attach("one", elsewhere.id)
        served.clear()
        async with opened(world, machine) as desk:
            await desk.attend(_Machine(agent), FakeAgent())  # type: ignore[arg-type]
            await desk.attend(_Machine(elsewhere), FakeAgent())  # type: ignore[arg-type]
            await asyncio.sleep(0)
            assert served == [6000]
            await world.engine.delete(agent.id)
            assert (await desk.get("one")).attachments == (), "what is no more is not shown"
            (row,) = [r for r in desk._shelf.all() if r.name == "one"]
            assert row.attachments
            await desk.keep(row.id)
            assert desk._shelf.get(row.id).attachments == ()
            for name in ("one", "two"):
                await desk.delete(name)

    play(main)


@pytest.mark.parametrize(
    ("failure", "said"),
    [(GuestFailed("port 6000 of the machine broke"), 1), (GuestUnreachable("it was cut"), 0)],
)
def test_what_ends_an_attachment_is_reported_unless_its_machine_is_gone(
    play: Play, machine: Server, monkeypatch: pytest.MonkeyPatch, failure: GuestFailed, said: int
) -> None:
    breaks = asyncio.Event()

    async def serve(
        self: object, port: int, _serve: object, *, listens: Callable[[], None]
    ) -> None:
        listens()
        await breaks.wait()
        raise failure

    monkeypatch.setattr(FakeAgent, "serve_inlet", serve, raising=False)

    async def main(world: World) -> None:
        async with opened(world, machine) as desk:
            await desk.create(DatabaseSpec(name="one"))
            await desk.attach("one", (await world.create()).id, 6000)
            (task,) = desk._attachments._serving.values()
            breaks.set()
            await asyncio.wait({task}, timeout=10)
            assert task.done()
            assert len([line for line in world.reports if str(failure) in line]) == said
            world.reports.clear()
            await desk.delete("one")

    play(main)


class _Machine:
    """A machine whose guest was just connected."""

    def __init__(self, info: SandboxInfo) -> None:
        self.info = info

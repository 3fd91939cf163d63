"""Snapshots, sleep and forks through the SDK, on instances and on the class, in both faces."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.serving import ServerThread
from torpor import AsyncSandbox, AsyncSnapshot, Client, Sandbox, Snapshot
from torpor.errors import (
    Conflict,
    GuestFailed,
    InsufficientResources,
    InvalidRequest,
    NotFound,
    SnapshotUnusable,
    TorporError,
    WrongState,
)
from torpor.model import SandboxState

pytestmark = pytest.mark.usefixtures("server")
UNKNOWN = "snap_00000000000000000000"


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox.create(env={"A": "1"})


def test_the_block_of_the_tutorial() -> None:
    sbx = Sandbox.create(template="agent")
    checkpoint = sbx.snapshot(label="pre-refactor")
    sbx.filesystem.write("/workspace/x", "destructive")
    other = Sandbox.restore(checkpoint.id)
    assert not other.filesystem.exists("/workspace/x")
    sbx.rollback(checkpoint.id)
    assert not sbx.filesystem.exists("/workspace/x")
    forks = [Sandbox.fork(checkpoint.id, metadata={"strategy": s}) for s in ("a", "b", "c")]
    assert [f.info.metadata["strategy"] for f in forks] == ["a", "b", "c"]
    assert len(Sandbox.fork(checkpoint.id, count=3)) == len(sbx.fork(count=3)) == 3
    snap = sbx.hibernate()
    assert (snap.reason, snap.sandbox_id) == ("hibernate", sbx.id)
    assert sbx.refresh().state == SandboxState.HIBERNATED
    assert Sandbox.get(sbx.id).wake().info.state == SandboxState.RUNNING


def test_snapshot_attributes(sandbox: Sandbox) -> None:
    taken = sandbox.snapshot(label="l", consistency="crash", metadata={"a": "b"})
    assert (taken.label, taken.consistency, taken.metadata) == ("l", "crash", {"a": "b"})
    assert (taken.size_bytes, taken.size, taken.pause_ms) == (1 << 20, 1 << 20, 12.5)
    assert (taken.sandbox_id, taken.parent, taken.reason) == (sandbox.id, None, "snapshot")
    assert (taken.template, taken.created_at) == ("base", taken.info.created_at)
    assert repr(taken) == f"<Snapshot {taken.id} 'l'>"
    assert repr(Snapshot.handle(taken.id)) == f"<Snapshot {taken.id}>"
    with pytest.raises(TorporError, match="nothing is known"):
        _ = Snapshot.handle(taken.id).label
    assert Snapshot.get(taken.id).info == taken.info
    second = Sandbox.snapshot(sandbox.id)
    assert second.parent == taken.id
    assert [s.id for s in sandbox.snapshots()] == [second.id, taken.id]
    assert [s.id for s in Sandbox.snapshots(sandbox.id)] == [second.id, taken.id]
    assert [s.id for s in Snapshot.list(sandbox_id=sandbox.id)] == [second.id, taken.id]
    Sandbox.create().snapshot()
    assert len(Snapshot.list()) == 3


def test_snapshots_that_cannot_be(sandbox: Sandbox, server: ServerThread) -> None:
    sandbox.snapshot(label="l")
    with pytest.raises(Conflict):
        sandbox.snapshot(label="l")
    with pytest.raises(InvalidRequest):
        sandbox.snapshot(consistency="perfect")  # type: ignore[arg-type]
    for call in (Snapshot.get, Snapshot.delete, Snapshot.verify, Snapshot.restore, Snapshot.fork):
        with pytest.raises(NotFound):
            call(UNKNOWN)  # type: ignore[operator]
    for work in (Sandbox.restore, Sandbox.fork, sandbox.rollback):
        with pytest.raises(NotFound):
            work(UNKNOWN)  # type: ignore[operator]
    server.engine.will_not_freeze = True
    with pytest.raises(GuestFailed):
        sandbox.snapshot()
    with pytest.raises(GuestFailed):
        sandbox.fork(count=3)
    assert len(Snapshot.list()) == 1


def test_delete_and_verify(sandbox: Sandbox, server: ServerThread) -> None:
    taken = sandbox.snapshot()
    assert taken.verify().ok
    server.engine.damaged.add(server.engine.points[taken.id].layers[0])
    found = Snapshot.verify(taken.id)
    assert not found.ok
    assert found.damage[0].dependents == (taken.id,)
    sandbox.delete()
    assert taken.delete() == 1 << 20
    with pytest.raises(NotFound):
        Snapshot.delete(taken.id)


def test_restore(sandbox: Sandbox, server: ServerThread) -> None:
    taken = sandbox.snapshot()
    made = Sandbox.restore(
        taken.id,
        env={"B": "2"},
        metadata={"a": "b"},
        network="none",
        ttl_seconds=60,
        on_timeout="hibernate",
        idle_seconds=5,
        client=Client(),
    )
    info = made.info
    assert (info.boot_mode, info.parent_snapshot, info.network) == ("restore", taken.id, "none")
    assert (info.ttl_seconds, info.on_timeout, info.idle_seconds) == (60, "hibernate", 5)
    assert "B=2" in made.exec("env").stdout
    assert taken.restore(metadata={"c": "d"}).info.metadata == {"c": "d"}
    assert Snapshot.restore(taken.id).info.parent_snapshot == taken.id
    created = Sandbox.create(from_snapshot=taken.id, idle_seconds=7)
    assert (created.info.boot_mode, created.info.idle_seconds) == ("restore", 7)
    with pytest.raises(InvalidRequest):
        Sandbox.create(from_snapshot=taken.id, ram_mib=1024)
    server.engine.foreign.add(taken.id)
    with pytest.raises(SnapshotUnusable):
        taken.restore()
    assert taken.restore(allow_cold=True).info.boot_mode == "cold"


def test_rollback_on_the_class_and_from_sleep(sandbox: Sandbox) -> None:
    taken = sandbox.snapshot()
    sandbox.hibernate()
    back = Sandbox.rollback(sandbox.id, taken.id)
    assert (back.id, back.info.state, back.info.generation) == (sandbox.id, "running", 2)
    assert sandbox.rollback(taken.id) is sandbox
    assert sandbox.info.generation == 3


def test_sleep(sandbox: Sandbox) -> None:
    first = Sandbox.hibernate(sandbox.id)
    assert sandbox.hibernate().id == first.id
    assert sandbox.exec("echo woken").stdout == "woken\n"
    assert Sandbox.wake(sandbox.id).info.generation == 2
    Sandbox.set_idle(sandbox.id, 5)
    assert sandbox.refresh().idle_seconds == 5
    sandbox.set_idle(None)
    assert sandbox.refresh().idle_seconds is None
    assert Sandbox.create(idle_seconds=9).info.idle_seconds == 9
    sandbox.delete()
    with pytest.raises(WrongState):
        sandbox.wake()


def test_fork(sandbox: Sandbox, server: ServerThread) -> None:
    one = sandbox.fork(env={"B": "2"}, metadata={"a": "b"}, network="none", idle_seconds=3)
    assert (one.info.network, one.info.idle_seconds, one.info.metadata["a"]) == ("none", 3, "b")
    assert one.info.metadata["fork_parent_id"] == sandbox.id
    server.engine.room = 2
    found = Sandbox.fork(sandbox.id, count=3)
    assert [isinstance(f, Sandbox) for f in found] == [True, True, False]
    assert isinstance(found[2], InsufficientResources)
    with pytest.raises(InsufficientResources):
        sandbox.fork()
    assert [type(f) for f in sandbox.fork(count=1)] == [InsufficientResources]
    server.engine.room = None
    taken = sandbox.snapshot()
    assert taken.fork(metadata={"x": "y"}).info.metadata["fork_tree_id"] == taken.id
    assert [isinstance(f, Sandbox) for f in Snapshot.fork(taken.id, count=2)] == [True, True]
    assert Sandbox.fork(taken.id).info.parent_snapshot == taken.id
    with pytest.raises(InvalidRequest):
        sandbox.fork(count=0)
    with pytest.raises(TypeError):
        sandbox.fork(cuont=3)  # type: ignore[call-overload]


def test_promote(sandbox: Sandbox) -> None:
    forks = [f for f in sandbox.fork(count=3) if not isinstance(f, TorporError)]
    kept = forks[0].promote()
    assert (kept.winner, kept.deleted, kept.failures) == (forks[0].id, (), {})
    gone = Sandbox.promote(forks[0].id, cleanup_siblings=True, tree_id=kept.tree_id)
    assert set(gone.deleted) == {forks[1].id, forks[2].id}
    with pytest.raises(InvalidRequest):
        sandbox.promote(cleanup_siblings=True)


def test_asynchronously() -> None:
    async def work() -> None:
        sandbox = await AsyncSandbox.create(idle_seconds=60)
        taken = await sandbox.snapshot(label="l")
        assert repr(taken) == f"<AsyncSnapshot {taken.id} 'l'>"
        assert [s.id for s in await sandbox.snapshots()] == [taken.id]
        assert (await AsyncSnapshot.get(taken.id)).info == taken.info
        assert (await taken.verify()).ok
        restored = await AsyncSandbox.restore(taken.id)
        assert (await taken.restore()).info.parent_snapshot == taken.id
        assert (await sandbox.rollback(taken.id)).info.generation == 2
        forks = await sandbox.fork(count=2)
        assert all(isinstance(f, AsyncSandbox) for f in forks)
        assert (await AsyncSandbox.fork(taken.id)).info.parent_snapshot == taken.id
        assert len(await AsyncSnapshot.fork(taken.id, count=2)) == 2
        asleep = await AsyncSandbox.hibernate(restored.id)
        assert asleep.sandbox_id == restored.id
        assert (await AsyncSandbox.wake(restored.id)).info.state == SandboxState.RUNNING
        assert (await restored.wake()) is restored
        await sandbox.set_idle(None)
        assert (await sandbox.refresh()).idle_seconds is None
        assert isinstance(forks[0], AsyncSandbox)
        assert len((await forks[0].promote(cleanup_siblings=True)).deleted) == 1
        assert await taken.delete() == 0
        assert [s.reason for s in await AsyncSnapshot.list()] == ["hibernate", "fork"]

    asyncio.run(work())

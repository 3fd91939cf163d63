"""Freezing and thawing, over a kernel on paper."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
import time
from pathlib import Path

import pytest

from tests.fakes.guest_kernel import PaperKernel, mount_line
from torpor_guest import errors, threads
from torpor_guest.errors import AgentError
from torpor_guest.freezer import RECORD, Freezer
from torpor_guest.gate import Gate

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class World:
    """A guest with a data disk and the root's."""

    def __init__(self, folder: Path) -> None:
        self.data = "/dev/shm"
        self.kernel = PaperKernel(folder)
        self.kernel.text = mount_line("/") + mount_line(self.data, "btrfs")
        self.kernel.path(RECORD).parent.mkdir(parents=True)
        self.gate = Gate()
        self.freezer = Freezer(self.kernel, self.gate)

    def told(self, *names: str) -> list[str]:
        """The places that calls were made for."""
        return [call[1] for call in self.kernel.calls if call[0] in names]

    async def until(self, name: str, count: int = 1) -> None:
        """Wait until the kernel was called so often."""
        async with asyncio.timeout(5):
            while len(self.told(name)) < count:
                await asyncio.sleep(0.001)

    async def until_let_go(self) -> None:
        """Wait until what is frozen now was thawed; what becomes frozen later is thawed at once."""
        async with asyncio.timeout(5):
            while self.freezer._hold and not self.freezer._hold._is_over:
                await asyncio.sleep(0.001)

    def assert_running(self) -> None:
        """Nothing is frozen, waits or is left open."""
        assert self.kernel.frozen == []
        assert not self.gate.is_shut
        assert not self.kernel.path(RECORD).exists()
        for thread in threading.enumerate():
            if thread.name == "disk":
                thread.join(2)
                assert not thread.is_alive()


def open_files() -> int:
    """How many files are open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_the_root_last_and_thawed_first(world: World) -> None:
    before = open_files()
    assert await world.freezer.freeze(30) == [world.data, "/"]
    assert world.gate.is_shut
    assert world.kernel.calls[0] == ("sync_all",), "written out before, so that freezing is short"
    assert world.told("sync") == [world.data, "/"]
    assert world.told("freeze") == [world.data, "/"]
    assert json.loads(world.kernel.path(RECORD).read_bytes()) == [world.data, "/"]
    assert await world.freezer.thaw() is True
    assert world.told("thaw") == ["/", world.data]
    world.assert_running()
    assert open_files() == before
    assert await world.freezer.thaw() is False, "nothing is frozen"


async def test_if_one_cannot_be_frozen_none_is(world: World) -> None:
    world.kernel.refusals["freeze"] = errno.EOPNOTSUPP, 1
    with pytest.raises(AgentError, match="at / cannot be frozen: Operation not supp") as caught:
        await world.freezer.freeze(30)
    assert caught.value.code == errors.FAILED
    assert caught.value.facts["path"] == "/"
    assert world.told("thaw") == [world.data]
    world.assert_running()


async def test_a_write_error_is_told_and_nothing_frozen(world: World) -> None:
    for number, name in ((errno.EIO, "EIO"), (errno.ENOSPC, "ENOSPC")):
        world.kernel.refusals["sync"] = number, 0
        with pytest.raises(AgentError, match="could not be written") as caught:
            await world.freezer.sync()
        assert (caught.value.code, caught.value.facts["errno"]) == (errors.FAILED, name)
        with pytest.raises(AgentError, match="could not be written"):
            await world.freezer.freeze(30)
    assert world.told("freeze") == []
    world.assert_running()
    world.kernel.refusals.clear()
    await world.freezer.freeze(30)
    await world.freezer.thaw()


async def test_read_only_is_neither_frozen_nor_missed(world: World) -> None:
    world.kernel.text = mount_line("/") + "30 1 254:99 / /gone ro - ext4 /dev/vdz ro\n"
    assert await world.freezer.freeze(30) == ["/"]
    await world.freezer.thaw()
    world.kernel.text = world.kernel.text.replace("vdz ro", "vdz rw")
    with pytest.raises(AgentError):
        await world.freezer.freeze(30)
    world.assert_running()


async def test_the_dead_man(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.freezer.freeze(0.05)
    waiting = asyncio.get_running_loop().create_task(world.gate.passed())
    async with asyncio.timeout(5):
        await waiting
    world.assert_running()
    assert await world.freezer.thaw() is False
    assert "nobody came" in caplog.text


async def test_the_dead_man_needs_no_loop(world: World) -> None:
    await world.freezer.freeze(0.05)
    deadline = time.monotonic() + 5
    while world.kernel.frozen and time.monotonic() < deadline:
        time.sleep(0.005)  # the loop is stuck
    assert world.kernel.frozen == []
    assert await world.freezer.thaw() is False


async def test_no_thread_of_the_pool_is_needed(world: World) -> None:
    stuck = threading.Event()
    jobs = [threads.POOL.submit(stuck.wait, 20) for _ in range(16)]
    try:
        async with asyncio.timeout(5):
            await world.freezer.sync()
            await world.freezer.freeze(30)
            assert await world.freezer.thaw() is True
    finally:
        stuck.set()
        for job in jobs:
            job.result()


async def test_somebody_else_thawed_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.freezer.freeze(30)
    world.kernel.frozen.remove(world.data)
    assert await world.freezer.thaw() is False, "it was written to meanwhile"
    assert "Invalid argument" in caplog.text
    world.assert_running()


async def test_frozen_twice(world: World) -> None:
    await world.freezer.freeze(30)
    with pytest.raises(AgentError) as caught:
        await world.freezer.freeze(30)
    assert caught.value.code == errors.CONFLICT
    assert await world.freezer.thaw() is True
    both = await asyncio.gather(
        world.freezer.freeze(30), world.freezer.freeze(30), return_exceptions=True
    )
    assert [type(result) for result in both] == [list, AgentError]
    assert await world.freezer.thaw() is True
    world.assert_running()


async def test_cancelled_while_freezing(world: World) -> None:
    world.kernel.stuck = threading.Event()
    stuck = world.kernel.stuck
    task = asyncio.get_running_loop().create_task(world.freezer.freeze(30))
    await world.until("freeze")
    task.cancel()
    await asyncio.wait([task])
    await world.until_let_go()
    assert world.gate.is_shut, "one may become frozen still"
    stuck.set()
    async with asyncio.timeout(5):
        await world.gate.passed()
    world.assert_running()
    assert world.told("thaw") == [world.data]


async def test_thawed_while_freezing(world: World) -> None:
    world.kernel.stuck = threading.Event()
    stuck = world.kernel.stuck
    freezing = asyncio.get_running_loop().create_task(world.freezer.freeze(30))
    await world.until("freeze")
    thawing = asyncio.get_running_loop().create_task(world.freezer.thaw())
    await asyncio.sleep(0)
    await world.until_let_go()
    stuck.set()
    assert await thawing is False
    with pytest.raises(AgentError, match="in time"):
        await freezing
    world.assert_running()


async def test_the_dead_man_frees_a_freeze_that_is_stuck(world: World) -> None:
    world.kernel.stuck = threading.Event()
    stuck = world.kernel.stuck
    freezing = asyncio.get_running_loop().create_task(world.freezer.freeze(0.05))
    await world.until("freeze")
    await world.until_let_go()
    stuck.set()
    with pytest.raises(AgentError, match="in time"):
        await freezing
    world.assert_running()


async def test_cancelled_while_writing_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()
    monkeypatch.setattr(world.kernel, "sync_all", lambda: stuck.wait(20))
    task = asyncio.get_running_loop().create_task(world.freezer.freeze(30))
    await asyncio.sleep(0.01)
    assert not world.gate.is_shut, "commands write on meanwhile"
    task.cancel()
    await asyncio.wait([task])
    stuck.set()
    await world.freezer.freeze(30)
    assert await world.freezer.thaw() is True


async def test_no_room_for_a_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = threading.Thread.start, [0]

    def start(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    for good in range(3):
        left[0] = good
        with pytest.raises(AgentError, match="cannot start a thread"):
            await world.freezer.freeze(30)
        world.assert_running()
    assert world.told("freeze") == []


async def test_the_agent_ends_while_frozen(world: World) -> None:
    await world.freezer.freeze(30)
    world.freezer.close()
    assert world.kernel.frozen == []


async def test_the_agent_before_was_killed_while_frozen(world: World) -> None:
    await world.freezer.freeze(30)
    after = PaperKernel(world.kernel.root)
    after.frozen = list(world.kernel.frozen)
    Freezer(after, Gate()).recover()
    assert after.frozen == []
    assert [call[1] for call in after.calls] == ["/", world.data]
    assert not after.path(RECORD).exists()
    Freezer(after, Gate()).recover()
    for text in ("", "[", "5", '["/no/such/place"]'):
        after.path(RECORD).write_text(text)
        Freezer(after, Gate()).recover()
    assert len(after.calls) == 2
    await world.freezer.thaw()

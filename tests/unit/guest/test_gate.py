"""The gate before the disk, and the log that is held behind it."""

from __future__ import annotations

import asyncio
import io
import logging
from pathlib import Path

import pytest

from torpor_guest import execs
from torpor_guest.cgroups import Cgroups
from torpor_guest.command import Command, Request
from torpor_guest.gate import DISK, Gate, HeldLog
from torpor_guest.launcher import Launcher
from torpor_guest.sandboxfile import SandboxFile
from torpor_guest.threads import POOL
from torpor_guest.users import Image

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_what_comes_while_it_is_shut_waits_in_order() -> None:
    gate, seen = Gate(), []
    gate.run(lambda: seen.append("before"))
    gate.shut()
    gate.run(lambda: seen.append("one"))
    gate.run(lambda: seen.append("two"))
    assert seen == ["before"]
    gate.open()
    assert seen == ["before", "one", "two"]
    gate.run(lambda: seen.append("after"))
    assert seen[-1] == "after"


async def test_tasks_wait_and_a_cancelled_one_holds_up_nobody() -> None:
    gate, seen = Gate(), []

    async def work(name: str) -> None:
        await gate.passed()
        seen.append(name)

    gate.shut()
    tasks = [asyncio.get_running_loop().create_task(work(name)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    assert seen == []
    gate.open()
    await asyncio.wait(tasks)
    assert seen == ["a", "c"]
    await gate.passed()


async def test_who_passes_late_finds_it_shut_again() -> None:
    gate = Gate()
    gate.shut()
    task = asyncio.get_running_loop().create_task(gate.passed())
    await asyncio.sleep(0)
    gate.open()
    gate.shut()  # before the task had its turn
    await asyncio.sleep(0)
    assert not task.done()
    gate.open()
    await task


async def test_one_that_fails_or_shuts_it_keeps_the_rest_right(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate, seen = Gate(), []
    gate.shut()
    gate.run(lambda: 1 / 0)
    gate.run(gate.shut)
    gate.run(lambda: seen.append("last"))
    gate.open()
    assert "ZeroDivisionError" in caplog.text
    assert (seen, gate.is_shut) == ([], True)
    gate.open()
    assert seen == ["last"]


async def test_log_lines_are_held_while_it_is_shut() -> None:
    gate, text = Gate(), io.StringIO()
    handler = logging.StreamHandler(text)
    HeldLog(gate, handler)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.warning("before")
    gate.shut()
    logger.warning("one")
    logger.warning("two")
    assert text.getvalue() == "before\n"
    gate.open()
    logger.warning("after")
    assert text.getvalue() == "before\none\ntwo\nafter\n"
    gate.shut()
    for i in range(10_000):
        logger.warning("%d", i)
    gate.open()
    assert text.getvalue().count("\n") == 4 + 500, "what is held is bounded"


async def test_tidying_up_after_an_end_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execs, "MAX_KEPT", 0)
    launcher = Launcher(Cgroups(None))
    found = execs.Execs(tmp_path, launcher, Image(), SandboxFile(tmp_path / "none"), POOL)
    found.restore()
    request = Request("exec_1", "true", "root", "/", False, None, 0.0)
    spools = found._spools("exec_1", 5, None)
    command = Command(request, spools)
    command.state, found._commands["exec_1"] = "exited", command
    spools[0].append(b"x")
    found._ended(command)
    DISK.shut()
    try:
        await asyncio.sleep(0.1)
        assert Path(spools[0].path).exists()
    finally:
        DISK.open()
    assert found.list() == []
    assert not Path(spools[0].path).exists()

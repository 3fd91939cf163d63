"""The gate before the disk, and the log that is held behind it."""

from __future__ import annotations

import asyncio
import io
import logging

import pytest

from torpor_guest.gate import Gate, HeldLog

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

"""Pumps: bounded, patient, and their source is always closed in its own task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import anyio
import pytest

from torpor.server.pump import Pump


def test_items_then_the_end_again_and_again() -> None:
    async def source() -> AsyncGenerator[int, None]:
        for n in range(10):
            yield n

    async def work() -> None:
        pump = Pump(source(), ahead=2)
        assert [await pump.get(within_s=1) for _ in range(10)] == list(range(10))
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await pump.get()
        await pump.aclose()

    asyncio.run(work())


def test_it_runs_ahead_only_so_far() -> None:
    made = 0

    async def source() -> AsyncGenerator[int, None]:
        nonlocal made
        while True:
            made += 1
            yield made

    async def work() -> None:
        pump = Pump(source(), ahead=3)
        for _ in range(50):
            await asyncio.sleep(0)
        assert made == 4  # three wait, one is held by the source
        await pump.aclose()

    asyncio.run(work())


def test_a_timeout_loses_nothing() -> None:
    go = asyncio.Event()

    async def source() -> AsyncGenerator[str, None]:
        await go.wait()
        yield "late"

    async def work() -> None:
        pump = Pump(source())
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await pump.get(within_s=0.01)
        go.set()
        assert await pump.get() == "late"
        await pump.aclose()

    asyncio.run(work())


def test_a_failure_comes_after_what_was_before_it() -> None:
    async def source() -> AsyncGenerator[int, None]:
        yield 1
        raise KeyError("boom")

    async def work() -> None:
        pump = Pump(source())
        assert await pump.get() == 1
        with pytest.raises(KeyError):
            await pump.get()
        await pump.aclose()

    asyncio.run(work())


@pytest.mark.parametrize("cancelled", [True, False])
def test_the_source_ends_its_cleanup_even_in_a_cancelled_scope(cancelled: bool) -> None:
    steps: list[str] = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0.01)
            steps.append("closed")

    async def work() -> None:
        with anyio.CancelScope() as scope:
            pump = Pump(source())
            try:
                await pump.get()
                if cancelled:
                    scope.cancel()
                    await asyncio.sleep(0)
            finally:
                await pump.aclose()
        assert steps == ["closed"]

    asyncio.run(work())


def test_stop_wakes_the_reader() -> None:
    async def source() -> AsyncGenerator[int, None]:
        await asyncio.sleep(60)
        yield 1

    async def work() -> None:
        pump = Pump(source())
        asyncio.get_running_loop().call_later(0.01, pump.stop)
        with pytest.raises(StopAsyncIteration):
            await pump.get(within_s=5)
        await pump.aclose()

    asyncio.run(work())

from __future__ import annotations

import asyncio

import anyio
import pytest

from torpor.base.aio import Supervisor, finish


def test_finish_runs_to_its_end_under_repeated_cancels() -> None:
    log: list[str] = []

    async def cleanup() -> None:
        await asyncio.sleep(0.1)
        log.append("done")

    async def work() -> None:
        try:
            await asyncio.sleep(9)
        except asyncio.CancelledError:
            await finish(cleanup(), within_s=5)
            raise

    async def main() -> None:
        task = asyncio.create_task(work())
        for _ in range(3):
            await asyncio.sleep(0.01)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert log == ["done"]


def test_finish_runs_inside_a_cancelled_anyio_scope() -> None:
    log: list[str] = []

    async def cleanup() -> None:
        await asyncio.sleep(0.05)
        log.append("done")

    async def main() -> None:
        with anyio.move_on_after(0.01):
            try:
                await asyncio.sleep(9)
            finally:
                await finish(cleanup(), within_s=5)

    asyncio.run(main())
    assert log == ["done"]


def test_finish_is_bounded() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await finish(asyncio.sleep(9), within_s=0.05)

    asyncio.run(main())


def test_supervisor_reports_failures_and_ends_its_tasks() -> None:
    seen: list[tuple[str, str]] = []

    async def bad() -> None:
        raise RuntimeError("x")

    async def main() -> None:
        supervisor = Supervisor(lambda name, exc: seen.append((name, repr(exc))))
        supervisor.launch(bad(), name="pump")
        forever = supervisor.spawn(asyncio.sleep(99), name="forever")
        await asyncio.sleep(0.01)
        await supervisor.aclose()
        assert forever.cancelled()

    asyncio.run(main())
    assert seen == [("pump", "RuntimeError('x')")]

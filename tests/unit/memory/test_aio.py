from __future__ import annotations

import asyncio
import threading

import pytest

from torpor.errors import InvalidRequest
from torpor.memory import Space
from torpor.memory.aio import AsyncSpace


def test_calls_are_awaited_and_run_in_another_thread(mem: Space) -> None:
    space = AsyncSpace(mem)
    seen: list[int] = []

    async def main() -> None:
        seen.append(threading.get_ident())
        await asyncio.gather(*(space.record(f"word{n}") for n in range(8)))
        assert len(await space.episodes()) == 8
        assert await space.tx() == mem.tx
        assert (await space.recall("word3")).items[0].text == "word3"
        with pytest.raises(InvalidRequest):
            await space.record("")

    asyncio.run(main())
    assert mem.verify_chain().ok


def test_a_cancelled_call_is_whole_or_absent(mem: Space) -> None:
    async def main() -> None:
        task = asyncio.get_running_loop().create_task(AsyncSpace(mem).record("word " * 50_000))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(mem.episodes()) in (0, 1)
    assert mem.verify_chain().ok


def test_it_has_the_names_of_a_space(mem: Space) -> None:
    space = AsyncSpace(mem)
    names = [n for n in dir(Space) if not n.startswith("_")]
    assert set(names) <= set(dir(space))
    assert all(callable(getattr(space, n)) for n in names)
    with pytest.raises(AttributeError):
        space.no_such_thing  # noqa: B018
    assert space.space is mem

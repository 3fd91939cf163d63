"""Sync, freeze, thaw and renewal: the contract, on the real agent and on the fake."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.contract.guest.steps import fresh_id, names, run, stream
from torpor.errors import Conflict, GuestUnreachable, InvalidRequest
from torpor.guest.port import Guest
from torpor.model import ExecSpec, Renewal

pytestmark = pytest.mark.anyio


def renewal(hostname: str | None = None, *, entropy: bytes = b"e" * 64) -> Renewal:
    """What a woken machine is told."""
    return Renewal(
        reason="wake" if hostname is None else "fork",
        generation=2,
        now=datetime.now(UTC),
        entropy=entropy,
        hostname=hostname,
    )


async def test_a_frozen_guest_answers_and_writes_when_it_is_thawed(
    guest: Guest, home: Path
) -> None:
    (home / "f").write_text("content")
    exec_id = fresh_id()
    await guest.freeze(dead_man_seconds=30)
    start = asyncio.get_running_loop().create_task(
        guest.exec_start(exec_id, ExecSpec(command="echo hi"))
    )
    others = [
        asyncio.get_running_loop().create_task(work)
        for work in (
            guest.write(f"{home}/new", stream([b"new"])),
            guest.mkdir(f"{home}/folder"),
            guest.sync(),
        )
    ]
    await guest.ping()
    assert await guest.exec_list() == []
    assert [info.name for info in await guest.list_dir(str(home))] == ["f"]
    assert b"".join([piece async for piece in guest.read(f"{home}/f")]) == b"content"
    await asyncio.sleep(0.1)
    assert not start.done()
    assert not any(task.done() for task in others)
    assert names(home) == ["f"]
    assert await guest.thaw() is True
    assert (await start).exec_id == exec_id
    await asyncio.gather(*others)
    assert names(home) == ["f", "folder", "new"]
    assert await guest.thaw() is False


async def test_the_dead_man_lets_go(guest: Guest) -> None:
    await guest.freeze(dead_man_seconds=0.1)
    assert (await run(guest, "echo hi")).stdout == b"hi\n"
    assert await guest.thaw() is False
    await guest.freeze(dead_man_seconds=30)
    assert await guest.thaw() is True


async def test_frozen_is_frozen(guest: Guest) -> None:
    await guest.freeze(dead_man_seconds=30)
    with pytest.raises(Conflict):
        await guest.freeze(dead_man_seconds=30)
    assert await guest.thaw() is True


@pytest.mark.parametrize("seconds", [0, -1, 1e9, float("nan")])
async def test_a_dead_man_who_cannot_be(guest: Guest, seconds: float) -> None:
    with pytest.raises(InvalidRequest):
        await guest.freeze(dead_man_seconds=seconds)
    assert await guest.thaw() is False


async def test_renewal_thaws(guest: Guest) -> None:
    await guest.sync()
    await guest.freeze(dead_man_seconds=30)
    await guest.renew(renewal())
    assert (await run(guest, "echo hi")).stdout == b"hi\n"
    assert await guest.thaw() is False


async def test_a_renewal_that_cannot_be(guest: Guest) -> None:
    with pytest.raises(InvalidRequest):
        await guest.renew(renewal(entropy=b"few"))
    naive = renewal()
    object.__setattr__(naive, "now", datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidRequest):
        await guest.renew(naive)


async def test_closed(guest: Guest) -> None:
    before = guest.closed
    await guest.aclose()
    assert (before, guest.closed) == (False, True)
    for call in (guest.sync(), guest.freeze(dead_man_seconds=1), guest.thaw(), guest.ping()):
        with pytest.raises(GuestUnreachable):
            await call

"""`GuestProbe` over a fake guest: limits, output that is bounded, and nothing that is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fakes.guest import FakeGuest
from torpor.errors import GuestUnreachable, InvalidRequest
from torpor.recovery.checks import GuestProbe


@pytest.fixture
def guest(tmp_path: Path) -> FakeGuest:
    return FakeGuest(tmp_path)


async def _run(guest: FakeGuest) -> None:
    probe = GuestProbe(guest)
    ran = await probe.run("pwd; echo no >&2; exit 7", timeout_seconds=20)
    assert (ran.exit_code, ran.stderr, ran.timed_out) == (7, b"no\n", False)
    fed = await probe.run(("cat",), timeout_seconds=20, stdin=b"x" * 300_000)
    assert (len(fed.stdout), fed.stdout_is_cut) == (256 << 10, True)
    assert (await probe.run("cat", timeout_seconds=20)).stdout == b""
    short = await probe.run("echo abcdef", timeout_seconds=20, output_limit_bytes=3)
    assert (short.stdout, short.stdout_is_cut, short.stderr_is_cut) == (b"abc", True, False)
    hung = await probe.run("echo begun; sleep 600", timeout_seconds=0.5)
    assert (hung.timed_out, hung.stdout) == (True, b"begun\n")
    assert guest.execs == {}, "nothing is kept of what ended"
    with pytest.raises(InvalidRequest):
        await probe.run("true", user="nobody-here", timeout_seconds=5)
    guest.cut()
    with pytest.raises(GuestUnreachable):
        await probe.run("true", timeout_seconds=5)


def test_commands(guest: FakeGuest) -> None:
    asyncio.run(_run(guest))


def test_a_cancelled_call_kills_its_command(guest: FakeGuest) -> None:
    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await GuestProbe(guest).run("sleep 600", timeout_seconds=600)
        (found,) = guest.execs.values()
        async with asyncio.timeout(10):
            async with guest.exec_attach(found.info.exec_id) as events:
                ended = [event async for event in events][-1]
        assert ended.info.signal == 9  # type: ignore[union-attr]

    asyncio.run(run())

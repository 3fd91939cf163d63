"""The host's side of a renewal: what a guest that lies or is too old may say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from torpor.errors import GuestFailed
from torpor.guest.snapshots import SnapshotCalls
from torpor.model import Renewal

pytestmark = pytest.mark.anyio

ALL = ["entropy", "clock", "thaw", "identity", "generation"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Guest:
    """Answers what a test wants."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any], float]] = []
        self.calls = SnapshotCalls(cast("Any", self))

    async def call(self, method: str, params: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
        """See `Channel.call`."""
        self.asked.append((method, params, limit_s))
        return self.answer


def renewal(hostname: str | None) -> Renewal:
    """A renewal."""
    return Renewal(
        reason="fork",
        generation=3,
        now=datetime(2026, 8, 1, 12, 0, 0, 5, UTC),
        entropy=b"\x00\xff" * 32,
        hostname=hostname,
    )


async def test_what_is_asked() -> None:
    guest = Guest({"done": ALL})
    await guest.calls.renew(renewal("sbx-1"))
    (asked,) = guest.asked
    assert asked[0] == "renew"
    assert asked[1] == {
        "reason": "fork",
        "generation": 3,
        "now_ns": 1785585600000005000,
        "entropy": "00ff" * 32,
        "hostname": "sbx-1",
    }
    assert asked[2] >= 120 + 120, "new host keys and the programs in on-restore.d fit in"


@pytest.mark.parametrize("missing", ALL)
async def test_a_step_that_is_not_confirmed_fails(missing: str) -> None:
    guest = Guest({"done": [step for step in ALL if step != missing]})
    with pytest.raises(GuestFailed, match=missing):
        await guest.calls.renew(renewal("sbx-1"))
    if missing == "identity":
        await guest.calls.renew(renewal(None))


@pytest.mark.parametrize("done", [None, "entropy clock thaw identity generation", {}, 5])
async def test_a_confirmation_that_is_none(done: object) -> None:
    with pytest.raises(GuestFailed):
        await Guest({"done": done}).calls.renew(renewal(None))


async def test_notes_are_logged_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    await Guest({"done": ALL, "notes": ["a hook failed\n\x1b[31m", "x" * 9999]}).calls.renew(
        renewal("sbx-1")
    )
    assert "a hook failed\\n\\x1b[31m" in caplog.text
    assert "x" * 501 not in caplog.text
    caplog.clear()
    await Guest({"done": ALL, "notes": ["n"] * 10_000}).calls.renew(renewal("sbx-1"))
    assert len(caplog.records) == 32
    await Guest({"done": ALL, "notes": {"no": "list"}}).calls.renew(renewal("sbx-1"))
    assert len(caplog.records) == 32


@pytest.mark.parametrize("said", [True, False, None, "yes", 1])
async def test_frozen_until_now_must_be_said_plainly(said: object) -> None:
    assert await Guest({"was_frozen": said}).calls.thaw() is (said is True)

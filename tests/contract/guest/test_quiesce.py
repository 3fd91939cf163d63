"""Quiescing: the contract, on the real agent and on the fake."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.contract.guest.test_snapshots import renewal
from torpor.errors import Conflict, GuestUnreachable, NotFound
from torpor.guest.port import Guest
from torpor.model_quiesce import HookSpec, QuiesceSpec

pytestmark = pytest.mark.anyio


def spec(*hooks: HookSpec, **more: Any) -> QuiesceSpec:
    """These hooks alone."""
    return QuiesceSpec(hooks=hooks, discover=False, user_hooks=False, **more)


def command(name: str = "app", **more: Any) -> HookSpec:
    """A hook that holds at once."""
    return HookSpec(name=name, **{"hold": "true", **more})


async def test_held_confirmed_released(guest: Guest) -> None:
    quiet = await guest.quiesce(spec(command(), versions={"tool": "echo 1.0"}, cursor="echo 42"))
    assert (quiet.held, quiet.reason) == (True, "")
    assert 0 < quiet.left_seconds <= 30
    assert [(hook.name, hook.kind, hook.state) for hook in quiet.hooks] == [
        ("app", "command", "held")
    ]
    assert (dict(quiet.versions), quiet.cursor) == ({"tool": "1.0"}, "42")
    await guest.freeze(dead_man_seconds=30)
    assert (await guest.quiesce_confirm(quiet.token)).held, "also while it is frozen"
    await guest.thaw()
    confirmed = await guest.quiesce_confirm(quiet.token)
    assert confirmed.held
    released = await guest.quiesce_release(quiet.token, "taken")
    assert [hook.state for hook in released.hooks] == ["held"]
    after = await guest.quiesce_confirm(quiet.token)
    assert not after.held
    assert "taken" in after.reason
    assert (await guest.quiesce_release(quiet.token, "taken")).token == quiet.token


async def test_a_required_hook_that_fails(guest: Guest) -> None:
    quiet = await guest.quiesce(spec(command("one"), command("two", hold="false")))
    assert not quiet.held
    assert quiet.reason.startswith("hook two: hold ended with status 1")
    by_name = {hook.name: hook for hook in quiet.hooks}
    assert (by_name["two"].state, by_name["two"].failed_phase) == ("failed", "hold")
    again = await guest.quiesce(spec(command()))
    assert again.held, "all was released"
    await guest.quiesce_release(again.token, "test")


async def test_an_optional_hook_that_fails(guest: Guest) -> None:
    quiet = await guest.quiesce(spec(command("a"), command("b", prepare="false", required=False)))
    assert quiet.held
    assert {hook.name: hook.state for hook in quiet.hooks} == {"a": "held", "b": "failed"}
    assert (await guest.quiesce_confirm(quiet.token)).held
    await guest.quiesce_release(quiet.token, "taken")


async def test_nothing_to_hold_is_not_held(guest: Guest) -> None:
    quiet = await guest.quiesce(spec())
    assert not quiet.held
    assert "no hook" in quiet.reason


async def test_one_at_a_time_and_unknown_tokens(guest: Guest) -> None:
    quiet = await guest.quiesce(spec(command()))
    with pytest.raises(Conflict):
        await guest.quiesce(spec(command()))
    for call in (guest.quiesce_confirm("0123"), guest.quiesce_release("0123", "taken")):
        with pytest.raises(NotFound):
            await call
    await guest.quiesce_release(None, "failed")
    assert not (await guest.quiesce_confirm(quiet.token)).held
    await guest.quiesce_release(None, "failed")


async def test_the_dead_man(guest: Guest) -> None:
    quiet = await guest.quiesce(spec(command(hold_max_seconds=0.3)))
    assert quiet.held
    deadline = time.monotonic() + 10
    while (await guest.quiesce_confirm(quiet.token)).held:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert not (await guest.quiesce_release(quiet.token, "taken")).held
    again = await guest.quiesce(spec(command()))
    assert again.held
    await guest.quiesce_release(again.token, "taken")


async def test_a_release_thaws_first_and_a_renewal_releases(guest: Guest) -> None:
    for is_renewed in (False, True):
        quiet = await guest.quiesce(spec(command()))
        await guest.freeze(dead_man_seconds=30)
        if is_renewed:
            await guest.renew(renewal())
        else:
            await guest.quiesce_release(quiet.token, "failed")
        assert await guest.thaw() is False, "it was thawed"
        assert not (await guest.quiesce_confirm(quiet.token)).held


async def test_closed(guest: Guest) -> None:
    await guest.aclose()
    calls = (
        guest.quiesce(spec(command())),
        guest.quiesce_confirm("x"),
        guest.quiesce_release(None, "failed"),
    )
    for call in calls:
        with pytest.raises(GuestUnreachable):
            await call

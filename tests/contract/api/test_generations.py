"""Whoever follows a machine that is put back or sleeps is told so, and never gets bytes of another life."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.api.conftest import Rest
from tests.fakes.serving import CuttingProxy, ServerThread
from torpor import Client, Sandbox
from torpor.base.home import Home
from torpor.errors import GenerationChanged
from torpor.model import ExecOutput, SandboxState

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox.create()


@pytest.mark.parametrize("move", ["rollback", "hibernate"])
def test_a_stream_ends_with_it(sandbox: Sandbox, move: str) -> None:
    checkpoint = sandbox.snapshot()
    events = sandbox.exec_stream("echo a; sleep 60")
    next(events)
    next(events)
    sandbox.rollback(checkpoint.id) if move == "rollback" else sandbox.hibernate()
    with pytest.raises(GenerationChanged):
        list(events)
    woken = sandbox.refresh().state is SandboxState.RUNNING
    assert woken is (move == "rollback")


def test_a_waiting_exec_ends_with_it(sandbox: Sandbox, server: ServerThread) -> None:
    checkpoint = sandbox.snapshot()
    process = sandbox.exec("sleep 60", background=True)

    async def later() -> None:
        await asyncio.sleep(0.2)
        await server.engine.rollback(sandbox.id, checkpoint.id)

    asyncio.run_coroutine_threadsafe(later(), server.loop)
    with pytest.raises(GenerationChanged):
        process.wait()


def test_after_a_sleep_a_command_is_followed_again_when_asked(sandbox: Sandbox) -> None:
    process = sandbox.exec("echo a; sleep 0.3; echo b", background=True)
    sandbox.hibernate()
    assert sandbox.attach(process.exec_id).wait().stdout == "a\nb\n"


@pytest.fixture
def proxy(server: ServerThread, home: Home, tmp_path: Path) -> Iterator[CuttingProxy]:
    found = CuttingProxy(server, home.socket, tmp_path / "p.sock", [700])
    yield found
    found.close()


@pytest.mark.parametrize("move", ["rollback", "hibernate", "hibernate and wake"])
def test_attaching_again_does_not_hide_it(
    sandbox: Sandbox, server: ServerThread, proxy: CuttingProxy, move: str
) -> None:
    """The command is in the other life too, and would go on giving bytes."""
    engine = server.engine

    async def work() -> None:
        if move == "rollback":
            taken = await engine.snapshot(sandbox.id)
            await engine.rollback(sandbox.id, taken.id)
            return
        await engine.hibernate(sandbox.id)
        if "wake" in move:
            await engine.wake(sandbox.id)

    proxy.on_cut = work
    lossy = Sandbox.handle(sandbox.id, client=Client(url=proxy.url))
    events = lossy.exec_stream("spew 200; sleep 0.2; spew 2000; sleep 60")
    seen: list[ExecOutput] = []
    with pytest.raises(GenerationChanged):
        seen.extend(event for event in events if isinstance(event, ExecOutput))
    assert b"".join(event.data for event in seen) == b"x" * 200
    assert proxy.connections == 2
    state = SandboxState.HIBERNATED if move == "hibernate" else SandboxState.RUNNING
    assert sandbox.refresh().state is state  # attaching did not wake it


def test_a_start_that_was_lost_is_not_repeated_in_another_life(
    sandbox: Sandbox, server: ServerThread, proxy: CuttingProxy
) -> None:
    checkpoint = sandbox.snapshot()
    marks = server.guest(sandbox.id).marks

    async def work() -> None:
        await server.engine.rollback(sandbox.id, checkpoint.id)

    proxy.cuts[:] = [1]
    proxy.on_cut = work
    lossy = Sandbox.handle(sandbox.id, client=Client(url=proxy.url))
    with pytest.raises(GenerationChanged, match="not started a second time"):
        lossy.exec("mark ran; sleep 60")
    assert marks["ran"] == 1
    proxy.cuts[:] = [1]
    proxy.on_cut = work
    with pytest.raises(GenerationChanged, match="not started a second time"):
        Sandbox.handle(sandbox.id, client=Client(url=proxy.url, token="other")).exec(
            "mark again; sleep 60", background=True
        )
    assert marks["again"] == 1


def test_over_rest(rest: Rest, server: ServerThread) -> None:
    sandbox = rest.create()
    path = f"/v1/sandboxes/{sandbox}"
    exec_id = rest.ok(
        "POST", f"{path}/exec", json={"cmd": "echo a", "background": True}, status=202
    )["exec_id"]
    stream = f"{path}/execs/{exec_id}/stream"
    assert rest.events("GET", stream)[0][1]["generation"] == 1
    assert rest.events("GET", f"{stream}?generation=1")[-1][0] == "exit"
    body = rest.fails("GET", f"{stream}?generation=2", 409, "sandbox.generation_changed")
    assert body["facts"]["generation"] == 1
    rest.ok("POST", f"{path}/hibernate")
    rest.fails("GET", f"{stream}?generation=1", 409, "sandbox.generation_changed")
    assert rest.ok("GET", path)["state"] == "hibernated"
    assert rest.events("GET", stream)[0][1]["generation"] == 2

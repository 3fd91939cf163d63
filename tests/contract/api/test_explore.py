"""Best of N: the winner lives, the rest is deleted, however it ends."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest

from tests.fakes.serving import ServerThread
from torpor import AsyncSandbox, Sandbox
from torpor.errors import (
    GuestFailed,
    InsufficientResources,
    InvalidRequest,
    NotFound,
    OperationTimeout,
    VmmFailed,
)
from torpor.sdk import temporary
from torpor.sdk.results import ExecResult
from torpor.sdk.temporary import in_thread

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox.create()


def ctrl_c() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def alive() -> set[str]:
    return {s.id for s in Sandbox.list()}


def test_commands_and_the_default_score(sandbox: Sandbox) -> None:
    found = sandbox.explore(
        ["exit 1", "sleep 0.3; echo slow", ["echo", "quick"], "nosuch"],
        metadata={"job": "x"},
        env={"B": "2"},
        network="none",
        idle_seconds=9,
    )
    assert found.winner is not None
    assert found.best is found.outcomes[2]
    assert found.best.result.stdout == "quick\n"
    assert alive() == {sandbox.id, found.winner.id}
    assert [o.score for o in found.outcomes] == [0.0, 1.0, 1.0, 0.0]
    assert [o.index for o in found.outcomes] == [0, 1, 2, 3]
    assert found.outcomes[1].candidate == "sleep 0.3; echo slow"
    assert found.outcomes[1].duration_ms >= 300
    assert (found.errors, found.leftovers) == ((), {})
    info = found.winner.info
    assert (info.ttl_seconds, info.idle_seconds, info.network) == (None, 9, "none")
    assert (info.metadata["job"], info.parent_snapshot) == ("x", found.snapshot_id)
    assert "B=2" in found.winner.exec("env").stdout


def test_callables_and_a_score(sandbox: Sandbox) -> None:
    def write(size: int) -> Any:
        def candidate(fork: Sandbox) -> int:
            fork.filesystem.write("/workspace/out", b"x" * size)
            return size

        return candidate

    seen: list[tuple[str, object]] = []

    def score(fork: Sandbox, result: object) -> float:
        seen.append((fork.id, result))
        return -fork.filesystem.stat("/workspace/out").size_bytes

    candidates = [write(5), write(2), write(9)]
    found = Sandbox.explore(sandbox.id, candidates, score, ttl_seconds=60, on_timeout="hibernate")
    assert found.best is not None
    assert (found.best.index, found.best.score, found.best.result) == (1, -2.0, 2)
    assert found.best.candidate is candidates[1]
    assert sorted(result for _, result in seen) == [2, 5, 9]  # type: ignore[type-var]
    assert found.winner is not None
    assert found.winner.filesystem.read("/workspace/out") == b"xx"
    assert (found.winner.info.ttl_seconds, found.winner.info.on_timeout) == (60, "hibernate")
    assert not sandbox.filesystem.exists("/workspace/out")


def test_a_snapshot_may_be_explored(sandbox: Sandbox) -> None:
    taken = sandbox.snapshot()
    found = Sandbox.explore(taken.id, ["true"])
    assert found.snapshot_id == taken.id


def test_errors_are_reported_and_do_not_win(sandbox: Sandbox, server: ServerThread) -> None:
    def broken(_fork: Sandbox) -> None:
        raise ZeroDivisionError("mine")

    def leaves(_fork: Sandbox) -> None:
        raise SystemExit(3)

    server.engine.room = 5
    found = sandbox.explore(
        [broken, leaves, "sleep 60", lambda _f: next(iter(())), "true", "true"],
        timeout_seconds=0.2,
    )
    kinds = [type(o.error) for o in found.outcomes]
    assert kinds[0] is ZeroDivisionError
    assert "SystemExit" in str(found.outcomes[1].error)
    assert kinds[2] is OperationTimeout
    assert kinds[3] is RuntimeError
    assert kinds[4] is type(None)
    assert kinds[5] is InsufficientResources
    assert found.outcomes[5].sandbox_id is None
    assert found.best is found.outcomes[4]
    assert len(found.errors) == 5
    assert found.winner is not None
    assert alive() == {sandbox.id, found.winner.id}


def test_no_winner(sandbox: Sandbox) -> None:
    def score(_fork: Sandbox, result: ExecResult) -> float:
        if result.exit_code:
            raise ValueError("failed")
        return float("nan")

    found = sandbox.explore(["true", "false"], score)
    assert (found.winner, found.best) == (None, None)
    assert [type(e) for e in found.errors] == [InvalidRequest, ValueError]
    assert alive() == {sandbox.id}


def test_what_cannot_begin(sandbox: Sandbox, server: ServerThread) -> None:
    for wrong in ([], ["true"] * 101):
        with pytest.raises(InvalidRequest):
            sandbox.explore(wrong)
    with pytest.raises(NotFound):
        Sandbox.explore("sbx_00000000000000000000", ["true"])
    server.engine.will_not_freeze = True
    with pytest.raises(GuestFailed):
        sandbox.explore(["true"])
    assert alive() == {sandbox.id}


def test_ctrl_c_deletes_all_forks(sandbox: Sandbox) -> None:
    started = threading.Barrier(3, timeout=10)

    def candidate(fork: Sandbox) -> None:
        if started.wait() == 0:
            ctrl_c()
        fork.exec("sleep 60")

    with pytest.raises(KeyboardInterrupt):
        sandbox.explore([candidate] * 3)
    assert alive() == {sandbox.id}


def test_ctrl_c_while_the_forks_are_made(
    sandbox: Sandbox, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = server.engine.fork

    async def slow(*args: Any, **kwargs: Any) -> Any:
        ctrl_c()
        await asyncio.sleep(0.3)
        return await fork(*args, **kwargs)

    monkeypatch.setattr(server.engine, "fork", slow)
    with pytest.raises(KeyboardInterrupt):
        sandbox.explore(["true"] * 3)
    assert alive() == {sandbox.id}
    assert len(server.engine.sandboxes) == 4  # they were made, and are deleted


def test_a_cancelled_exploration_deletes_all_forks(server: ServerThread) -> None:
    async def work() -> None:
        sandbox = await AsyncSandbox.create()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await sandbox.explore(["sleep 60", "sleep 60"])
        assert [s.id async for s in AsyncSandbox.list()] == [sandbox.id]

    asyncio.run(work())


def test_a_loser_that_will_not_go(
    sandbox: Sandbox, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = server.engine.delete
    attempts: list[str] = []

    async def stubborn(sandbox_id: str) -> object:
        attempts.append(sandbox_id)
        if attempts.count(sandbox_id) == 1:
            raise InsufficientResources("later")  # may be tried again
        if sandbox_id == attempts[0]:
            raise VmmFailed("it will not go")
        return await delete(sandbox_id)  # type: ignore[arg-type]

    monkeypatch.setattr(temporary, "_RETRY_S", 0.01)
    monkeypatch.setattr(server.engine, "delete", stubborn)
    found = sandbox.explore(["true", "false", "false"])
    assert found.leftovers == {attempts[0]: "it will not go"}
    assert Sandbox.get(attempts[0]).info.ttl_seconds == 86400
    assert found.winner is not None
    assert alive() == {sandbox.id, found.winner.id, attempts[0]}


def test_asynchronously(server: ServerThread) -> None:
    async def work() -> None:
        sandbox = await AsyncSandbox.create()

        async def candidate(fork: AsyncSandbox) -> str:
            return (await fork.exec("env")).stdout

        async def score(_fork: AsyncSandbox, result: Any) -> float:
            return 5.0 if "SECRET=hi\n" in result else 1.0

        found = await sandbox.explore(
            [candidate, lambda _fork: "plain"], score, secrets={"SECRET": "hi"}
        )
        assert found.best is not None
        assert (found.best.index, found.best.score) == (0, 5.0)
        assert isinstance(found.winner, AsyncSandbox)
        assert await AsyncSandbox.explore(found.winner.id, ["true"])

        async def slow(_fork: AsyncSandbox) -> None:
            await asyncio.sleep(60)

        async def gives_up(_fork: AsyncSandbox) -> None:
            raise TimeoutError("its own")

        late = await sandbox.explore([slow, gives_up], timeout_seconds=0.1)
        assert [type(e) for e in late.errors] == [OperationTimeout, TimeoutError]

    asyncio.run(work())


def test_a_thread_that_nobody_waits_for_any_more() -> None:
    release = threading.Event()

    async def work() -> None:
        async with asyncio.timeout(0.05):
            await in_thread(lambda: release.wait(5))

    with pytest.raises(TimeoutError):
        asyncio.run(work())
    release.set()
    time.sleep(0.05)

"""The asynchronous SDK over a real socket."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.fakes.serving import ServerThread
from torpor import AsyncSandbox, AsyncTemplates
from torpor.errors import CommandFailed, NotFound, OperationTimeout
from torpor.model import ExecEnded, SandboxState

pytestmark = pytest.mark.usefixtures("server")


def test_a_life() -> None:
    async def work() -> None:
        async with await AsyncSandbox.create(metadata={"n": "1"}) as sandbox:
            result = await sandbox.exec("echo hi; exit 2")
            assert (result.stdout, result.exit_code) == ("hi\n", 2)
            with pytest.raises(CommandFailed):
                await sandbox.exec("false", check=True)
            with pytest.raises(OperationTimeout):
                await sandbox.exec("sleep 9", timeout_seconds=0.05)
            seen: list[str] = []
            await sandbox.exec("echo a; err b", on_stdout=seen.append, on_stderr=seen.append)
            assert sorted(seen) == ["a\n", "b\n"]
            events = [event async for event in sandbox.exec_stream("echo x")]
            assert isinstance(events[-1], ExecEnded)
            process = await sandbox.exec("cat", background=True, stdin=True)
            await process.write_stdin("text")
            await process.close_stdin()
            assert "".join([text async for text in process.stdout]) == "text"
            assert (await process.wait()).ok
            await sandbox.filesystem.write("/x", _pieces())
            assert await sandbox.filesystem.read("/x") == b"abab"
            assert [f.name async for f in sandbox.filesystem.walk("/workspace")] == []
            assert [s.id async for s in AsyncSandbox.list()] == [sandbox.id]
            await AsyncSandbox.pause(sandbox.id)
            await sandbox.resume()
            assert b"".join([c async for c in sandbox.logs()]).startswith(b"booting")
            assert [t.name for t in await AsyncTemplates.list()] == ["agent", "base"]
            assert (await AsyncTemplates.build("fresh")).name == "fresh"
        assert (await sandbox.refresh()).state == SandboxState.DELETED
        with pytest.raises(NotFound):
            await AsyncSandbox.get("sbx_00000000000000000000")

    asyncio.run(work())


async def _pieces():  # type: ignore[no-untyped-def]
    yield b"ab"
    yield b"ab"


def test_connections_end_with_their_loop() -> None:
    async def work() -> str:
        return (await AsyncSandbox.create()).id

    for _ in range(3):
        asyncio.run(work())
    gc.collect()  # an open connection would warn here, and warnings are errors


def test_a_cancelled_exec_only_detaches(server: ServerThread) -> None:
    async def work() -> None:
        sandbox = await AsyncSandbox.create()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await sandbox.exec("sleep 60")
        guest = server.guest(sandbox.id)
        await asyncio.to_thread(server.wait_until, lambda: guest.attached == 0)
        assert [e.state for e in await sandbox.execs()] == ["running"]

    asyncio.run(work())


def test_a_hundred_at_once() -> None:
    async def work() -> None:
        sandbox = await AsyncSandbox.create()
        found = await asyncio.gather(*(sandbox.exec(f"echo {n}") for n in range(100)))
        assert [r.stdout for r in found] == [f"{n}\n" for n in range(100)]

    asyncio.run(work())

from __future__ import annotations

import asyncio
import os
import platform
import sys
from pathlib import Path

import pytest

from torpor.base import proc
from torpor.base.proc import HostCommandFailed, ProcessId
from torpor.errors import OperationTimeout

_SYS_EXIT = {"x86_64": 60, "aarch64": 93}[platform.machine()]
"""Ends one thread."""


def _gone(pid: int) -> bool:
    return ProcessId.of(pid) is None


async def _until_written(path: Path) -> int:
    async with asyncio.timeout(20):
        while not (path.exists() and path.read_text().strip()):
            await asyncio.sleep(0.01)
    return int(path.read_text())


async def _until_gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while not _gone(pid):
            await asyncio.sleep(0.01)


def test_run_returns_output_and_raises_with_status_and_stderr() -> None:
    async def main() -> None:
        assert (
            await proc.run(["cat"], timeout_s=20, stdin=b"x" * 300_000)
        ).stdout == b"x" * 300_000
        with pytest.raises(HostCommandFailed, match="sh exited with status 3: bad") as caught:
            await proc.run(["sh", "-c", "echo bad >&2; exit 3"], timeout_s=20)
        assert caught.value.facts["status"] == 3
        assert (await proc.run(["sh", "-c", "exit 4"], timeout_s=20, check=False)).status == 4

    asyncio.run(main())


def test_run_kills_grandchildren_on_timeout(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    async def main() -> None:
        with pytest.raises(OperationTimeout, match=r"longer than 0.5 s"):
            await proc.run(["sh", "-c", f"sleep 60 & echo $! > {pid_file}; wait"], timeout_s=0.5)
        await _until_gone(int(pid_file.read_text()))

    asyncio.run(main())


def test_run_kills_on_cancel(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    async def main() -> None:
        task = asyncio.create_task(
            proc.run(["sh", "-c", f"echo $$ > {pid_file}; exec sleep 60"], timeout_s=50)
        )
        pid = await _until_written(pid_file)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert _gone(pid)

    asyncio.run(main())


def test_secrets_of_ours_do_not_reach_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_TOKEN", "hush")
    done = asyncio.run(proc.run(["env"], timeout_s=20))
    assert b"hush" not in done.stdout
    assert b"PATH=" in done.stdout


def test_stream_lines_yields_as_they_come_and_ends_the_group(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    async def main() -> None:
        lines = proc.stream_lines(
            ["sh", "-c", f"echo $$ > {pid_file}; echo one; echo two >&2; sleep 60"], timeout_s=50
        )
        assert [await anext(lines), await anext(lines)] == ["one", "two"]
        await lines.aclose()  # type: ignore[attr-defined]
        assert _gone(int(pid_file.read_text()))
        with pytest.raises(HostCommandFailed, match="status 2: last words"):
            async for _ in proc.stream_lines(["sh", "-c", "echo last words; exit 2"], timeout_s=20):
                pass

    asyncio.run(main())


def test_a_detached_process_survives_the_loop_and_is_killed_by_identity(tmp_path: Path) -> None:
    async def begin() -> ProcessId:
        with (tmp_path / "log").open("wb") as log:
            return proc.start_detached(["sleep", "60"], log=log)

    identity = asyncio.run(begin())
    assert identity.alive()

    async def end() -> None:
        waiting = asyncio.create_task(identity.wait())
        await identity.kill()
        await waiting
        await identity.kill()  # no failure when it is gone

    asyncio.run(end())
    assert not identity.alive()
    assert not Path(f"/proc/{identity.pid}").exists(), "a zombie was left"


def test_a_number_that_was_given_to_another_process_is_not_taken_for_ours() -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None
    other = ProcessId(me.pid, me.started_ticks - 1)
    assert not other.alive()
    asyncio.run(other.kill())  # must not kill us


def test_a_program_that_does_not_exist_says_so(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, pytest.raises(FileNotFoundError):
        proc.start_detached(["/nonexistent"], log=log)


def test_a_process_whose_first_thread_has_ended_runs_until_the_last_has(tmp_path: Path) -> None:
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=lambda: time.sleep(60)).start()\n"
        f"ctypes.CDLL(None).syscall({_SYS_EXIT}, 0)"
    )
    with (tmp_path / "log").open("wb") as log:
        process = proc.start_detached([sys.executable, "-c", code], log=log)

    async def scene() -> None:
        try:
            async with asyncio.timeout(20):
                while "Z" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]:
                    await asyncio.sleep(0.01)
            assert process.alive()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await process.wait()
        finally:
            await process.kill()
        assert not process.alive()

    asyncio.run(scene())

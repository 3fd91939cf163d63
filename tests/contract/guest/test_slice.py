"""The first slice: connect, run, read and write through the real agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from torpor.guest.client import GuestClient
from torpor.model import ExecEnded, ExecEvent, ExecId, ExecOutput, ExecSpec, ExecStarted

pytestmark = pytest.mark.anyio


async def run(client: GuestClient, exec_id: str, spec: ExecSpec) -> list[ExecEvent]:
    async with client.exec_run(ExecId(exec_id), spec) as events:
        return [event async for event in events]


async def test_a_command_runs(client: GuestClient) -> None:
    events = await run(client, "exec_1", ExecSpec(command="echo out; echo err >&2; exit 3"))
    assert isinstance(events[0], ExecStarted)
    assert isinstance(events[-1], ExecEnded)
    assert events[-1].info.exit_code == 3
    written = {event.stream: event.data for event in events if isinstance(event, ExecOutput)}
    assert written == {"stdout": b"out\n", "stderr": b"err\n"}


async def test_a_file_goes_there_and_back(client: GuestClient, tmp_path: Path) -> None:
    path = str(tmp_path / "deep/er/file.bin")
    content = bytes(range(256)) * 1000

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 100_000):
            yield content[start : start + 100_000]

    info = await client.write(path, chunks())
    assert info.size_bytes == len(content)
    assert b"".join([chunk async for chunk in client.read(path)]) == content

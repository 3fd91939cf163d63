"""Short words for what tests do over and over."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from torpor.guest.port import Guest
from torpor.model import ExecEnded, ExecEvent, ExecId, ExecInfo, ExecOutput, ExecSpec


@dataclass
class Ran:
    """A command that was run to its end."""

    info: ExecInfo
    stdout: bytes
    stderr: bytes
    events: list[ExecEvent]


def fresh_id() -> ExecId:
    """An id that no exec has yet."""
    return ExecId(f"exec_{secrets.token_hex(8)}")


async def collect(events: AsyncIterator[ExecEvent], *, at: tuple[int, int] = (0, 0)) -> Ran:
    """Follow to the end; check that offsets have no gap."""
    seen: list[ExecEvent] = []
    output = {"stdout": bytearray(), "stderr": bytearray()}
    start = {"stdout": at[0], "stderr": at[1]}
    async for event in events:
        seen.append(event)
        if isinstance(event, ExecOutput):
            assert event.offset == start[event.stream] + len(output[event.stream])
            output[event.stream] += event.data
    assert isinstance(seen[-1], ExecEnded)
    return Ran(seen[-1].info, bytes(output["stdout"]), bytes(output["stderr"]), seen)


async def run(
    guest: Guest,
    command: str | tuple[str, ...],
    *,
    exec_id: ExecId | None = None,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    timeout_seconds: float | None = None,
    output_limit_bytes: int | None = None,
) -> Ran:
    """Run a command to its end."""
    spec = ExecSpec(
        command=command, env=env or {}, cwd=cwd, user=user, timeout_seconds=timeout_seconds
    )
    async with guest.exec_run(
        exec_id or fresh_id(), spec, output_limit_bytes=output_limit_bytes
    ) as events:
        return await collect(events)


async def follow(guest: Guest, exec_id: ExecId, *, at: tuple[int, int] = (0, 0)) -> Ran:
    """Follow an exec to its end."""
    async with guest.exec_attach(exec_id, stdout_offset=at[0], stderr_offset=at[1]) as events:
        return await collect(events, at=at)


async def stream(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """The pieces, as an upload wants them."""
    for piece in pieces:
        yield piece


async def slurp(chunks: AsyncIterator[bytes]) -> bytes:
    """All of a download."""
    return b"".join([chunk async for chunk in chunks])


def names(folder: Path) -> list[str]:
    """The names in a folder, sorted."""
    return sorted(entry.name for entry in folder.iterdir())


def temporary(folder: Path) -> list[Path]:
    """The temporary files left below a folder."""
    return list(folder.rglob("*.tmp"))


def content(path: str) -> bytes:
    """What is in a file of this machine."""
    return Path(path).read_bytes()

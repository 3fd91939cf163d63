"""`AsyncDaemonMemory`: all spaces in the daemon's keeping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import BinaryIO

from torpor.base.aio import closing
from torpor.base.plain import from_plain
from torpor.model_memory import ChainReport, Exported, SpaceInfo
from torpor.sdk.client import Client, connection, raw_bytes, resolved
from torpor.sdk.memory import MEMORY_LIMIT_S, AsyncMemorySpace

_CHUNK_BYTES = 256 << 10


class AsyncDaemonMemory:
    """The daemon's memory; `Memory.open` opens a file of your own instead."""

    def __init__(self, *, client: Client | None = None) -> None:
        self._client = resolved(client)

    def space(
        self,
        agent: str,
        *,
        branch: str | None = None,
        epoch: int | None = None,
        actor: str | None = None,
    ) -> AsyncMemorySpace:
        """Return the memory of one agent; it begins with the first thing that is written.

        Args:
            branch: stay on this branch; by default the space follows the agent's head.
            epoch: the epoch of the machine that writes; writes are refused once the machine was put back.
            actor: who writes, for the history; `agent:NAME` by default.
        """
        return AsyncMemorySpace(self._client, agent=agent, branch=branch, epoch=epoch, actor=actor)

    async def spaces(self) -> list[SpaceInfo]:
        """Return what is so about every agent's memory, by name."""
        body = await connection(self._client).call(
            "GET", "/v1/memory/spaces", limit_s=MEMORY_LIMIT_S
        )
        return [from_plain(SpaceInfo, item) for item in body["items"]]

    async def agents(self) -> tuple[str, ...]:
        """Return the agents that have a memory here."""
        return tuple(found.agent for found in await self.spaces())

    async def verify_chain(self, *, expect: str | None = None) -> ChainReport:
        """Compare every row with the hash chain; `expect` is a head hash that was kept elsewhere."""
        return from_plain(
            ChainReport,
            await connection(self._client).call(
                "GET",
                "/v1/memory/verify_chain",
                query={"expect": expect},
                limit_s=MEMORY_LIMIT_S,
            ),
        )

    async def embed_missing(self) -> int:
        """Embed what the daemon's embedder has not embedded yet; return how many texts."""
        body = await connection(self._client).call(
            "POST", "/v1/memory/embed_missing", limit_s=MEMORY_LIMIT_S
        )
        return int(body["embedded"])

    async def export(self, path: str | Path) -> int:
        """Write the memory of all agents to a file, as JSON lines; return its size in bytes.

        The export of a memory is the whole of it, also what is no longer held true. On a failure no file is left.
        """
        target = Path(path)
        made = connection(self._client)
        size = 0
        file = await asyncio.to_thread(target.open, "xb")
        try:
            async with (
                made.stream("GET", "/v1/memory/export", limit_s=MEMORY_LIMIT_S) as reply,
                closing(raw_bytes(reply, limit_s=MEMORY_LIMIT_S)) as chunks,
            ):
                async for chunk in chunks:
                    size += len(chunk)
                    await asyncio.to_thread(file.write, chunk)
            await asyncio.to_thread(file.close)
        except BaseException:
            _remove(file, target)
            raise
        return size

    async def import_(self, path: str | Path, *, verify: bool = True) -> Exported:
        """Read an export into the daemon's memory, which must be empty: all of it or nothing.

        Args:
            verify: False for what a salvage saved: what cannot be is left out, and counted as lost.

        Raises:
            Conflict: the memory is not empty.
            DataDamaged: the file is not what was exported.
        """
        file = await asyncio.to_thread(Path(path).open, "rb")
        try:
            body = await connection(self._client).call(
                "PUT",
                "/v1/memory/import",
                query={"verify": "true" if verify else "false"},
                content=_chunks(file),
                limit_s=MEMORY_LIMIT_S,
            )
        finally:
            file.close()
        return from_plain(Exported, body)


def _remove(file: BinaryIO, path: Path) -> None:
    file.close()
    path.unlink(missing_ok=True)


async def _chunks(file: BinaryIO) -> AsyncGenerator[bytes, None]:
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        yield chunk

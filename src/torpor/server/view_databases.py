"""`DatabasesView`: the databases as one request sees them; those of other workspaces do not exist for it.

Here names become ids: a name is looked up among what the request sees, in its own workspace first.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace

from torpor.access.principal import Principal
from torpor.databases.branches import CloneSpec
from torpor.databases.desk import DatabaseDesk
from torpor.databases.shelf import no_database
from torpor.model import SandboxId, SandboxInfo
from torpor.model_databases import DatabaseInfo, DatabaseSnapshot, DatabaseSpec, Progress


class DatabasesView:
    """What a principal sees of the databases, and may do with them. See `DatabaseDesk`."""

    def __init__(
        self,
        desk: DatabaseDesk,
        principal: Principal,
        sandbox: Callable[[SandboxId], Awaitable[SandboxInfo]],
    ) -> None:
        self._desk = desk
        self._principal = principal
        self._sandbox = sandbox

    async def list(self) -> tuple[DatabaseInfo, ...]:
        """Return the workspace's databases."""
        return tuple(d for d in await self._desk.list() if self._principal.sees(d.workspace))

    async def id_of(self, name: str) -> str:
        """Return the id of a database that the request sees. Raises `NotFound`."""
        there = await self.list()
        seen = [d for d in there if name in (d.id, d.name)]
        for info in seen:
            if name == info.id or info.workspace == self._principal.workspace:
                return info.id
        if len(seen) == 1:
            return seen[0].id
        raise no_database(name, (d.name for d in there))

    async def create(self, spec: DatabaseSpec, progress: Progress) -> DatabaseInfo:
        """Make a database in the workspace."""
        return await self._desk.create(replace(spec, workspace=self._principal.workspace), progress)

    async def get(self, name: str) -> DatabaseInfo:
        """Return a database of the workspace."""
        return await self._desk.get(await self.id_of(name))

    async def url(self, name: str) -> str:
        """Return the URL of a database of the workspace."""
        return await self._desk.url(await self.id_of(name))

    async def delete(self, name: str, *, keep_volume: bool = False) -> None:
        """Delete a database of the workspace."""
        await self._desk.delete(await self.id_of(name), keep_volume=keep_volume)

    async def clone(self, name: str, spec: CloneSpec, progress: Progress) -> DatabaseInfo:
        """Clone a database of the workspace into it."""
        return await self._desk.clone(await self.id_of(name), spec, progress)

    async def wake(self, name: str) -> DatabaseInfo:
        """Let a database of the workspace run."""
        return await self._desk.wake(await self.id_of(name))

    async def hibernate(self, name: str) -> DatabaseInfo:
        """Put a database of the workspace to sleep."""
        return await self._desk.hibernate(await self.id_of(name))

    async def set_idle(self, name: str, idle_seconds: int | None) -> DatabaseInfo:
        """Let a database of the workspace hibernate by itself, or not."""
        return await self._desk.set_idle(await self.id_of(name), idle_seconds)

    async def grow(self, name: str, size_bytes: int) -> DatabaseInfo:
        """Make the volume of a database of the workspace larger."""
        return await self._desk.grow(await self.id_of(name), size_bytes)

    async def reset_password(self, name: str) -> str:
        """Give a database of the workspace a new password."""
        return await self._desk.reset_password(await self.id_of(name))

    async def upgrade(self, name: str, *, build: bool) -> DatabaseInfo:
        """Give a database of the workspace the newest minor version."""
        return await self._desk.upgrade(await self.id_of(name), build=build)

    async def snapshot(self, name: str, *, label: str | None) -> DatabaseSnapshot:
        """Take a snapshot of a database of the workspace."""
        return await self._desk.snapshot(await self.id_of(name), label=label)

    async def snapshots(self, name: str) -> tuple[DatabaseSnapshot, ...]:
        """Return the snapshots of a database of the workspace."""
        return await self._desk.snapshots(await self.id_of(name))

    async def delete_snapshot(self, name: str, snapshot: str) -> None:
        """Delete a snapshot of a database of the workspace."""
        await self._desk.delete_snapshot(await self.id_of(name), snapshot)

    async def attach(self, name: str, sandbox_id: str, port: int) -> str:
        """Let a sandbox of the workspace reach a database of it."""
        info = await self._sandbox(SandboxId(sandbox_id))
        return await self._desk.attach(await self.id_of(name), info.id, port)

    async def detach(self, name: str, sandbox_id: str) -> None:
        """Let a sandbox reach a database of the workspace no more."""
        await self._desk.detach(await self.id_of(name), sandbox_id)

    async def dump(self, name: str, database: str) -> AsyncGenerator[bytes, None]:
        """Yield a dump of a database of the workspace."""
        async for chunk in self._desk.dump(await self.id_of(name), database):
            yield chunk

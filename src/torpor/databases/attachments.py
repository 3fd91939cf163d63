"""Sandboxes that reach a database on their own loopback, through the host: neither has a network for it.

Which sandbox reaches which database is in the database's row. What serves it lasts as long as a connection to the
sandbox's guest, and is begun again with the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any, Final

from torpor.base.aio import Supervisor
from torpor.databases.forward import carry
from torpor.databases.lives import GONE, Lives, Rooms
from torpor.databases.shelf import DatabaseShelf
from torpor.db.databases import DatabaseRow
from torpor.errors import (
    Conflict,
    GuestFailed,
    GuestUnreachable,
    InvalidRequest,
    NotFound,
    OperationTimeout,
    WrongState,
)
from torpor.guest.port import Guest, PortStream
from torpor.model import SandboxId
from torpor.model_databases import DatabaseAttachment, DatabaseId

_LISTEN_S: Final = 30.0


class Attachments:
    """Serves them all."""

    def __init__(self, rooms: Rooms, lives: Lives) -> None:
        self._rooms = rooms
        self._shelf: DatabaseShelf = rooms.shelf
        self._lives = lives
        self._tasks = Supervisor(rooms.report)
        self._asked = Supervisor(lambda _name, _error: None)  # a failure is the asker's
        self._serving: dict[tuple[DatabaseId, str], asyncio.Task[None]] = {}
        self._ready = asyncio.Event()

    def begin(self) -> None:
        """Let those be served that waited for the rows to be read."""
        self._ready.set()

    async def aclose(self) -> None:
        """Serve nobody any more."""
        await self._tasks.aclose()
        await self._asked.aclose()

    async def attend(self, machine: Any, guest: Guest) -> None:
        """Serve what a machine is attached to over its guest, which was just connected; returns at once."""
        await self._ready.wait()
        for row in self._shelf.all():
            for found in row.attachments:
                if found.sandbox_id == machine.info.id and not guest.closed:
                    _ = self._serve(self._tasks, row, found, guest, asyncio.Event())

    async def attach(self, row: DatabaseRow, sandbox_id: str, port: int) -> DatabaseRow:
        """Let a sandbox reach a database at a port of its loopback; returns when it does. Idempotent.

        Raises:
            NotFound: there is no such sandbox in the database's workspace.
            WrongState: it is not running, and does not sleep.
            Conflict: something in it listens on that port, or another database is there.
            HostNotReady: the agent in it is too old.
        """
        if not 1 <= port <= 65535:
            raise InvalidRequest(f"{port} is no port", hint="a port is 1 to 65535")
        await self._check(row, sandbox_id, port)
        wanted = DatabaseAttachment(sandbox_id=sandbox_id, port=port)
        async with self._rooms.engine.guest(SandboxId(sandbox_id)) as guest:
            listens = asyncio.Event()
            await self.stop(row.id, sandbox_id)
            task = self._serve(self._asked, row, wanted, guest, listens)
            await _listening(task, listens, sandbox_id)
        return await self._shelf.change(
            row.id, lambda r: replace(r, attachments=(*_others(r, sandbox_id), wanted))
        )

    async def _check(self, row: DatabaseRow, sandbox_id: str, port: int) -> None:
        info = await self._rooms.engine.get(SandboxId(sandbox_id))
        if info.workspace != row.workspace:
            raise NotFound(f"there is no sandbox {sandbox_id} in the workspace {row.workspace}")
        if info.state in GONE:
            raise WrongState(
                f"sandbox {sandbox_id} is {info.state}; nothing can be attached to it",
                hint="roll it back, or make another",
                sandbox_id=sandbox_id,
            )
        for other in self._shelf.all():
            taken = DatabaseAttachment(sandbox_id=sandbox_id, port=port) in other.attachments
            if other.id != row.id and taken:
                raise Conflict(
                    f"port {port} of sandbox {sandbox_id} leads to database {other.name} already",
                    hint="choose another port",
                )

    async def detach(self, row: DatabaseRow, sandbox_id: str) -> DatabaseRow:
        """Let a sandbox reach a database no more; what it has open is broken off.

        Raises:
            NotFound: it is not attached.
        """
        if not any(a.sandbox_id == sandbox_id for a in row.attachments):
            raise NotFound(
                f"database {row.name} is not attached to sandbox {sandbox_id}",
                hint=f"see what it is attached to: torpor db show {row.name}",
            )
        row = await self._shelf.change(
            row.id, lambda r: replace(r, attachments=_others(r, sandbox_id))
        )
        await self.stop(row.id, sandbox_id)
        return row

    async def stop(self, database_id: DatabaseId, sandbox_id: str | None = None) -> None:
        """Serve one attachment no more, or all of a database."""
        for key in [k for k in self._serving if k[0] == database_id and sandbox_id in (None, k[1])]:
            task = self._serving.pop(key)
            task.cancel()
            await asyncio.wait({task})

    async def forget_gone(self, row: DatabaseRow) -> None:
        """Remove the attachments of sandboxes that are no more."""
        present = await self.present(row)
        for found in row.attachments:
            if found not in present:
                await self.detach(self._shelf.get(row.id), found.sandbox_id)

    async def present(self, row: DatabaseRow) -> tuple[DatabaseAttachment, ...]:
        """Return a database's attachments, but for those of sandboxes that are no more."""
        return tuple([found for found in row.attachments if await self._is_there(found)])

    async def _is_there(self, found: DatabaseAttachment) -> bool:
        with contextlib.suppress(NotFound):
            return (await self._rooms.engine.get(SandboxId(found.sandbox_id))).state != "deleted"
        return False

    def _serve(
        self,
        tasks: Supervisor,
        row: DatabaseRow,
        found: DatabaseAttachment,
        guest: Guest,
        listens: asyncio.Event,
    ) -> asyncio.Task[None]:
        key = (row.id, found.sandbox_id)
        before = self._serving.pop(key, None)
        if before is not None:
            before.cancel()

        name = f"{row.name} in {found.sandbox_id}"

        async def work() -> None:
            try:
                await guest.serve_inlet(
                    found.port, lambda stream: self._carried(row.id, stream), listens=listens.set
                )
            except GuestUnreachable:
                pass  # the channel was cut; the next connection is served
            except GuestFailed as failure:
                if not listens.is_set():
                    raise  # who began it is told
                self._rooms.report(name, failure)

        task = tasks.spawn(work(), name=name)
        self._serving[key] = task
        return task

    async def _carried(self, database_id: DatabaseId, stream: PortStream) -> None:
        async with self._lives.port(database_id) as target:
            await carry(stream, target)


async def _listening(task: asyncio.Task[None], listens: asyncio.Event, sandbox_id: str) -> None:
    """Return when the guest listens. Raises what it refused with."""
    waiting = Supervisor(lambda _name, _error: None).spawn(_wait(listens), name="listens")
    try:
        await asyncio.wait({task, waiting}, timeout=_LISTEN_S, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            raise GuestFailed(f"sandbox {sandbox_id} was put down meanwhile")
        if not listens.is_set():
            task.cancel()
            raise OperationTimeout(f"sandbox {sandbox_id} did not listen within {_LISTEN_S:g} s")
    finally:
        waiting.cancel()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _others(row: DatabaseRow, sandbox_id: str) -> tuple[DatabaseAttachment, ...]:
    return tuple(a for a in row.attachments if a.sandbox_id != sandbox_id)

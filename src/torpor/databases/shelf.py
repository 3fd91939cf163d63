"""`DatabaseShelf`: all databases of a home in memory, each change written down before it is so."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable

from torpor.base.aio import finish
from torpor.base.ids import check_name, is_id
from torpor.base.near import meant
from torpor.db.databases import DatabaseRow, DatabaseRows
from torpor.errors import Conflict, InvalidRequest, NotFound
from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_databases import DatabaseId

_SAVE_S = 60.0
_NAME_MOST = 55
"""Its volumes are named after it."""


class DatabaseShelf:
    """The rows of databases."""

    def __init__(self, rows: DatabaseRows) -> None:
        self._rows = rows
        self._found: dict[DatabaseId, DatabaseRow] = {}
        self._changing = asyncio.Lock()
        self._turns: defaultdict[DatabaseId, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def load(self) -> None:
        """Read all rows."""
        self._found = {row.id: row for row in await asyncio.to_thread(self._rows.all)}

    def all(self) -> list[DatabaseRow]:
        """Return all databases, by name."""
        return sorted(self._found.values(), key=lambda row: (row.name, row.workspace))

    def find(self, name_or_id: str, workspace: str = DEFAULT_WORKSPACE) -> DatabaseRow | None:
        """Return a database by its id, or by its name in a workspace; or None."""
        if is_id(name_or_id, "db"):
            return self._found.get(DatabaseId(name_or_id))
        wanted = (workspace, name_or_id)
        return next((r for r in self._found.values() if (r.workspace, r.name) == wanted), None)

    def get(self, name_or_id: str, workspace: str = DEFAULT_WORKSPACE) -> DatabaseRow:
        """Return a database. Raises `NotFound`."""
        found = self.find(name_or_id, workspace)
        if found is None:
            mine = (r.name for r in self._found.values() if r.workspace == workspace)
            raise no_database(name_or_id, mine)
        return found

    def check_name(self, name: str, workspace: str) -> None:
        """Raise `InvalidRequest` or `Conflict` unless a new database may be called that."""
        check_name(name, "database")
        if len(name) > _NAME_MOST:
            raise InvalidRequest(
                f"the name {name} has {len(name)} letters; {_NAME_MOST} are allowed for a database",
                hint="choose a shorter one",
            )
        if self.find(name, workspace) is not None:
            raise Conflict(
                f"there is a database {name} already",
                hint="choose another name, or use that one: torpor db url " + name,
                database=name,
            )

    @contextlib.asynccontextmanager
    async def turn(self, database_id: DatabaseId) -> AsyncIterator[DatabaseRow]:
        """Enter with a database that nobody else works on meanwhile. Raises `NotFound` when it is gone."""
        async with self._turns[database_id]:
            yield self.get(database_id)

    async def insert(self, row: DatabaseRow) -> None:
        """Add a database. Raises `Conflict` when its name is taken."""
        async with self._changing:
            self.check_name(row.name, row.workspace)
            await self._write(lambda: self._rows.insert(row), lambda: self._put(row))

    async def change(
        self, database_id: DatabaseId, edit: Callable[[DatabaseRow], DatabaseRow]
    ) -> DatabaseRow:
        """Change a database and return it. Raises `NotFound` when it is gone, and what `edit` raises."""
        async with self._changing:
            before = self.get(database_id)
            after = edit(before)
            if after != before:
                await self._write(lambda: self._rows.save(after), lambda: self._put(after))
            return after

    async def remove(self, database_id: DatabaseId) -> None:
        """Forget a database."""

        def drop() -> None:
            self._found.pop(database_id, None)

        async with self._changing:
            await self._write(lambda: self._rows.delete(database_id), drop)

    def _put(self, row: DatabaseRow) -> None:
        self._found[row.id] = row

    async def _write(self, store: Callable[[], None], then: Callable[[], None]) -> None:
        """Write durably, then let it be so; a cancelled caller leaves no half of that."""

        async def both() -> None:
            await asyncio.to_thread(store)
            then()

        await finish(both(), within_s=_SAVE_S)


def no_database(name: str, there: Iterable[str]) -> NotFound:
    """Return the error for a database that is not there; `there`: the names that its asker may see."""
    hint = meant(name, there) or f"make it: torpor db create {name}"
    return NotFound(
        f"there is no database {name}", hint=f"{hint}; or list them: torpor db ls", database=name
    )

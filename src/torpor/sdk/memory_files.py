"""The `/memories` file view of a space in the daemon's keeping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torpor.base.plain import from_plain
from torpor.model_memory import MemoryFile


class Asks(Protocol):
    """Makes calls by the names of the REST API."""

    async def ask(self, verb: str, params: Mapping[str, object]) -> Any:
        """Return the answer as JSON."""
        ...


class AsyncMemoryFiles:
    """The commands of a file-based memory tool on one space; every edit is a transaction."""

    def __init__(self, space: Asks) -> None:
        self._space = space

    async def _text(self, verb: str, **params: object) -> str:
        return str((await self._space.ask(f"files.{verb}", params))["text"])

    async def files(self) -> list[MemoryFile]:
        """Return all files, by path."""
        body = await self._space.ask("files.files", {})
        return [from_plain(MemoryFile, item) for item in body["items"]]

    async def view(self, path: str, view_range: tuple[int, int] | None = None) -> str:
        """Return a file's lines with numbers, or the names below a folder."""
        return await self._text(
            "view", path=path, view_range=None if view_range is None else list(view_range)
        )

    async def create(self, path: str, file_text: str) -> str:
        """Write a whole file, new or in place of the old one."""
        return await self._text("create", path=path, file_text=file_text)

    async def str_replace(self, path: str, old_str: str, new_str: str) -> str:
        """Replace a text that is in the file exactly once."""
        return await self._text("str_replace", path=path, old_str=old_str, new_str=new_str)

    async def insert(self, path: str, insert_line: int, insert_text: str) -> str:
        """Insert a text after a line; 0 is before the first."""
        return await self._text(
            "insert", path=path, insert_line=insert_line, insert_text=insert_text
        )

    async def delete(self, path: str) -> str:
        """Delete a file, or a folder with all below it; what they held stays in the history."""
        return await self._text("delete", path=path)

    async def rename(self, old_path: str, new_path: str) -> str:
        """Give a file another path."""
        return await self._text("rename", old_path=old_path, new_path=new_path)

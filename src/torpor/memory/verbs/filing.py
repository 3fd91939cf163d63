"""The verbs of a file-based memory tool; see `torpor.memory.files`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from torpor.memory.verbs.base import Items, Text, Verb
from torpor.model_memory import MemoryFile

if TYPE_CHECKING:
    from torpor.memory.space import Space

Path = Annotated[str, Field(description="Below `/memories`.")]


class ListFiles(Verb):
    """Return all files, by path."""

    name = "files.files"
    answer = Items[MemoryFile]
    writes = False
    reads_by_get = True

    @override
    def run(self, space: Space) -> list[MemoryFile]:
        return space.files.files()


class View(Verb):
    """Return a file's lines with numbers, or the names below a folder."""

    name = "files.view"
    answer = Text
    writes = False
    path: Path
    view_range: Annotated[
        tuple[int, int] | None, Field(description="First and last line; -1: the last.")
    ] = None

    @override
    def run(self, space: Space) -> str:
        return space.files.view(self.path, self.view_range)


class Create(Verb):
    """Write a whole file, new or in place of the old one."""

    name = "files.create"
    answer = Text
    path: Path
    file_text: str

    @override
    def run(self, space: Space) -> str:
        return space.files.create(self.path, self.file_text)


class StrReplace(Verb):
    """Replace a text that is in the file exactly once."""

    name = "files.str_replace"
    answer = Text
    path: Path
    old_str: str
    new_str: str

    @override
    def run(self, space: Space) -> str:
        return space.files.str_replace(self.path, self.old_str, self.new_str)


class Insert(Verb):
    """Insert a text after a line; 0 is before the first."""

    name = "files.insert"
    answer = Text
    path: Path
    insert_line: int
    insert_text: str

    @override
    def run(self, space: Space) -> str:
        return space.files.insert(self.path, self.insert_line, self.insert_text)


class Delete(Verb):
    """Delete a file, or a folder with all below it; what they held stays in the history."""

    name = "files.delete"
    answer = Text
    path: Path

    @override
    def run(self, space: Space) -> str:
        return space.files.delete(self.path)


class Rename(Verb):
    """Give a file another path."""

    name = "files.rename"
    answer = Text
    old_path: Path
    new_path: Path

    @override
    def run(self, space: Space) -> str:
        return space.files.rename(self.old_path, self.new_path)


FILING: tuple[type[Verb], ...] = (ListFiles, View, Create, StrReplace, Insert, Delete, Rename)
"""In the order of the reference."""

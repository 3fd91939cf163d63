"""The shapes of files in JSON. Modes are octal text such as `0644`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from torpor.errors import InvalidRequest
from torpor.model import FileInfo, FileKind
from torpor.model_file_events import FileEvent, FileEventType
from torpor.server.wire import Wire


class FileWire(Wire):
    """One name in the guest's file system."""

    name: str
    path: str
    kind: FileKind
    is_dir: Annotated[bool, Field(description="Alias: `kind` is `dir`.")]
    size_bytes: int
    size: Annotated[int, Field(description="Alias of `size_bytes`.")]
    mode: str
    user: str
    group: str
    modified_at: datetime
    mtime: Annotated[int, Field(description="Alias: `modified_at` in whole seconds since 1970.")]
    target: str | None

    @staticmethod
    def of(info: FileInfo) -> FileWire:
        """Return `info` as JSON has it."""
        return FileWire(
            name=info.name,
            path=info.path,
            kind=info.kind,
            is_dir=info.kind == "dir",
            size_bytes=info.size_bytes,
            size=info.size_bytes,
            mode=f"{info.mode:04o}",
            user=info.user,
            group=info.group,
            modified_at=info.modified_at,
            mtime=int(info.modified_at.timestamp()),
            target=info.target,
        )


class FileEventWire(Wire):
    """Data of one `change` in a folder that is followed."""

    name: Annotated[str, Field(description="Relative to the folder; empty for `missed`.")]
    type: FileEventType

    @staticmethod
    def of(event: FileEvent) -> FileEventWire:
        """Return `event` as JSON has it."""
        return FileEventWire(name=event.name, type=event.type)


class FileListWire(Wire):
    """The names in a folder, sorted."""

    entries: list[FileWire]


class MkdirRequest(Wire):
    """What POST …/fs/mkdir takes."""

    path: str
    parents: bool = True
    mode: str = "0755"


class RenameRequest(Wire):
    """What POST …/fs/rename takes."""

    source: str
    target: str


class UnpackedWire(Wire):
    """What PUT …/fs/archive answers."""

    entries: int


def parse_mode(text: str) -> int:
    """Return the permission bits that octal `text` stands for.

    Raises:
        InvalidRequest: it is not an octal number from 0 to 7777.
    """
    if (
        1 <= len(text) <= 5
        and all(digit in "01234567" for digit in text)
        and int(text, 8) <= 0o7777
    ):
        return int(text, 8)
    raise InvalidRequest(
        f"mode {text!r} is not an octal number up to 7777", hint="for example 0644"
    )

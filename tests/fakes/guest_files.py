"""The files of the fake guest: a folder of this machine."""

from __future__ import annotations

import asyncio
import io
import shutil
import stat
import tarfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from tests.fakes.guest_snapshots import FakeSnapshots
from torpor.errors import Conflict, GuestFailed, HostNotReady, InvalidRequest, NotFound
from torpor.model import FileInfo
from torpor.model_file_events import FileEvent

CHUNK = 64 << 10


class FakeFiles(FakeSnapshots):
    """The part of `Guest` that is about files."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def place(self, path: str) -> Path:
        """Where the guest's `path` lies on this machine."""
        if not path.startswith("/") or "\0" in path:
            raise InvalidRequest(f"{path!r} is not an absolute path")
        return self.root / path.lstrip("/")

    def _describe(self, path: str) -> FileInfo:
        place = self.place(path)
        found = place.lstat()
        kind: Literal["file", "dir", "symlink", "other"] = "other"
        if stat.S_ISREG(found.st_mode):
            kind = "file"
        elif stat.S_ISDIR(found.st_mode):
            kind = "dir"
        elif stat.S_ISLNK(found.st_mode):
            kind = "symlink"
        return FileInfo(
            name=path.rstrip("/").rpartition("/")[2] or "/",
            path=path,
            kind=kind,
            size_bytes=found.st_size,
            mode=stat.S_IMODE(found.st_mode),
            user="root",
            group="root",
            modified_at=datetime.fromtimestamp(found.st_mtime, UTC),
            target=str(place.readlink()) if kind == "symlink" else None,
        )

    async def stat(self, path: str) -> FileInfo:
        """See `Guest.stat`."""
        self._check()
        try:
            return self._describe(path)
        except OSError as exc:
            raise _error(exc) from exc

    async def list_dir(self, path: str) -> list[FileInfo]:
        """See `Guest.list_dir`."""
        self._check()
        try:
            names = sorted(entry.name for entry in self.place(path).iterdir())
        except OSError as exc:
            raise _error(exc) from exc
        return [self._describe(f"{path.rstrip('/')}/{name}") for name in names]

    async def walk(self, path: str, *, max_depth: int | None = None) -> AsyncIterator[FileInfo]:
        """See `Guest.walk`."""
        for info in await self.list_dir(path):
            if max_depth != 0:
                yield info
                if info.kind == "dir":
                    async for found in self.walk(
                        info.path, max_depth=None if max_depth is None else max_depth - 1
                    ):
                        yield found

    def follow_dir(
        self, path: str, *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileEvent]]:
        """Refuse, as an agent does that is too old for it."""
        raise HostNotReady("the agent in this machine is too old to follow a folder")

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileInfo:
        """See `Guest.mkdir`."""
        await self._until_writable()
        try:
            self.place(path).mkdir(parents=parents, exist_ok=parents)
            self.place(path).chmod(mode)
        except OSError as exc:
            raise _error(exc) from exc
        return self._describe(path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """See `Guest.remove`."""
        await self._until_writable()
        place = self.place(path)
        try:
            if not place.is_dir() or place.is_symlink():
                place.unlink()
            elif recursive:
                shutil.rmtree(place)
            else:
                place.rmdir()
        except OSError as exc:
            raise _error(exc) from exc

    async def rename(self, source: str, target: str) -> FileInfo:
        """See `Guest.rename`."""
        await self._until_writable()
        try:
            self.place(source).rename(self.place(target))
        except OSError as exc:
            raise _error(exc) from exc
        return self._describe(target)

    async def read(
        self, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        """See `Guest.read`."""
        self._check()
        place = self.place(path)
        if place.exists() and not place.is_file() and not place.is_dir():
            raise InvalidRequest(f"{path} is not a regular file")
        try:
            data = place.read_bytes()
        except OSError as exc:
            raise _error(exc) from exc
        data = data[offset:][: len(data) if limit_bytes is None else limit_bytes]
        for start in range(0, len(data), CHUNK):
            await asyncio.sleep(0)
            self._check()
            yield data[start : start + CHUNK]

    async def write(
        self,
        path: str,
        chunks: AsyncIterator[bytes],
        *,
        append: bool = False,
        mode: int | None = None,
        user: str | None = None,
    ) -> FileInfo:
        """See `Guest.write`."""
        self._check()
        place = self.place(path)
        data = b"".join([chunk async for chunk in chunks])
        await self._until_writable()
        try:
            is_new = not place.exists()
            if not is_new and not place.is_file() and not place.is_dir():
                raise InvalidRequest(f"{path} is not a regular file")
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("ab" if append else "wb") as file:
                file.write(data)
        except OSError as exc:
            raise _error(exc) from exc
        if mode is not None or is_new:
            place.chmod(0o644 if mode is None else mode)
        return self._describe(path)

    async def pack(self, path: str) -> AsyncIterator[bytes]:
        """See `Guest.pack`."""
        self._check()
        place = self.place(path)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
            if place.is_dir():
                for name in sorted(entry.name for entry in place.iterdir()):
                    archive.add(place / name, name)
            elif place.exists():
                archive.add(place, place.name)
            else:
                raise NotFound(f"{path}: no such file or directory")
        data = buffer.getvalue()
        for start in range(0, len(data), CHUNK):
            yield data[start : start + CHUNK]

    async def unpack(
        self, path: str, chunks: AsyncIterator[bytes], *, user: str | None = None
    ) -> int:
        """See `Guest.unpack`."""
        await self._until_writable()
        place = self.place(path)
        data = b"".join([chunk async for chunk in chunks])
        place.mkdir(parents=True, exist_ok=True)
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                if hasattr(tarfile, "fully_trusted_filter"):  # not before Python 3.11.4
                    archive.extraction_filter = tarfile.fully_trusted_filter
                members = archive.getmembers()
                for member in members:
                    _check_member(member, place)
                    there = place / member.name
                    if there.is_symlink() or there.is_file():
                        there.unlink()
                    archive.extract(member, place)
        except (tarfile.TarError, OSError) as exc:
            raise InvalidRequest(f"unpack into {path}: {exc}") from exc
        return len(members)


def _check_member(member: tarfile.TarInfo, place: Path) -> None:
    home = place.resolve()
    where = (home / member.name).parent.resolve()
    is_inside = where.is_relative_to(home) and ".." not in member.name.split("/")
    target_is_inside = not member.islnk() or ".." not in member.linkname.split("/")
    if not is_inside or not target_is_inside or member.name.startswith("/") or member.isdev():
        raise InvalidRequest(f"{member.name!r} would land outside the folder")


def _error(exc: OSError) -> Exception:
    if isinstance(exc, FileNotFoundError):
        return NotFound(str(exc))
    if isinstance(exc, FileExistsError) or exc.errno == 39:
        return Conflict(str(exc))
    if isinstance(exc, (IsADirectoryError, NotADirectoryError)):
        return InvalidRequest(str(exc))
    return GuestFailed(str(exc))

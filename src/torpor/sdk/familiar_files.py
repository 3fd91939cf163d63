"""`sandbox.files`: files under the names that E2B's users know."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Literal, TypedDict, overload

from torpor.errors import InvalidRequest, NotFound
from torpor.model import FileInfo
from torpor.sdk.client import Client
from torpor.sdk.dir_watch import WATCH_S, AsyncWatchHandle, OnEvent, OnExit
from torpor.sdk.files import AsyncFilesystem, Content

Format = Literal["text", "bytes", "stream"]


class WriteEntry(TypedDict):
    """One file for `write_files`."""

    path: str
    data: Content


class AsyncFiles:
    """Files of one sandbox. `AsyncSandbox.filesystem` does more."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._files = AsyncFilesystem(client, sandbox_id)
        self._client = client
        self._id = sandbox_id

    @overload
    async def read(self, path: str, format: Literal["text"] = "text") -> str: ...
    @overload
    async def read(self, path: str, format: Literal["bytes"]) -> bytes: ...
    @overload
    async def read(self, path: str, format: Literal["stream"]) -> AsyncGenerator[bytes, None]: ...
    async def read(
        self, path: str, format: Format = "text"
    ) -> str | bytes | AsyncGenerator[bytes, None]:
        """Return a file as text, as bytes, or as chunks of bytes to iterate. Raises `NotFound`."""
        check_format(format)
        if format == "stream":
            return self._files.read_stream(path)
        data = await self._files.read(path)
        return data if format == "bytes" else data.decode("utf-8", "replace")

    async def write(self, path: str, data: Content, user: str | None = None) -> FileInfo:
        """Replace a file by `data`, at once when all has arrived; missing folders are made."""
        return await self._files.write(path, data, user=user)

    async def write_files(
        self, files: Iterable[Mapping[str, object] | WriteEntry], user: str | None = None
    ) -> builtins.list[FileInfo]:
        """Write several files (`{"path": …, "data": …}`), one after the other. Raises `InvalidRequest`."""
        checked = [check_entry(entry) for entry in files]
        return [await self._files.write(path, data, user=user) for path, data in checked]

    async def list(self, path: str, depth: int = 1) -> builtins.list[FileInfo]:
        """Return what is in a folder, and with a larger `depth` below it."""
        check_depth(depth)
        if depth == 1:
            return await self._files.list(path)
        return [info async for info in self._files.walk(path, max_depth=depth)]

    async def exists(self, path: str) -> bool:
        """Return whether there is anything at a path."""
        return await self._files.exists(path)

    async def get_info(self, path: str) -> FileInfo:
        """Return what a path is. Raises `NotFound`."""
        return await self._files.stat(path)

    async def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it. Raises `NotFound`."""
        await self._files.remove(path, recursive=True)

    async def rename(self, old_path: str, new_path: str) -> FileInfo:
        """Rename within one file system of the guest. Raises `NotFound`."""
        return await self._files.rename(old_path, new_path)

    async def make_dir(self, path: str) -> bool:
        """Make a folder and those above it; return False if it is there already."""
        try:
            if (await self._files.stat(path)).kind == "dir":
                return False
        except NotFound:
            pass
        await self._files.mkdir(path)
        return True

    async def watch_dir(
        self,
        path: str,
        on_event: OnEvent,
        on_exit: OnExit | None = None,
        *,
        timeout: float | None = WATCH_S,
        recursive: bool = False,
    ) -> AsyncWatchHandle:
        """Call `on_event` with all that happens in a folder from now on; return what ends it.

        Where more happened than could be told, an event of type `MISSED` says so. While it lasts the sandbox does not
        fall asleep by itself.

        Args:
            path: the folder.
            on_event: may be asynchronous.
            on_exit: called with why it ended, unless `stop` ended it; also with what `on_event` raised.
            timeout: in seconds; None or 0: no limit.
            recursive: with all folders below it, 8192 at most.

        Raises:
            NotFound: there is no such folder.
            InvalidRequest: it is no folder.
            LimitExceeded: too much is watched already, or it has too many folders below it.
        """
        return await self._watched(
            path, recursive=recursive, on_event=on_event, on_exit=on_exit, timeout=timeout
        )

    async def _watched(
        self,
        path: str,
        *,
        recursive: bool,
        on_event: OnEvent | None = None,
        on_exit: OnExit | None = None,
        timeout: float | None = None,
    ) -> AsyncWatchHandle:
        """Do what `watch_dir` does; without `on_event` its handle keeps what happens."""
        handle = AsyncWatchHandle(
            self._client,
            self._id,
            path,
            recursive=recursive,
            on_event=on_event,
            on_exit=on_exit,
            timeout=timeout,
        )
        await handle.start()
        return handle


def check_format(format: str) -> None:
    """Raise `InvalidRequest` unless a file can be read as that."""
    if format not in ("text", "bytes", "stream"):
        raise InvalidRequest(f"{format!r} is not text, bytes or stream")


def check_depth(depth: int) -> None:
    """Raise `InvalidRequest` unless a listing can be so deep."""
    if depth < 1:
        raise InvalidRequest(f"depth is {depth}; 1 or more is wanted")


def check_entry(entry: Mapping[str, object] | WriteEntry) -> tuple[str, Content]:
    """Return path and content of one file to write. Raises `InvalidRequest`."""
    path, data = entry.get("path"), entry.get("data")
    if not isinstance(path, str) or data is None:
        raise InvalidRequest("a file to write is a mapping with `path` and `data`")
    return path, data  # type: ignore[return-value]  # what is no content is refused where it is sent

"""The files of a sandbox. Paths are absolute and may carry any bytes (`os.fsdecode`)."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from pathlib import Path
from typing import IO

from torpor.base.aio import closing
from torpor.errors import InvalidRequest, NotFound, error_from_wire
from torpor.model import FileInfo
from torpor.sdk.client import Client, Connection, connection, raw_bytes
from torpor.sdk.parse import file_info
from torpor.sdk.results import Progress, Transfer

CHUNK_BYTES = 512 << 10
WRITE_LIMIT_S = 300.0
"""Seconds the daemon may be silent while a large write becomes durable in the guest."""

Content = str | bytes | Iterable[bytes] | AsyncIterable[bytes]


class AsyncFilesystem:
    """Reads and writes the files of one sandbox, in chunks; memory stays bounded at any size."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._client = client
        self._base = f"/v1/sandboxes/{sandbox_id}/fs"

    @property
    def _connection(self) -> Connection:
        return connection(self._client)

    async def read(self, path: str, *, offset: int = 0, limit_bytes: int | None = None) -> bytes:
        """Return a file's bytes. Raises `NotFound`."""
        data = bytearray()
        async with contextlib.aclosing(
            self.read_stream(path, offset=offset, limit_bytes=limit_bytes)
        ) as chunks:
            async for chunk in chunks:
                data += chunk
        return bytes(data)

    async def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return a file as text.

        Raises:
            NotFound: there is no such file.
            UnicodeDecodeError: it is not in `encoding`, and `errors` is `strict`.
        """
        return (await self.read(path)).decode(encoding, errors)

    async def read_stream(
        self, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield a file's bytes in chunks.

        Raises:
            NotFound: there is no such file.
            ConnectionLost: the guest or the daemon could not go on; what came until then is a part.
        """
        query = {"path": path, "offset": offset, "limit": limit_bytes}
        async with (
            self._connection.stream("GET", self._base, query=query) as reply,
            closing(raw_bytes(reply)) as chunks,
        ):
            async for chunk in chunks:
                yield chunk

    async def write(
        self, path: str, data: Content, *, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        """Replace a file by `data`, at once when all has arrived; missing folders are made.

        A failure leaves the old content.

        Args:
            path: where to.
            data: text (as UTF-8), bytes, or chunks of bytes.
            mode: permission bits, such as 0o600; None: as the file has, 0o644 for a new one.
            user: the owner, by name or uid in the guest; None: the template's default user.
        """
        return await self._put(path, data, append=False, mode=mode, user=user)

    async def append(self, path: str, data: Content, *, user: str | None = None) -> FileInfo:
        """Write `data` at the end of a file, which is made if it is missing."""
        return await self._put(path, data, append=True, mode=None, user=user)

    async def _put(
        self, path: str, data: Content, *, append: bool, mode: int | None, user: str | None
    ) -> FileInfo:
        query = {
            "path": path,
            "append": append,
            "mode": None if mode is None else f"{mode:04o}",
            "user": user,
        }
        return file_info(
            await self._connection.call(
                "PUT", self._base, query=query, content=_chunks(data), limit_s=WRITE_LIMIT_S
            )
        )

    async def list(self, path: str) -> builtins.list[FileInfo]:
        """Return the names in a folder, sorted."""
        body = await self._connection.call("GET", f"{self._base}/dir", query={"path": path})
        return [file_info(entry) for entry in body["entries"]]

    async def stat(self, path: str) -> FileInfo:
        """Return what a path is; a symlink is not followed. Raises `NotFound`."""
        return file_info(
            await self._connection.call("GET", f"{self._base}/stat", query={"path": path})
        )

    async def exists(self, path: str) -> bool:
        """Return whether there is anything at a path; a symlink counts, wherever it leads."""
        try:
            await self.stat(path)
        except NotFound as error:
            if "sandbox_id" in error.facts:
                raise
            return False
        return True

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileInfo:
        """Make a folder; with `parents` those above it too, and an existing one is no error."""
        body = {"path": path, "parents": parents, "mode": f"{mode:04o}"}
        return file_info(await self._connection.call("POST", f"{self._base}/mkdir", body=body))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, symlink or folder.

        Raises:
            NotFound: there is nothing.
            Conflict: the folder is not empty, and `recursive` is not set.
        """
        query = {"path": path, "recursive": recursive}
        await self._connection.call("DELETE", self._base, query=query)

    async def rename(self, source: str, target: str) -> FileInfo:
        """Rename within one file system of the guest, replacing a file at `target`."""
        body = {"source": source, "target": target}
        return file_info(await self._connection.call("POST", f"{self._base}/rename", body=body))

    async def walk(
        self, path: str, *, max_depth: int | None = None
    ) -> AsyncGenerator[FileInfo, None]:
        """Yield everything below a folder, parents before children; symlinks are not followed."""
        query = {"path": path, "max_depth": max_depth}
        async with self._connection.stream("GET", f"{self._base}/walk", query=query) as reply:
            rest = b""
            async with closing(raw_bytes(reply)) as chunks:
                async for chunk in chunks:
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        if not line:
                            continue
                        body = json.loads(line)
                        if "error" in body:
                            raise error_from_wire(body)
                        yield file_info(body)

    async def upload(
        self,
        local: str | Path,
        remote: str,
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> Transfer:
        """Copy a file to the path `remote`, or what is in a folder into the folder `remote`.

        Modes are kept, owners are not. `progress` is called in a thread of its own for folders.

        Raises:
            NotFound: `local` does not exist.
            InvalidRequest: it cannot be read.
        """
        source = Path(local)
        if await asyncio.to_thread(source.is_dir):
            return await self._upload_folder(source, remote, user=user, progress=progress)
        try:
            found = await asyncio.to_thread(source.stat)
            file = await asyncio.to_thread(source.open, "rb")
        except FileNotFoundError as exc:
            raise NotFound(f"cannot read {source}: {exc.strerror}", path=source) from exc
        except OSError as exc:
            raise InvalidRequest(f"cannot read {source}: {exc.strerror}", path=source) from exc
        with file:

            async def content() -> AsyncIterator[bytes]:
                done = 0
                while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    yield chunk
                    done += len(chunk)
                    if progress is not None:
                        progress(done, found.st_size)

            info = await self._put(
                remote, content(), append=False, mode=found.st_mode & 0o777, user=user
            )
        return Transfer(files=1, size_bytes=info.size_bytes)

    async def _upload_folder(
        self, folder: Path, remote: str, *, user: str | None, progress: Progress | None
    ) -> Transfer:
        from torpor.sdk import tarball  # tarfile and its thread are not needed by most

        size_bytes = await asyncio.to_thread(tarball.folder_size, folder)
        async with contextlib.aclosing(tarball.pack(folder, progress=progress)) as content:
            body = await self._connection.call(
                "PUT",
                f"{self._base}/archive",
                query={"path": remote, "user": user},
                content=content,
                limit_s=WRITE_LIMIT_S,
            )
        return Transfer(files=body["entries"], size_bytes=size_bytes)

    async def download(
        self,
        remote: str,
        local: str | Path,
        *,
        skip_outside_links: bool = False,
        progress: Progress | None = None,
    ) -> Transfer:
        """Copy a file to the path `local`, or what is in a folder into the folder `local`.

        A file replaces the old one when all of it has arrived. Nothing is ever written outside `local`.

        Raises:
            NotFound: there is nothing at `remote`.
            GuestFailed: the folder has an entry that is refused: a device, or a link that leads outside
                (those are left out and reported with `skip_outside_links`).
        """
        info = await self.stat(remote)
        target = Path(local)
        if info.kind == "dir":
            from torpor.sdk import tarball

            query = {"path": remote}
            async with self._connection.stream(
                "GET", f"{self._base}/archive", query=query
            ) as reply:
                return await tarball.unpack(
                    raw_bytes(reply),
                    target,
                    skip_outside_links=skip_outside_links,
                    progress=progress,
                )
        return await self._download_file(info, target, progress)

    async def _download_file(
        self, info: FileInfo, target: Path, progress: Progress | None
    ) -> Transfer:
        partial = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
        try:
            await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
            file = await asyncio.to_thread(partial.open, "xb")
            try:
                with file:
                    done = await self._copy(info, file, progress)
                await asyncio.to_thread(partial.replace, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    partial.unlink()
                raise
        except OSError as exc:
            raise InvalidRequest(f"cannot write {target}: {exc.strerror}", path=target) from exc
        return Transfer(files=1, size_bytes=done)

    async def _copy(self, info: FileInfo, file: IO[bytes], progress: Progress | None) -> int:
        done = 0
        async with closing(self.read_stream(info.path)) as chunks:
            pieces: list[bytes] = []
            waiting = 0
            async for chunk in chunks:
                pieces.append(chunk)
                waiting += len(chunk)
                if waiting >= CHUNK_BYTES:
                    await asyncio.to_thread(file.writelines, pieces)
                    done, pieces, waiting = done + waiting, [], 0
                    if progress is not None:
                        progress(done, max(done, info.size_bytes))
            if pieces:
                await asyncio.to_thread(file.writelines, pieces)
                done += waiting
                if progress is not None:
                    progress(done, max(done, info.size_bytes))
        os.fchmod(file.fileno(), info.mode & 0o777 | 0o200)
        return done


def _chunks(data: Content) -> AsyncIterator[bytes] | bytes:
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    return _pieces(data)


async def _pieces(data: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(data, AsyncIterable):
        async for piece in data:
            yield piece
    else:
        for piece in data:
            yield piece

"""Files of the guest, from the host's side."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from torpor.errors import GuestFailed
from torpor.guest.answers import count, file_info
from torpor.guest.calls import Calls
from torpor.guest.packcheck import PackCheck
from torpor.model import FileInfo
from torpor_guest import protocol
from torpor_guest.stream import Stream

_MAX_NAMES: Final = 100_000


class FileCalls(Calls):
    """Look at, read, write and change files."""

    async def stat(self, path: str) -> FileInfo:
        """See `Guest.stat`."""
        return await self._file("stat", {"path": path})

    async def list_dir(self, path: str) -> list[FileInfo]:
        """See `Guest.list_dir`."""
        return await self._all_items(
            "list_dir",
            {"path": path},
            lambda item: file_info(item, within=path),
            limit=_MAX_NAMES,
        )

    async def walk(self, path: str, *, max_depth: int | None = None) -> AsyncIterator[FileInfo]:
        """See `Guest.walk`."""
        items = self._items(
            "walk",
            {"path": path, "max_depth": max_depth},
            lambda item: file_info(item, below=path),
        )
        async with contextlib.aclosing(items):
            async for item in items:
                yield item

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileInfo:
        """See `Guest.mkdir`."""
        return await self._file("mkdir", {"path": path, "parents": parents, "mode": mode})

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """See `Guest.remove`."""
        await self._channel.call("remove", {"path": path, "recursive": recursive})

    async def rename(self, source: str, target: str) -> FileInfo:
        """See `Guest.rename`."""
        return await self._file("rename", {"source": source, "target": target})

    async def read(
        self, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        """See `Guest.read`."""
        params: dict[str, object] = {"path": path, "offset": offset, "limit_bytes": limit_bytes}
        total = 0
        with self._stream("read", params) as stream:
            while (piece := await self._channel.receive(stream)) is not None:
                total += len(piece[1])
                if limit_bytes is not None and total > limit_bytes:
                    raise GuestFailed(f"the guest agent sent more than {limit_bytes} bytes")
                yield piece[1]
            self._channel.result(stream)

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
        params: dict[str, object] = {"path": path, "append": append, "mode": mode, "user": user}
        with self._stream("write", params) as stream:
            answer = await self._upload(stream, chunks)
        return file_info(answer.get("file"))

    async def pack(self, path: str) -> AsyncIterator[bytes]:
        """See `Guest.pack`. Names that would land outside a folder end the stream with `GuestFailed`."""
        check = PackCheck()
        with self._stream("pack", {"path": path}) as stream:
            while (piece := await self._channel.receive(stream)) is not None:
                check.feed(piece[1])
                yield piece[1]
            self._channel.result(stream)
            check.finish()

    async def unpack(
        self, path: str, chunks: AsyncIterator[bytes], *, user: str | None = None
    ) -> int:
        """See `Guest.unpack`."""
        with self._stream("unpack", {"path": path, "user": user}) as stream:
            answer = await self._upload(stream, chunks)
        return count(answer, "entries")

    async def _upload(self, stream: Stream, chunks: AsyncIterator[bytes]) -> dict[str, Any]:
        """Send all chunks and END; return the answer. The guest may close the stream before."""
        async for chunk in chunks:
            if not await self._channel.send(stream, chunk):
                break
        stream.send_frame(protocol.END)
        while await self._channel.receive(stream) is not None:
            pass
        return self._channel.result(stream)

    async def _file(self, method: str, params: dict[str, object]) -> FileInfo:
        answer = await self._channel.call(method, params)
        return file_info(answer.get("file"))

"""Folders as tar streams, both ways, with bounded memory. What comes from a guest is taken for hostile.

Packing and unpacking run in a thread; a queue of a few chunks joins it to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import tarfile
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from torpor.errors import InvalidRequest, TorporError
from torpor.sdk.results import Progress, Transfer
from torpor.sdk.unpack import Unpacker

T = TypeVar("T")

CHUNK_BYTES = 256 << 10
_AHEAD = 8
_POLL_S = 0.2


class _Stopped(Exception):
    """The other end of the queue is gone."""


class _Bridge:
    """A bounded queue between one thread and the event loop; None marks the end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD)
        self.stopped = threading.Event()

    def put(self, data: bytes | None) -> None:
        """Put a chunk, from the thread. Raises `_Stopped`."""
        self._wait(self.queue.put(data))

    def get(self) -> bytes | None:
        """Return the next chunk, from the thread. Raises `_Stopped`."""
        return self._wait(self.queue.get())

    def _wait(self, step: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(step, self._loop)
        while True:
            try:
                return future.result(_POLL_S)
            except FutureTimeout:
                if self.stopped.is_set():
                    future.cancel()
                    raise _Stopped from None


def _in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work` in a thread of its own: the loop's few threads must not wait for each other."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast(T, result))

    def main() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as exc:  # noqa: BLE001 - handed to whoever awaits the future
            error = exc
        loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=main, name="torpor-tar", daemon=True).start()
    return done


class _Writer:
    """The file that tarfile writes to."""

    def __init__(self, bridge: _Bridge) -> None:
        self._bridge = bridge
        self._kept = bytearray()

    def write(self, data: bytes) -> int:
        """Take bytes; whole chunks go to the bridge."""
        self._kept += data
        if len(self._kept) >= CHUNK_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Hand over what is kept."""
        if self._kept:
            self._bridge.put(bytes(self._kept))
            self._kept.clear()


class _Reader:
    """The file that tarfile reads from."""

    def __init__(self, bridge: _Bridge) -> None:
        self._bridge = bridge
        self._kept = b""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, fewer only at the end."""
        parts = [self._kept]
        have = len(self._kept)
        while have < size:
            data = self._bridge.get()
            if data is None:
                self._bridge.stopped.set()
                break
            parts.append(data)
            have += len(data)
        whole = b"".join(parts)
        self._kept = whole[size:]
        return whole[:size]


def folder_size(folder: Path) -> int:
    """Return the bytes of content in the files below `folder`. Blocks."""
    return sum(
        path.lstat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


async def pack(folder: Path, *, progress: Progress | None = None) -> AsyncGenerator[bytes, None]:
    """Yield `folder` as a tar stream with names relative to it; sockets and devices are left out.

    Raises:
        InvalidRequest: something in it cannot be read.
    """
    bridge = _Bridge()
    total = await asyncio.to_thread(folder_size, folder) if progress else None

    def work() -> None:
        try:
            _write_tar(folder, _Writer(bridge), lambda done: progress and progress(done, total))
        except OSError as exc:
            raise InvalidRequest(
                f"cannot read {exc.filename or folder}: {exc.strerror}", path=exc.filename
            ) from exc
        finally:
            with contextlib.suppress(_Stopped):
                bridge.put(None)

    worker = _in_thread(work)
    try:
        while (chunk := await bridge.queue.get()) is not None:
            yield chunk
        await worker
    finally:
        bridge.stopped.set()
        with contextlib.suppress(_Stopped):
            await worker


def _write_tar(folder: Path, writer: _Writer, moved: Callable[[int], object]) -> None:
    done = 0
    with tarfile.open(
        fileobj=cast("IO[bytes]", writer),
        mode="w|",
        bufsize=CHUNK_BYTES,
        format=tarfile.GNU_FORMAT,
        encoding="utf-8",
    ) as tar:
        for path in sorted(folder.rglob("*")):
            member = cast(
                "tarfile.TarInfo | None", tar.gettarinfo(path, str(path.relative_to(folder)))
            )
            if member is None:  # a socket
                continue
            if member.isreg():
                with path.open("rb") as file:
                    tar.addfile(member, file)
            elif member.isdir() or member.issym() or member.islnk():
                tar.addfile(member)
            done += member.size
            moved(done)
    writer.flush()


async def unpack(
    chunks: AsyncIterator[bytes],
    folder: Path,
    *,
    skip_outside_links: bool = False,
    progress: Progress | None = None,
) -> Transfer:
    """Unpack a tar stream from a guest below `folder`, which is made if it is missing.

    Nothing is written outside `folder`, whatever the stream holds. What was written before a refusal stays.

    Raises:
        GuestFailed: an entry is hostile: absolute, with `..`, a link that leads outside, a device; or
            the stream is no tar.
        InvalidRequest: `folder` cannot be written.
    """
    bridge = _Bridge()

    def work() -> Transfer:
        try:
            return Unpacker(folder, skip_outside_links=skip_outside_links).run(
                cast("IO[bytes]", _Reader(bridge))
            )
        finally:
            bridge.stopped.set()

    worker = _in_thread(work)
    done = 0
    try:
        async for chunk in chunks:
            if not await _handed_over(bridge, chunk, worker):
                break
            done += len(chunk)
            if progress is not None:
                progress(done, None)
        else:
            await _handed_over(bridge, None, worker)
    except BaseException:
        bridge.stopped.set()
        with contextlib.suppress(_Stopped):
            await worker
        raise
    try:
        return await worker
    except _Stopped as exc:
        raise TorporError("the transfer was stopped") from exc


async def _handed_over(
    bridge: _Bridge, data: bytes | None, worker: asyncio.Future[Transfer]
) -> bool:
    """Put a chunk; False if the worker has ended: it says why, or it had seen the tar's own end."""
    while not worker.done():
        try:
            async with asyncio.timeout(_POLL_S):
                await bridge.queue.put(data)
        except TimeoutError:
            continue
        return True
    return False

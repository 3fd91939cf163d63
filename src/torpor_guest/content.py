"""Reading and writing the bytes of files, streamed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from functools import partial
from typing import Any

from torpor_guest import errors, protocol
from torpor_guest.gate import DISK
from torpor_guest.paths import checked, describe, make_parents, number, owner_in, real, sync_dir
from torpor_guest.stream import Stream
from torpor_guest.threads import in_thread
from torpor_guest.users import User

_BLOCK = 256 << 10
"""Read or written in one go: some frames, so that the hop into a thread costs little."""


async def read(stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
    """Send a file's bytes from `offset` on, at most `limit_bytes`."""
    path = checked(params)
    offset = number(params, "offset", 0) or 0
    left = number(params, "limit_bytes", None)
    left = 1 << 62 if left is None else left
    fd, data = await in_thread(_open_for_reading, path, offset, min(left, _BLOCK))
    try:
        while data:
            await stream.send(protocol.CHANNEL_BYTES, data)
            left -= len(data)
            data = await in_thread(os.read, fd, min(left, _BLOCK)) if left else b""
    except OSError as exc:
        raise errors.from_os(exc, f"read {path}") from exc
    finally:
        DISK.run(partial(os.close, fd))
    return {}


async def write(stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
    """Take in a file's bytes until END, then put it in its place; before that nothing is seen of it."""
    path, mode = checked(params), number(params, "mode", None)
    owner = owner_in(params)
    try:
        sink = await in_thread(_open_for_writing, path, bool(params.get("append")), mode, owner)
    except OSError as exc:
        raise errors.from_os(exc, f"write {path}") from exc
    try:
        while chunks := await receive_block(stream):
            await DISK.passed()
            await in_thread(sink.write, chunks)
        await DISK.passed()
        await in_thread(sink.commit)
    except OSError as exc:
        raise errors.from_os(exc, f"write {path}") from exc
    finally:
        DISK.run(sink.close)
    return {"file": describe(real(path) if os.path.islink(path) else path)}


async def receive_block(stream: Stream, limit: int = _BLOCK) -> list[bytes]:
    """Return what has come in, at least one piece and about `limit` bytes at most; empty after END."""
    chunks: list[bytes] = []
    size = 0
    while not chunks or (stream.has_input and size < limit):
        item = await stream.receive()
        if item is None:
            break
        chunks.append(item[1])
        size += len(item[1])
    return chunks


def write_all(fd: int, chunks: list[bytes]) -> None:
    """Write all of `chunks`."""
    for chunk in chunks:
        start = 0
        while start < len(chunk):
            start += os.write(fd, chunk[start:] if start else chunk)


class Replacing:
    """A new content for a file; the old one stays until `commit`, and for good if it never comes.

    The new content has no name until then where the file system can do that, so that nothing is left of it
    even when the agent is killed.
    """

    def __init__(self, path: str, mode: int | None, owner: User | None) -> None:
        make_parents(path, owner)
        self._path = real(path)
        self._folder = os.path.dirname(self._path)
        self._temp = ""
        self._fd = -1
        found = _regular(self._path)
        self._fd = self._open()
        if os.geteuid() == 0:
            if owner:
                os.fchown(self._fd, owner.uid, owner.gid)
            elif found:
                os.fchown(self._fd, found.st_uid, found.st_gid)
        kept = stat.S_IMODE(found.st_mode) if found else 0o644
        os.fchmod(self._fd, kept if mode is None else mode & 0o7777)

    def write(self, chunks: list[bytes]) -> None:
        """Write to the new content."""
        write_all(self._fd, chunks)

    def commit(self) -> None:
        """Put the new content in the file's place, durably."""
        os.fsync(self._fd)
        if not self._temp:
            temp = self._temp_name()
            # A directory descriptor, though unused, makes Python call linkat, which can follow the link.
            os.link(f"/proc/self/fd/{self._fd}", temp, src_dir_fd=self._fd)
            self._temp = temp
        os.rename(self._temp, self._path)
        self._temp = ""
        sync_dir(self._folder)

    def close(self) -> None:
        """Drop what was not committed."""
        if self._temp:
            with contextlib.suppress(OSError):
                os.unlink(self._temp)
            self._temp = ""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        try:
            return os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            if exc.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
                raise
        self._temp = self._temp_name()
        return os.open(self._temp, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def _temp_name(self) -> str:
        return os.path.join(self._folder, f".torpor-{os.urandom(8).hex()}.tmp")


class Appending:
    """More bytes at the end of a file; taken back on failure if nobody else has written meanwhile."""

    def __init__(self, path: str, mode: int | None, owner: User | None) -> None:
        make_parents(path, owner)
        is_new = _regular(path) is None
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        self._start = os.fstat(self._fd).st_size
        self._written = 0
        self._is_done = False
        if mode is not None or is_new:
            os.fchmod(self._fd, 0o644 if mode is None else mode & 0o7777)
        if owner and os.geteuid() == 0:
            os.fchown(self._fd, owner.uid, owner.gid)

    def write(self, chunks: list[bytes]) -> None:
        """Append."""
        for chunk in chunks:
            start = 0
            while start < len(chunk):
                size = os.write(self._fd, chunk[start:])
                start += size
                self._written += size

    def commit(self) -> None:
        """Make it durable."""
        os.fsync(self._fd)
        self._is_done = True

    def close(self) -> None:
        """Take back what was not committed."""
        if not self._is_done and self._written:
            with contextlib.suppress(OSError):
                if os.fstat(self._fd).st_size == self._start + self._written:
                    os.ftruncate(self._fd, self._start)
        os.close(self._fd)


def _open_for_writing(
    path: str, append: bool, mode: int | None, owner: User | None
) -> Appending | Replacing:
    return Appending(path, mode, owner) if append else Replacing(path, mode, owner)


def _open_for_reading(path: str, offset: int, size: int) -> tuple[int, bytes]:
    """Return an open file and its first bytes; a FIFO or device is refused, since it could wait for ever."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        _check_regular(os.fstat(fd))
        if offset:
            os.lseek(fd, offset, os.SEEK_SET)
        return fd, os.read(fd, size) if size else b""
    except OSError as exc:
        if fd >= 0:
            os.close(fd)
        raise errors.from_os(exc, f"read {path}") from exc


def _regular(path: str) -> os.stat_result | None:
    """Return what the file at `path` is; None if there is none. Only regular files are written."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    _check_regular(found)
    return found


def _check_regular(found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file")

"""What happens to the files of a folder, told as it happens: inotify, which needs no looking again and again.

Bounded at every place: the kernel keeps so many events that were not read, and says when it lost some; we read on when the
host has taken what we sent; and only so many folders are followed at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import re
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

from torpor_guest import errors
from torpor_guest.errors import AgentError
from torpor_guest.files import send_items
from torpor_guest.paths import checked
from torpor_guest.stream import Stream
from torpor_guest.threads import in_thread

MAX_FOLLOWED = 64
"""Folders that are followed at the same time, each perhaps with those below it."""
MAX_FOLDERS = 8192
"""Of one that is followed with those below it."""
MAX_TOLD = 16384
"""Events that are held at a time; more, as when a large tree is moved in, are told as missed."""
MISSED = {"missed": True}
_BATCH = 256
_READ_BYTES = 64 << 10
_HEAD = struct.Struct("iIII")
_OURS = re.compile(r"\.torpor-[0-9a-f]{16}\.tmp")
"""What the host writes is called so until it is whole; see `content.Replacing`."""
_NAMELESS = re.compile(r"#[0-9]+")
"""What the kernel calls a file without a name."""
_PLACED_MOST = 64
_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x4000, 0x8000
_ONLYDIR, _DONT_FOLLOW, _ISDIR = 0x1000000, 0x2000000, 0x40000000
_WANTED = (
    _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
)
_KINDS = (
    (_CREATE | _MOVED_TO, "create"),
    (_MODIFY, "write"),
    (_DELETE, "remove"),
    (_MOVED_FROM, "rename"),
    (_ATTRIB, "chmod"),
)

_libc = ctypes.CDLL(None, use_errno=True)


class FolderMethods:
    """The method on folders that are followed."""

    def __init__(self) -> None:
        self._followed = 0

    async def follow(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Send what happens in a folder until the host ends it; return when the folder is removed or moved away."""
        path, is_deep = checked(params), params.get("recursive") is True
        if self._followed >= MAX_FOLLOWED:
            raise AgentError(errors.LIMIT, f"{MAX_FOLLOWED} folders are followed already")
        self._followed += 1
        try:
            fd = _open()
            try:
                return await _Follower(stream, fd, path, is_deep).run()
            finally:
                os.close(fd)
        finally:
            self._followed -= 1


class _Follower:
    """One folder, and with `is_deep` all below it."""

    def __init__(self, stream: Stream, fd: int, path: str, is_deep: bool) -> None:
        self._stream = stream
        self._fd = fd
        self._path = path
        self._is_deep = is_deep
        self._names: dict[int, str] = {}
        """By inotify's number: a folder's name, relative to the one that is followed; that is empty."""
        self._placed: deque[int] = deque(maxlen=_PLACED_MOST)
        """The kernel's marks of files of ours that are being put in their place."""
        self._is_over = False

    async def run(self) -> dict[str, Any]:
        """Send what happens until the folder is gone."""
        await in_thread(self._begin)
        await send_items(self._stream, [{"following": len(self._names)}])
        while not self._is_over:
            await _readable(self._fd)
            items = await in_thread(self._read)
            for start in range(0, len(items), _BATCH):
                await send_items(self._stream, items[start : start + _BATCH])
        return {}

    def _begin(self) -> None:
        try:
            self._add("", self._path, is_first=True)
            if self._is_deep:
                for _ in self._add_below(""):
                    pass
        except OSError as exc:
            raise errors.from_os(exc, f"follow {self._path}") from exc

    def _read(self) -> list[dict[str, Any]]:
        """Return what happened since; blocks only while it looks into new folders."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return []
        items: list[dict[str, Any]] = []
        for number, mask, mark, name in _events(data):
            for item in self._told(number, mask, mark, name):
                if len(items) >= MAX_TOLD:
                    item = MISSED
                if not items or items[-1] != item:  # a program that writes piece by piece
                    items.append(item)
        return items

    def _told(self, number: int, mask: int, mark: int, name: str) -> Iterator[dict[str, Any]]:
        if mask & _OVERFLOW:
            yield MISSED
            return
        folder = self._names.get(number)
        if folder is None:
            return  # of one that is not followed any more
        if mask & _IGNORED:
            del self._names[number]
        if mask & (_DELETE_SELF | _MOVE_SELF | _IGNORED):
            self._is_over = self._is_over or not folder
        elif name:  # else it is of the folder itself; of one below, the one above it tells, too
            yield from self._of_name(f"{folder}/{name}" if folder else name, mask, mark)

    def _of_name(self, where: str, mask: int, mark: int) -> Iterator[dict[str, Any]]:
        name = os.path.basename(where)
        if _OURS.fullmatch(name):
            if mask & _MOVED_FROM:
                self._placed.append(mark)
        elif mask & _ISDIR and self._is_deep:
            yield from self._of_folder(where, mask)
        elif mask & _MOVED_TO and mark in self._placed:
            yield {"name": where, "kind": "create"}
            yield {"name": where, "kind": "write"}
        elif mask & (_CREATE | _DELETE | _MOVED_FROM | _MOVED_TO) or self._has_name(where, name):
            yield from _kinds(where, mask)

    def _of_folder(self, where: str, mask: int) -> Iterator[dict[str, Any]]:
        if mask & _MOVED_FROM:
            self._drop(where)
        yield from _kinds(where, mask)
        if mask & (_CREATE | _MOVED_TO):
            yield from self._entered(where)

    def _has_name(self, where: str, name: str) -> bool:
        return _NAMELESS.fullmatch(name) is None or os.path.lexists(f"{self._path}/{where}")

    def _entered(self, where: str) -> Iterator[dict[str, Any]]:
        """Follow a folder that is new, and tell what is in it already."""
        if self._add(where, f"{self._path}/{where}"):
            for name in self._add_below(where):
                yield {"name": name, "kind": "create"}

    def _add_below(self, top: str) -> Iterator[str]:
        """Follow all folders below one; yield all names. What is gone meanwhile, or closed to us, is passed over."""
        pending = [top]
        while pending:
            folder = pending.pop()
            with contextlib.suppress(OSError), os.scandir(f"{self._path}/{folder}") as entries:
                for entry in entries:
                    where = f"{folder}/{entry.name}" if folder else entry.name
                    yield where
                    if entry.is_dir(follow_symlinks=False) and self._add(where, entry.path):
                        pending.append(where)

    def _add(self, where: str, path: str, *, is_first: bool = False) -> bool:
        """Follow one folder; return whether it is one, and there."""
        if len(self._names) >= MAX_FOLDERS:
            raise AgentError(
                errors.LIMIT,
                f"{self._path} has more than {MAX_FOLDERS} folders below it",
                hint="follow a smaller part of it",
            )
        flags = _WANTED | _ONLYDIR | (0 if is_first else _DONT_FOLLOW)
        number = _libc.inotify_add_watch(self._fd, os.fsencode(path), ctypes.c_uint32(flags))
        if number >= 0:
            self._names[number] = where
            return True
        code = ctypes.get_errno()
        if code == errno.ENOSPC:
            raise AgentError(
                errors.LIMIT,
                "the machine follows as many folders as its kernel allows",
                hint="raise fs.inotify.max_user_watches in it, or follow a smaller part",
            )
        if is_first:
            raise OSError(code, os.strerror(code), path)
        return False

    def _drop(self, where: str) -> None:
        """Follow a folder no more that was moved away, nor those below it."""
        for number, name in list(self._names.items()):
            if name == where or name.startswith(f"{where}/"):
                _libc.inotify_rm_watch(self._fd, number)
                del self._names[number]


def _kinds(where: str, mask: int) -> Iterator[dict[str, Any]]:
    for bit, kind in _KINDS:
        if mask & bit:
            yield {"name": where, "kind": kind}


def _open() -> int:
    fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        code = ctypes.get_errno()
        raise errors.from_os(OSError(code, os.strerror(code)), "follow a folder")
    return fd


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def _events(data: bytes) -> Iterator[tuple[int, int, int, str]]:
    """Yield inotify's number of the folder, what happened, the mark that both ends of a move have, and the name in it."""
    at = 0
    while at < len(data):
        number, mask, mark, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield number, mask, mark, os.fsdecode(data[at : at + size].rstrip(b"\0"))
        at += size

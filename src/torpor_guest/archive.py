"""Whole trees as tar streams: packed and unpacked piece by piece."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator, Iterator
from typing import Any

from torpor_guest import errors, protocol
from torpor_guest.content import receive_block, write_all
from torpor_guest.errors import AgentError
from torpor_guest.gate import DISK
from torpor_guest.paths import checked, make_dirs, owner_in, real
from torpor_guest.stream import Stream
from torpor_guest.tarstream import BLOCK, BadTar, Member, TarReader
from torpor_guest.threads import in_thread
from torpor_guest.users import User

_PIECE = 256 << 10
_MAX_SAFE = 4096


async def pack(stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
    """Send a folder or file as a tar stream: parents before children, names of a folder in byte order."""
    path = checked(params)
    if not os.path.lexists(path):
        raise AgentError(errors.NOT_FOUND, f"pack {path}: No such file or directory")
    pieces = _pack(path)
    try:
        while data := await in_thread(_gather, pieces):
            await stream.send(protocol.CHANNEL_BYTES, data)
    finally:
        DISK.run(pieces.close)
    return {}


async def unpack(stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
    """Take in a tar stream until END and write what is in it below a folder."""
    path = checked(params)
    unpacker = await in_thread(Unpacker, path, owner_in(params))
    try:
        while chunks := await receive_block(stream):
            await DISK.passed()
            await in_thread(unpacker.feed, chunks)
        unpacker.finish()
    except BadTar as exc:
        raise AgentError(errors.INVALID, f"unpack into {path}: {exc}") from exc
    except OSError as exc:
        raise errors.from_os(exc, f"unpack into {path}: {exc.filename or ''}") from exc
    finally:
        DISK.run(unpacker.close)
    return {"entries": unpacker.entries}


def _gather(pieces: Iterator[bytes]) -> bytes:
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size >= _PIECE:
            break
    return b"".join(parts)


def _pack(path: str) -> Generator[bytes, None, None]:
    """Yield a tar archive; sockets, FIFOs, devices and what cannot be opened any more are left out."""
    if os.path.isdir(path):
        yield from _pack_folder(path, "")
    else:
        yield from _pack_entry(path, os.path.basename(path.rstrip("/")))
    yield bytes(2 * BLOCK)


def _pack_folder(folder: str, prefix: str) -> Iterator[bytes]:
    pending = [(folder, prefix, name) for name in _names(folder)]
    while pending:
        above, before, name = pending.pop()
        path, member = f"{above.rstrip('/')}/{name}", before + name
        yield from _pack_entry(path, member)
        if os.path.isdir(path) and not os.path.islink(path):
            pending += [(path, f"{member}/", child) for child in _names(path)]


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder), key=os.fsencode, reverse=True)
    except OSError:
        return []


def _pack_entry(path: str, name: str) -> Iterator[bytes]:
    try:
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode):
            yield from _pack_file(path, name, found)
        elif stat.S_ISDIR(found.st_mode):
            yield _header(name, found, "5")
        elif stat.S_ISLNK(found.st_mode):
            yield _header(name, found, "2", target=os.readlink(path))
    except FileNotFoundError:
        return  # gone since its folder was read


def _pack_file(path: str, name: str, found: os.stat_result) -> Iterator[bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        size = os.fstat(fd).st_size
        yield _header(name, found, "0", size=size)
        left = size
        while left:
            data = os.read(fd, min(left, _PIECE))
            if not data:  # it was cut meanwhile: the header's word is kept
                data = bytes(min(left, _PIECE))
            left -= len(data)
            yield data
        yield bytes(-size % BLOCK)
    finally:
        os.close(fd)


def _header(
    name: str, found: os.stat_result, kind: str, *, size: int = 0, target: str = ""
) -> bytes:
    from tarfile import GNU_FORMAT, TarInfo  # most agents never need it

    info = TarInfo(name)
    info.type, info.linkname, info.size = kind.encode(), target, size
    info.mode, info.mtime = stat.S_IMODE(found.st_mode), int(found.st_mtime)
    info.uid, info.gid = found.st_uid, found.st_gid
    return info.tobuf(GNU_FORMAT, "utf-8", "surrogateescape")


class Unpacker:
    """Writes the members of an archive below one folder and nowhere else."""

    def __init__(self, path: str, owner: User | None) -> None:
        make_dirs(path, 0o755, owner)
        self.entries = 0
        self._root = real(path)
        self._owner = owner if os.geteuid() == 0 else None
        self._reader = TarReader()
        self._member: Member | None = None
        self._fd = -1
        self._temp = ""
        self._left = 0
        self._safe: set[str] = set()

    def feed(self, chunks: list[bytes]) -> None:
        """Take in bytes of the archive."""
        for chunk in chunks:
            for event in self._reader.feed(chunk):
                if isinstance(event, bytes):
                    write_all(self._fd, [event])
                    self._left -= len(event)
                    if not self._left:
                        self._finish_file()
                else:
                    self._begin(event)

    def finish(self) -> None:
        """Raise `BadTar` unless the archive came whole."""
        self._reader.finish()

    def close(self) -> None:
        """Drop a file that did not come whole."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._temp:
            with contextlib.suppress(OSError):
                os.unlink(self._temp)
            self._temp = ""

    def _begin(self, member: Member) -> None:
        self.entries += 1
        if not member.name:
            return
        path = self._place(member.name)
        if member.kind == "dir":
            self._make_dir(path, member)
        elif member.kind == "file":
            self._member, self._left = member, member.size
            self._temp = f"{os.path.dirname(path)}/.torpor-{os.urandom(8).hex()}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self._temp, flags, 0o600)
            if not member.size:
                self._finish_file()
        else:
            self._make_link(path, member)

    def _place(self, name: str) -> str:
        """Return where `name` goes; the folder for it exists and is inside, whatever links are on the way."""
        above, _, last = name.rpartition("/")
        folder = f"{self._root}/{above}" if above else self._root
        if folder not in self._safe:
            found = real(folder)
            if found != self._root and not found.startswith(self._root.rstrip("/") + "/"):
                raise BadTar(f"{name!r} would land outside the folder, in {found!r}")
            make_dirs(found, 0o755, self._owner)
            if len(self._safe) >= _MAX_SAFE:
                self._safe.clear()
            self._safe.add(folder)
        return f"{folder}/{last}"

    def _make_dir(self, path: str, member: Member) -> None:
        if os.path.islink(path) or not os.path.isdir(path):
            if os.path.islink(path):
                os.unlink(path)
                self._safe.clear()
            os.mkdir(path)
        os.chmod(path, member.mode & 0o777)
        self._own(path)

    def _make_link(self, path: str, member: Member) -> None:
        source = self._place(member.target) if member.kind == "hardlink" else ""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._safe.clear()  # what was a folder may be a link now
        if member.kind == "hardlink":
            os.link(source, path, follow_symlinks=False)
        else:
            os.symlink(member.target, path)
            self._own(path)

    def _finish_file(self) -> None:
        member, temp = self._member, self._temp
        assert member
        os.fchmod(self._fd, member.mode & 0o777)
        if self._owner:
            os.fchown(self._fd, self._owner.uid, self._owner.gid)
        with contextlib.suppress(OverflowError):
            os.utime(self._fd, (member.mtime, member.mtime))
        os.close(self._fd)
        self._fd = -1
        os.rename(temp, f"{os.path.dirname(temp)}/{member.name.rpartition('/')[2]}")
        self._temp = ""

    def _own(self, path: str) -> None:
        if self._owner:
            os.chown(path, self._owner.uid, self._owner.gid, follow_symlinks=False)

"""Files of the fake guest: a flat map of paths, with folders as entries of their own."""

from __future__ import annotations

import asyncio
import hashlib
import io
import posixpath
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from torpor.errors import Conflict, GuestFailed, InvalidRequest, NotFound, TorporError
from torpor.model import FileInfo, FileKind
from torpor.model_file_events import FileEvent, FileEventType

CHUNK_BYTES = 64 << 10
KEEP_BYTES = 8 << 20
"""Files over this size keep only their length and digest; they read back as zeros."""


@dataclass(slots=True)
class Node:
    """One name."""

    kind: FileKind
    data: bytes = b""
    mode: int = 0o644
    user: str = "root"
    target: str | None = None
    size_bytes: int = 0
    digest: str = ""
    modified_at: datetime = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


class Followed(list[tuple[str, bool, "asyncio.Queue[FileEvent | TorporError | None]"]]):
    """Who follows folders; nobody does in a snapshot's copy."""

    def __deepcopy__(self, memo: dict[int, object]) -> Followed:
        return Followed()


class FakeFiles:
    """A file system in memory."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node("dir", mode=0o755)}
        self.extra_tar_members: list[tarfile.TarInfo] = []
        self.cut_reads_after: int | None = None
        self.followed = Followed()
        """Who follows which folder, whether with those below it; None ends it."""
        for path in ("/workspace", "/tmp"):
            self.mkdir(path, parents=True, mode=0o755)

    def tell(self, path: str, kind: FileEventType) -> None:
        """Tell who follows the folder of `path` what happened to it."""
        for folder, is_deep, queue in list(self.followed):
            if path == folder and kind in (FileEventType.REMOVE, FileEventType.RENAME):
                queue.put_nowait(None)
            elif path.startswith(f"{folder.rstrip('/')}/") and (is_deep or _parent(path) == folder):
                name = path[len(folder.rstrip("/")) + 1 :]
                queue.put_nowait(FileEvent(name=name, type=kind))

    def _node(self, path: str) -> Node:
        found = self.nodes.get(posixpath.normpath(path))
        if found is None:
            raise NotFound(f"there is no {path!r} in the guest", path=path)
        return found

    def stat(self, path: str) -> FileInfo:
        path = posixpath.normpath(path)
        node = self._node(path)
        return FileInfo(
            name=posixpath.basename(path),
            path=path,
            kind=node.kind,
            size_bytes=node.size_bytes,
            mode=node.mode,
            user=node.user,
            group=node.user,
            modified_at=node.modified_at,
            target=node.target,
        )

    def list_dir(self, path: str) -> list[FileInfo]:
        if self._node(path).kind != "dir":
            raise InvalidRequest(f"{path!r} is not a folder", path=path)
        return [self.stat(child) for child in sorted(self.nodes) if _parent(child) == _norm(path)]

    def walk(self, path: str, max_depth: int | None, depth: int = 1) -> Iterator[FileInfo]:
        for info in self.list_dir(path):
            yield info
            if info.kind == "dir" and (max_depth is None or depth < max_depth):
                yield from self.walk(info.path, max_depth, depth + 1)

    def mkdir(self, path: str, *, parents: bool, mode: int) -> FileInfo:
        path = _norm(path)
        if path in self.nodes:
            if not parents or self.nodes[path].kind != "dir":
                raise Conflict(f"{path!r} exists", path=path)
            return self.stat(path)
        if _parent(path) not in self.nodes:
            if not parents:
                raise NotFound(f"there is no {_parent(path)!r} in the guest")
            self.mkdir(_parent(path), parents=True, mode=0o755)
        self.nodes[path] = Node("dir", mode=mode)
        self.tell(path, FileEventType.CREATE)
        return self.stat(path)

    def remove(self, path: str, *, recursive: bool) -> None:
        path = _norm(path)
        self._node(path)
        below = [name for name in self.nodes if name.startswith(f"{path}/")]
        if below and not recursive:
            raise Conflict(f"{path!r} is not empty", hint="use recursive", path=path)
        for name in (*reversed(below), path):
            del self.nodes[name]
            self.tell(name, FileEventType.REMOVE)

    def rename(self, source: str, target: str) -> FileInfo:
        source, target = _norm(source), _norm(target)
        self._node(source)
        for name in [n for n in self.nodes if n == source or n.startswith(f"{source}/")]:
            self.nodes[target + name[len(source) :]] = self.nodes.pop(name)
        self.tell(source, FileEventType.RENAME)
        self.tell(target, FileEventType.CREATE)
        return self.stat(target)

    async def read(self, path: str, offset: int, limit: int | None) -> AsyncIterator[bytes]:
        node = self._node(path)
        if node.kind != "file":
            raise InvalidRequest(f"{path!r} is not a file", path=path)
        end = node.size_bytes if limit is None else min(node.size_bytes, offset + limit)
        for begin in range(offset, end, CHUNK_BYTES):
            if self.cut_reads_after is not None and begin >= self.cut_reads_after:
                raise GuestFailed(f"{path!r} cannot be read on: Input/output error")
            size = min(CHUNK_BYTES, end - begin)
            yield node.data[begin : begin + size] if node.data else b"\0" * size

    async def write(
        self,
        path: str,
        chunks: AsyncIterator[bytes],
        *,
        append: bool,
        mode: int | None,
        user: str | None,
    ) -> FileInfo:
        path = _norm(path)
        kept, total, digest = bytearray(), 0, hashlib.sha256()
        async for chunk in chunks:
            total += len(chunk)
            digest.update(chunk)
            if total <= KEEP_BYTES:
                kept += chunk
        old = self.nodes.get(path)
        if old is not None and old.kind == "dir":
            raise Conflict(f"{path!r} is a folder", path=path)
        if append and old is not None:
            kept, total = bytearray(old.data) + kept, old.size_bytes + total
        self.mkdir(_parent(path), parents=True, mode=0o755)
        self.nodes[path] = Node(
            "file",
            bytes(kept) if total <= KEEP_BYTES else b"",
            mode=mode if mode is not None else old.mode if old else 0o644,
            user=user or "root",
            size_bytes=total,
            digest=digest.hexdigest(),
        )
        self.tell(path, FileEventType.CREATE)
        self.tell(path, FileEventType.WRITE)
        return self.stat(path)

    def pack(self, path: str) -> Iterator[bytes]:
        self._node(path)
        base = _norm(path)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name in sorted(n for n in self.nodes if n.startswith(f"{base}/")):
                node = self.nodes[name]
                member = tarfile.TarInfo(name[len(base) + 1 :])
                member.mode, member.mtime = node.mode, 1_700_000_000
                if node.kind == "dir":
                    member.type = tarfile.DIRTYPE
                elif node.kind == "symlink":
                    member.type, member.linkname = tarfile.SYMTYPE, node.target or ""
                else:
                    member.size = node.size_bytes
                content = io.BytesIO(node.data or b"\0" * node.size_bytes)
                tar.addfile(member, content if node.kind == "file" else None)
            for member in self.extra_tar_members:
                tar.addfile(member, io.BytesIO(b"\0" * member.size))
        data = buffer.getvalue()
        for begin in range(0, len(data), CHUNK_BYTES):
            yield data[begin : begin + CHUNK_BYTES]

    async def unpack(self, path: str, chunks: AsyncIterator[bytes]) -> int:
        data = bytearray()
        async for chunk in chunks:
            data += chunk
        return await asyncio.to_thread(self._unpack, path, bytes(data))

    def _unpack(self, path: str, data: bytes) -> int:
        self.mkdir(path, parents=True, mode=0o755)
        count = 0
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                count += 1
                name = _norm(f"{path}/{member.name}")
                if member.isdir():
                    self.mkdir(name, parents=True, mode=member.mode)
                elif member.issym():
                    self.nodes[name] = Node("symlink", target=member.linkname, mode=0o777)
                else:
                    file = tar.extractfile(member)
                    content = file.read() if file else b""
                    self.mkdir(_parent(name), parents=True, mode=0o755)
                    self.nodes[name] = Node(
                        "file", content, mode=member.mode, size_bytes=len(content)
                    )
        return count


def _norm(path: str) -> str:
    return posixpath.normpath(path)


def _parent(path: str) -> str:
    return posixpath.dirname(path) if path != "/" else ""

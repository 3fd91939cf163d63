"""The tree that an image's layers make, in memory: whiteouts applied, every path below the root.

Nothing is looked up on the host. A path through a symlink is followed in this tree, where `/` and `..` end at its
root, so what comes out has no entry below a symlink.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ENTRIES_MOST = 2_000_000
_PATH_MOST, _LINKS_MOST = 4096, 40
_WHITEOUT, _OPAQUE, _AUFS = ".wh.", ".wh..wh..opq", ".wh..wh."
CAPABILITY = "SCHILY.xattr.security.capability"


class BadEntryError(Exception):
    """Raised for an entry that no tree can have; the text says what is so."""


@dataclass(slots=True)
class Inode:
    """What a name stands for; hard links share one."""

    kind: bytes
    """As tar has it: `REGTYPE`, `DIRTYPE`, `SYMTYPE` or `FIFOTYPE`."""
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime: float = 0.0
    size: int = 0
    target: str = ""
    layer: int = 0
    offset: int = 0
    """Where its data begins in the layer's tar."""
    sparse: Any = None
    capability: str | None = None
    written_as: str | None = None
    """Set by who writes the tree out: the first name."""


class Node:
    """A name in the tree."""

    __slots__ = ("children", "inode")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.children: dict[str, Node] = {}

    @property
    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.inode.kind == tarfile.DIRTYPE


class Tree:
    """The tree; layers are added from the lowest up."""

    def __init__(self) -> None:
        self.root = Node(Inode(tarfile.DIRTYPE))
        self.skipped = 0
        """Device files that were left out."""
        self._entries = 0

    def add_layer(self, number: int, members: list[tarfile.TarInfo]) -> None:
        """Add a layer. Raises `BadEntryError`."""
        self._entries += len(members)
        if self._entries > ENTRIES_MOST:
            raise BadEntryError(f"it has over {ENTRIES_MOST} entries")
        plain = []
        for member in members:
            parts = parts_of(member.name)
            if parts and parts[-1].startswith(_WHITEOUT):
                self._hide(number, parts)
            else:
                plain.append((parts, member))
        for parts, member in plain:
            self._add(number, parts, member)

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Yield every name, a folder before what is in it; the root is `.`."""
        stack = [(".", self.root)]
        while stack:
            name, node = stack.pop()
            yield name, node
            prefix = "" if name == "." else f"{name}/"
            stack.extend(
                (prefix + child, node.children[child])
                for child in sorted(node.children, reverse=True)
            )

    def _hide(self, number: int, parts: list[str]) -> None:
        """Apply a whiteout to what lower layers have."""
        folder = self._find(parts[:-1])
        if folder is None or not folder.is_dir:
            return
        if parts[-1] == _OPAQUE:
            folder.children.clear()
        elif not parts[-1].startswith(_AUFS):
            folder.children.pop(parts[-1].removeprefix(_WHITEOUT), None)

    def _add(self, number: int, parts: list[str], member: tarfile.TarInfo) -> None:
        if member.ischr() or member.isblk():
            self.skipped += 1
            return
        if not parts:
            if member.isdir():
                self.root.inode = _inode(number, member)
            return
        folder = self._folder(parts[:-1], number)
        name = parts[-1]
        known = folder.children.get(name)
        if member.isdir() and known is not None and known.is_dir:
            known.inode = _inode(number, member)
            return
        if member.islnk():
            target = self._find(parts_of(member.linkname), follow_last=False)
            if target is None or target.is_dir:
                raise BadEntryError(
                    f"{member.name[:200]!r} is a hard link to {member.linkname[:200]!r}, which is no file"
                )
            folder.children[name] = Node(target.inode)
        else:
            folder.children[name] = Node(_inode(number, member))

    def _folder(self, parts: list[str], number: int) -> Node:
        """Return the folder for `parts`, made where it is missing and in place of a file."""
        found = self._find(parts)
        if found is not None and found.is_dir:
            return found
        node = self.root
        for depth, part in enumerate(parts):
            after = self._find(parts[: depth + 1])
            if after is None or not after.is_dir:
                after = node.children[part] = Node(Inode(tarfile.DIRTYPE, layer=number))
            node = after
        return node

    def _find(self, parts: list[str], *, follow_last: bool = True) -> Node | None:
        """Return the node that a path leads to in this tree; None: to none, or in a circle."""
        trail = [self.root]
        todo = parts[::-1]
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                trail = trail[:-1] or [self.root]
                continue
            node = trail[-1].children.get(part)
            if node is None:
                return None
            if node.inode.kind == tarfile.SYMTYPE and (todo or follow_last):
                links += 1
                if links > _LINKS_MOST:
                    return None
                target = node.inode.target
                if target.startswith("/"):
                    trail = [self.root]
                todo.extend(p for p in reversed(target.split("/")) if p not in ("", "."))
                continue
            trail.append(node)
        return trail[-1]


def parts_of(name: str) -> list[str]:
    """Return the parts of an entry's name. Raises `BadEntryError`: it leads out, or cannot be a name."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadEntryError(f"{name[:200]!r} leads out of the tree")
    if (
        len(name) > _PATH_MOST
        or "\0" in name
        or any(len(p.encode("utf-8", "surrogateescape")) > 255 for p in parts)
    ):
        raise BadEntryError(f"{name[:200]!r} is longer than a name may be, or has a NUL")
    return parts


def _inode(number: int, member: tarfile.TarInfo) -> Inode:
    if member.isdir():
        kind = tarfile.DIRTYPE
    elif member.issym():
        kind = tarfile.SYMTYPE
    elif member.isfifo():
        kind = tarfile.FIFOTYPE
    elif member.isreg():
        kind = tarfile.REGTYPE
    else:
        raise BadEntryError(
            f"{member.name[:200]!r} has the type {member.type!r}, which no image has"
        )
    if not (0 <= member.uid < 1 << 32 and 0 <= member.gid < 1 << 32 and member.size >= 0):
        raise BadEntryError(f"{member.name[:200]!r} has an owner or a size that cannot be")
    return Inode(
        kind=kind,
        mode=member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        mtime=max(0, int(member.mtime)),
        size=member.size if kind == tarfile.REGTYPE else 0,
        target=member.linkname if kind == tarfile.SYMTYPE else "",
        layer=number,
        offset=member.offset_data,
        sparse=getattr(member, "sparse", None),
        capability=member.pax_headers.get(CAPABILITY),
    )
